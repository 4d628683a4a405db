"""The declarations of the RabbitMQ plugin. Imports nothing of the source itself."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import BrokerType, DecoderType, SourceType, hookimpl


@hookimpl
def offload_sources() -> Sequence[SourceType]:
    """Declare RabbitMQ's files on disk as a source."""
    return [
        SourceType(
            name="rabbitmq",
            target="offload_rabbitmq.source:open_url",
            schemes=("rabbitmq",),
            sample="offload_rabbitmq.samples:sample_path",
        )
    ]


@hookimpl
def offload_decoders() -> Sequence[DecoderType]:
    """Declare a decoder of AMQP 1.0, the format that RabbitMQ's own clients store."""
    return [DecoderType(name="amqp", target="offload_rabbitmq.decoder:AmqpDecoder")]


@hookimpl
def offload_brokers() -> Sequence[BrokerType]:
    """Declare RabbitMQ's stream port, which says what is committed and which node leads."""
    return [
        BrokerType(
            name="rabbitmq-stream",
            target="offload_rabbitmq.broker:open_broker",
            schemes=("rabbitmq-stream", "rabbitmq-stream+tls"),
            needs="ledger-offload[broker]",
        )
    ]
