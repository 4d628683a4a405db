"""What this plugin declares: the command that begins a new backend. Imports no pytest."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import Command, hookimpl


@hookimpl
def offload_commands() -> Sequence[Command]:
    """`offload new-backend NAME`."""
    return [
        Command(
            name="new-backend",
            target="offload_conformance.new_backend:new_backend",
            help="Write the skeleton of a distribution for the backend NAME into a new folder.",
        )
    ]
