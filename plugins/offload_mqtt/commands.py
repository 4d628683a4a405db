"""The commands `offload mqtt …`, each in a module of its own."""

from __future__ import annotations

import typer

from offload.cli.kit.ending import guarded
from offload_mqtt.archive_command import archive
from offload_mqtt.replay_command import replay
from offload_mqtt.sort_command import sort

app = typer.Typer(
    help="Archive the messages of an MQTT broker, sort them by topic, and replay them.", no_args_is_help=True
)
app.command()(archive)
app.command()(sort)
app.command()(guarded(replay))


@app.callback()
def mqtt() -> None:
    """Archive the messages of an MQTT broker, sort them by topic, and replay them."""
