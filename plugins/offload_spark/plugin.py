"""The declarations of the Spark plugin: its commands. Imports no Spark."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import Command, hookimpl


@hookimpl
def offload_commands() -> Sequence[Command]:
    """Declare the commands `offload spark …`."""
    return [
        Command(
            name="spark",
            target="offload_spark.commands:app",
            needs="ledger-offload[spark]",
            help="Jobs that Spark runs in parallel.",
        )
    ]
