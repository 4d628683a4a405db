"""The declarations of the plugin for buckets of rabbitmq-stream-s3. Imports nothing of its code."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import Backend, Command, SourceType, hookimpl

SCHEMES = ("rabbitmq+s3", "rabbitmq+gs", "rabbitmq+az", "rabbitmq+file")


@hookimpl
def offload_sources() -> Sequence[SourceType]:
    """Declare the same buckets as sources, on every store that the program has."""
    return [
        SourceType(
            name="rabbitmq-s3",
            target="offload_rabbitmq_s3.source:open_url",
            schemes=SCHEMES,
            options=("root",),
            opens_stores=True,
        )
    ]


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare buckets of rabbitmq-stream-s3 as tiers that can only be read."""
    return [
        Backend(
            name="rabbitmq-s3",
            target="offload_rabbitmq_s3.catalogue:open_catalogue",
            schemes=SCHEMES,
            kind="catalogue",
            options=("root",),
            opens_stores=True,
            takes=("env", "limits", "metrics"),
            marker="rabbitmq/stream/",
        )
    ]


@hookimpl
def offload_commands() -> Sequence[Command]:
    """Declare the commands `offload rabbitmq-s3 …`."""
    return [
        Command(
            name="rabbitmq-s3",
            target="offload_rabbitmq_s3.commands:app",
            help="Look into buckets of rabbitmq-stream-s3, RabbitMQ's plugin for S3, and write them.",
        )
    ]
