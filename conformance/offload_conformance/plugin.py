"""The plugin that declares the command `offload conformance`. Imports no pytest."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import Command, hookimpl


@hookimpl
def offload_commands() -> Sequence[Command]:
    """Declare `offload conformance URL`."""
    return [
        Command(
            name="conformance",
            target="offload_conformance.command:conformance",
            needs="ledger-offload[conformance]",
            help="Test the backend that serves URL against the contract, clause by clause.",
        )
    ]
