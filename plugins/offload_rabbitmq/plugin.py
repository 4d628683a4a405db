"""The declarations of the RabbitMQ plugin. Imports nothing of the source itself."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.plugin import (
    BrokerType,
    Command,
    DecoderType,
    ListenerType,
    SourceType,
    TargetType,
    hookimpl,
)

QUEUES = "ledger-offload[queues]"


@hookimpl
def offload_sources() -> Sequence[SourceType]:
    """Declare RabbitMQ's files on disk as sources: streams, and classic queues."""
    return [
        SourceType(
            name="rabbitmq",
            target="offload_rabbitmq.source:open_url",
            schemes=("rabbitmq",),
            sample="offload_rabbitmq.samples:sample_path",
        ),
        SourceType(
            name="rabbitmq-queues",
            target="offload_rabbitmq.queues.source:open_url",
            schemes=("rabbitmq-queues",),
            needs=QUEUES,
        ),
    ]


@hookimpl
def offload_targets() -> Sequence[TargetType]:
    """Declare streams of a running broker, and the folder of a stopped one, as places to restore to."""
    return [
        TargetType(
            name="rabbitmq-stream",
            target="offload_rabbitmq.stream_target:open_url",
            schemes=("rabbitmq-stream", "rabbitmq-stream+tls"),
            options=(
                "initial-cluster-size",
                "max-age",
                "max-length-bytes",
                "queue-leader-locator",
                "stream-filter-size-bytes",
                "stream-max-segment-size-bytes",
            ),
        ),
        TargetType(
            name="rabbitmq-files",
            target="offload_rabbitmq.folder_target:open_url",
            schemes=("rabbitmq",),
            options=("epoch-max", "segment-size-bytes"),
            is_folder=True,
        ),
    ]


@hookimpl
def offload_decoders() -> Sequence[DecoderType]:
    """Declare decoders of AMQP 1.0, which RabbitMQ's stream clients store, and of messages in queues."""
    return [
        DecoderType(name="amqp", target="offload_rabbitmq.decoder:AmqpDecoder", java="amqp-1.0"),
        DecoderType(name="amqp091", target="offload_rabbitmq.queues.decoder:Amqp091Decoder", needs=QUEUES),
    ]


@hookimpl
def offload_brokers() -> Sequence[BrokerType]:
    """Declare RabbitMQ's stream port, which says what is committed and which node leads."""
    return [
        BrokerType(
            name="rabbitmq-stream",
            target="offload_rabbitmq.broker:open_broker",
            schemes=("rabbitmq-stream", "rabbitmq-stream+tls"),
        )
    ]


@hookimpl
def offload_listeners() -> Sequence[ListenerType]:
    """Declare a server for the clients of RabbitMQ's streams."""
    return [
        ListenerType(
            name="rabbitmq-stream",
            target="offload_rabbitmq.server.listener:open_listener",
            schemes=("rabbitmq-stream", "rabbitmq-stream+tls"),
        )
    ]


@hookimpl
def offload_commands() -> Sequence[Command]:
    """Declare the commands `offload queues …` and `offload users add`."""
    return [
        Command(
            name="queues",
            target="offload_rabbitmq.queues.commands:app",
            needs=QUEUES,
            help="Rescue the classic queues of a stopped RabbitMQ node.",
        ),
        Command(
            name="users",
            target="offload_rabbitmq.users_command:app",
            help="Say who may log in to `offload serve`.",
        ),
    ]
