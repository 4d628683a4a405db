"""The arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from offload.cli.kit.ending import Usage
from offload.ground.errors import Misuse
from offload.model.compression import Compression

__all__ = [
    "Compress",
    "Decrypt",
    "Encrypt",
    "EncryptedOnly",
    "Keys",
    "OnlyStream",
    "Options",
    "SourceKeys",
    "SourceOptionPairs",
    "Stream",
    "StreamOrGlob",
    "Tier",
    "Verbose",
    "compression_of",
]


Tier = Annotated[
    str, typer.Argument(metavar="TIER", help="A folder, or a URL of a backend: s3://bucket/prefix.")
]
Stream = Annotated[
    str, typer.Argument(metavar="STREAM", help="The stream, as `offload ls` shows it, or its name on TIER.")
]
StreamOrGlob = Annotated[
    str,
    typer.Argument(
        metavar="STREAM", help="The stream, as `offload ls` shows it, or a glob such as 'orders-*'."
    ),
]
OnlyStream = Annotated[
    str | None, typer.Argument(metavar="STREAM", help="Only this stream, in all of its parts.")
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the tier's backend, or a limit. May be repeated. `commit.NAME` sets an option of "
        "the commit store. Put secrets in the environment: other users of the machine can see arguments.",
    ),
]
SourceOptionPairs = Annotated[
    list[str] | None,
    typer.Option("--source-option", metavar="NAME=VALUE", help="An option of the source. May be repeated."),
]
Compress = Annotated[
    str | None,
    typer.Option(
        "--compress",
        metavar="CODEC",
        help="Compress the fragments of this run: zstd, zstd:1 to zstd:19, lz4 or none. A run that makes a "
        "tier records it as the tier's default. Default: that of the tier.",
    ),
]
Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="URL",
        envvar="OFFLOAD_KEYS",
        show_envvar=False,
        help="The key service of encrypted streams: keyfile:/path, awskms: or others. Default: OFFLOAD_KEYS.",
    ),
]
EncryptedOnly = Annotated[
    bool,
    typer.Option(
        "--encrypted-only",
        help="Refuse fragments that are not encrypted: somebody who writes to the bucket may have forged "
        "them. Needs --keys.",
    ),
]
Encrypt = Annotated[
    str | None,
    typer.Option(
        "--encrypt",
        metavar="LABEL",
        help="Encrypt streams that have no key yet, under this master key of the key service. own:LABEL "
        "makes a master key for each stream. A stream that has a key is always encrypted. Needs --keys.",
    ),
]
Decrypt = Annotated[
    bool,
    typer.Option(
        "--decrypt", help="Allow encrypted streams to be stored in the clear. Default: refuse such a copy."
    ),
]
SourceKeys = Annotated[
    str | None,
    typer.Option(
        "--from-keys",
        metavar="URL",
        help="The key service of SOURCE_TIER, if it is another one. Default: that of --keys.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Also show the identities and numbers of the commit protocol."),
]
EachObject = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Name each object. Without it, objects of one kind are counted."),
]


def compression_of(compress: str | None) -> Compression | None:
    """Return the value of `--compress`. Raises `Usage` if it names no compression."""
    try:
        return None if compress is None else Compression.parse(compress)
    except Misuse as error:
        raise Usage(f"--compress: {error}") from error
