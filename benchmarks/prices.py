"""Public list prices of object stores, and what counted requests cost at them.

`PRICES` is the one place that holds a price. They change, and differ by region: whoever rests a decision on
one looks at the provider's own page first. Taxes, discounts, free allowances, and bytes that leave the
provider's region are left out. Invariant: no price stands here without its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one provider asks, in US dollars. Deletes are free with all three."""

    provider: str
    region: str
    write_per_1000: float
    list_per_1000: float
    read_per_1000: float
    storage_per_gib_month: float
    list_keys_max: int
    """Keys in one page of a listing."""
    known: str
    """The date of the source, and how sure the figure is."""
    source: str

    def of(self, *, writes: float, lists: float, reads: float, gib_months: float = 0.0) -> float:
        """What so many requests cost, and so many GiB kept for a month."""
        return (
            writes * self.write_per_1000 + lists * self.list_per_1000 + reads * self.read_per_1000
        ) / 1000 + gib_months * self.storage_per_gib_month


PRICES: Final = (
    Price(
        provider="AWS S3 Standard",
        region="us-east-1",
        write_per_1000=0.005,
        list_per_1000=0.005,
        read_per_1000=0.0004,
        storage_per_gib_month=0.023,
        list_keys_max=1000,
        known="undated third parties; one that read AWS' page on 2026-10-09 confirms the GET price, that a "
        "LIST costs as a PUT, and that deletes are free",
        source="c3x.dev/blog/s3-request-fees-explained; storage: several public notes, first 50 TB; "
        "see aws.amazon.com/s3/pricing",
    ),
    Price(
        provider="Google Cloud Storage Standard",
        region="us-central1",
        write_per_1000=0.005,
        list_per_1000=0.005,
        read_per_1000=0.0004,
        storage_per_gib_month=0.020,
        list_keys_max=1000,
        known="2026-09-20, as a third party copied it from Google's page: $0.000027397 a GiB-hour",
        source="api-evangelist/gcp-cloud-storage on GitHub; see cloud.google.com/storage/pricing",
    ),
    Price(
        provider="Azure Blob Storage hot, LRS",
        region="a sample",
        write_per_1000=0.0055,
        list_per_1000=0.0055,
        read_per_1000=0.00044,
        storage_per_gib_month=0.0208,
        list_keys_max=5000,
        known="2024-07-26; Microsoft calls them fictitious samples; a public note has $0.065 and $0.005 per "
        "10,000, and $0.018 a GB: real list prices were not found",
        source="Microsoft's article 'Estimate the cost of using Azure Blob Storage'; "
        "see azure.microsoft.com/pricing/details/storage/blobs",
    ),
)
