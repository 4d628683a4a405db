"""The arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["OnlyStream", "Options", "Tier"]


Tier = Annotated[
    str, typer.Argument(metavar="TIER", help="A folder, or a URL of a backend: s3://bucket/prefix.")
]
Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream, as `offload ls` names it.")]
OnlyStream = Annotated[str | None, typer.Argument(metavar="STREAM", help="Only this stream.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="An option of the tier's backend, or a limit; may be repeated. `commit.NAME` is one of the "
        "commit store. Keep secrets in the environment instead: arguments are seen by others.",
    ),
]
