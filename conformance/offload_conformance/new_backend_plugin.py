"""The plugin that declares the command `offload new-backend`. Imports no pytest."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import Command, hookimpl


@hookimpl
def offload_commands() -> Sequence[Command]:
    """Declare `offload new-backend NAME`."""
    return [
        Command(
            name="new-backend",
            target="offload_conformance.new_backend:new_backend",
            help="Create a folder with the skeleton of a new backend.",
        )
    ]
