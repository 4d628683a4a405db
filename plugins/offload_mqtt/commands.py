"""The commands `offload mqtt …`, each in a module of its own."""

from __future__ import annotations

import typer

from offload_mqtt.archive_command import archive

app = typer.Typer(help="Archive the messages of an MQTT broker.", no_args_is_help=True)
app.command()(archive)


@app.callback()
def mqtt() -> None:
    """Archive the messages of an MQTT broker."""
