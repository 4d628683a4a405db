"""The arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Tier = Annotated[str, typer.Argument(help="A folder, or a URL that a backend knows.")]
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
