"""The argument that names a bucket of Pulsar's: the URL of a store, with or without `pulsar+` before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from offload.cli.kit.state import CommandContext
from offload.contracts.store import ObjectStore

__all__ = ["AsJson", "Bucket", "opened", "plain_url"]


PREFIX: Final = "pulsar+"

Bucket = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The bucket: pulsar+s3://bucket, pulsar+gs://bucket, pulsar+az://container, or a folder.",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


def plain_url(url: str) -> str:
    """Return the URL of the store itself."""
    return url[len(PREFIX) :] if url[: len(PREFIX)].lower() == PREFIX else url


def opened(state: CommandContext, url: str, options: Sequence[str] | None) -> ObjectStore:
    """Open the store of a bucket, with retries and limits, for the time of the command."""
    return state.store(plain_url(url), options)
