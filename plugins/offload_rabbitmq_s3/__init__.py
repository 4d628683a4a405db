"""Buckets of rabbitmq-stream-s3: the objects that RabbitMQ's plugin for a tier in S3 writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_rabbitmq_s3.catalogue import RabbitmqS3Catalogue
    from offload_rabbitmq_s3.exporting import RabbitmqS3Export
    from offload_rabbitmq_s3.keys import RabbitmqKey
    from offload_rabbitmq_s3.objects import RabbitmqManifest
    from offload_rabbitmq_s3.scanning import RabbitmqS3Scan, scan_bucket
    from offload_rabbitmq_s3.source import RabbitmqS3Source

__all__ = [
    "RabbitmqKey",
    "RabbitmqManifest",
    "RabbitmqS3Catalogue",
    "RabbitmqS3Export",
    "RabbitmqS3Scan",
    "RabbitmqS3Source",
    "scan_bucket",
]

_HOMES = {
    "RabbitmqKey": "offload_rabbitmq_s3.keys",
    "RabbitmqManifest": "offload_rabbitmq_s3.objects",
    "RabbitmqS3Catalogue": "offload_rabbitmq_s3.catalogue",
    "RabbitmqS3Export": "offload_rabbitmq_s3.exporting",
    "RabbitmqS3Scan": "offload_rabbitmq_s3.scanning",
    "RabbitmqS3Source": "offload_rabbitmq_s3.source",
    "scan_bucket": "offload_rabbitmq_s3.scanning",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
