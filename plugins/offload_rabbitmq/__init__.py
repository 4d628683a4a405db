"""RabbitMQ streams: the broker's files as a source, and the AMQP 1.0 messages in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_rabbitmq.amqp import AmqpMessage, data_bodies, decode, to_jsonable
    from offload_rabbitmq.samples import sample_path
    from offload_rabbitmq.source import RabbitmqSource, RabbitmqStream, open_url

__all__ = [
    "AmqpMessage",
    "RabbitmqSource",
    "RabbitmqStream",
    "data_bodies",
    "decode",
    "open_url",
    "sample_path",
    "to_jsonable",
]

_HOMES = {
    "AmqpMessage": "offload_rabbitmq.amqp",
    "RabbitmqSource": "offload_rabbitmq.source",
    "RabbitmqStream": "offload_rabbitmq.source",
    "data_bodies": "offload_rabbitmq.amqp",
    "decode": "offload_rabbitmq.amqp",
    "open_url": "offload_rabbitmq.source",
    "sample_path": "offload_rabbitmq.samples",
    "to_jsonable": "offload_rabbitmq.amqp",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
