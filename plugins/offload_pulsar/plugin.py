"""The declarations of the Pulsar plugin. Imports nothing of its code."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import Backend, Command, DecoderType, SourceType, hookimpl

NEEDS = "ledger-offload[pulsar]"
SCHEMES = ("pulsar+s3", "pulsar+gs", "pulsar+az", "pulsar+file")


@hookimpl
def offload_decoders() -> Sequence[DecoderType]:
    """Declare a decoder of Pulsar's entries: the messages of producers, with their metadata."""
    return [DecoderType(name="pulsar", target="offload_pulsar.decoder:PulsarDecoder", needs=NEEDS)]


@hookimpl
def offload_sources() -> Sequence[SourceType]:
    """Declare a bucket of Pulsar's tiered storage as a source, on every store that the program has."""
    return [
        SourceType(
            name="pulsar",
            target="offload_pulsar.source:open_url",
            schemes=SCHEMES,
            options=("first-offset",),
            opens_stores=True,
            needs=NEEDS,
        )
    ]


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare the same buckets as tiers that can only be read."""
    return [
        Backend(
            name="pulsar",
            target="offload_pulsar.catalogue:open_catalogue",
            schemes=SCHEMES,
            kind="catalogue",
            opens_stores=True,
            takes=("env", "limits", "metrics"),
            needs=NEEDS,
        )
    ]


@hookimpl
def offload_commands() -> Sequence[Command]:
    """Declare the commands `offload pulsar …`."""
    return [
        Command(
            name="pulsar",
            target="offload_pulsar.commands:app",
            needs=NEEDS,
            help="Look into Pulsar's buckets, verify them, and write them.",
        )
    ]
