"""The declarations of the MQTT plugin. Imports nothing of its code."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import Command, DecoderType, SourceType, hookimpl


@hookimpl
def offload_decoders() -> Sequence[DecoderType]:
    """Declare the decoder of records of messages with topics."""
    return [DecoderType(name="mqtt", target="offload_mqtt.decoder:MqttDecoder")]


@hookimpl
def offload_sources() -> Sequence[SourceType]:
    """Declare the streams of RabbitMQ, sorted by topic."""
    return [
        SourceType(
            name="topics",
            target="offload_mqtt.sorted_source:open_url",
            schemes=("topics+rabbitmq",),
            options=("by",),
            needs="ledger-offload[mqtt]",
        )
    ]


@hookimpl
def offload_commands() -> Sequence[Command]:
    """Declare the commands `offload mqtt …`."""
    return [
        Command(
            name="mqtt",
            target="offload_mqtt.commands:app",
            needs="ledger-offload[mqtt]",
            help="Archive the messages of an MQTT broker, sort them by topic, and replay them.",
        )
    ]
