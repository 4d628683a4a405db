"""Buckets of rabbitmq-stream-s3: the objects that RabbitMQ's plugin for a tier in S3 writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_rabbitmq_s3.catalogue import RabbitmqS3Catalogue
    from offload_rabbitmq_s3.keys import RabbitmqKey
    from offload_rabbitmq_s3.objects import RabbitmqManifest

__all__ = ["RabbitmqKey", "RabbitmqManifest", "RabbitmqS3Catalogue"]

_HOMES = {
    "RabbitmqKey": "offload_rabbitmq_s3.keys",
    "RabbitmqManifest": "offload_rabbitmq_s3.objects",
    "RabbitmqS3Catalogue": "offload_rabbitmq_s3.catalogue",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
