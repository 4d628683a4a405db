"""Pulsar's tiered storage: the objects that Pulsar's brokers write to buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_pulsar.bucket import FoundAttempt, PulsarBucket
    from offload_pulsar.catalogue import PulsarCatalogue
    from offload_pulsar.ledger import PulsarLedger
    from offload_pulsar.ledger_metadata import LedgerInfo, LedgerMetadata, OffloadContext, managed_ledger_info
    from offload_pulsar.names import BrokerNames, PulsarKey
    from offload_pulsar.source import PulsarSource
    from offload_pulsar.verifying import BucketReport, verify_bucket

__all__ = [
    "BrokerNames",
    "BucketReport",
    "FoundAttempt",
    "LedgerInfo",
    "LedgerMetadata",
    "OffloadContext",
    "PulsarBucket",
    "PulsarCatalogue",
    "PulsarKey",
    "PulsarLedger",
    "PulsarSource",
    "managed_ledger_info",
    "verify_bucket",
]

_HOMES = {
    "BrokerNames": "offload_pulsar.names",
    "BucketReport": "offload_pulsar.verifying",
    "FoundAttempt": "offload_pulsar.bucket",
    "LedgerInfo": "offload_pulsar.ledger_metadata",
    "LedgerMetadata": "offload_pulsar.ledger_metadata",
    "OffloadContext": "offload_pulsar.ledger_metadata",
    "PulsarBucket": "offload_pulsar.bucket",
    "PulsarCatalogue": "offload_pulsar.catalogue",
    "PulsarKey": "offload_pulsar.names",
    "PulsarLedger": "offload_pulsar.ledger",
    "PulsarSource": "offload_pulsar.source",
    "managed_ledger_info": "offload_pulsar.ledger_metadata",
    "verify_bucket": "offload_pulsar.verifying",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
