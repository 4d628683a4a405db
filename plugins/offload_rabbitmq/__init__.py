"""RabbitMQ streams: the broker's files as a source, and the AMQP 1.0 messages within."""

from offload_rabbitmq.amqp import AmqpMessage, data_bodies, decode, to_jsonable
from offload_rabbitmq.ledger import SegmentLedger
from offload_rabbitmq.samples import sample_path
from offload_rabbitmq.source import RabbitmqSource, RabbitmqStream, open_url

__all__ = [
    "AmqpMessage",
    "RabbitmqSource",
    "RabbitmqStream",
    "SegmentLedger",
    "data_bodies",
    "decode",
    "open_url",
    "sample_path",
    "to_jsonable",
]
