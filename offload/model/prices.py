"""Public list prices of object stores, and the cost of counted requests at these prices.

`PRICES` is the only place that has a price. Prices change, and differ by region: before you decide by one,
check the provider's own page. Taxes, discounts, free allowances, and bytes that leave the provider's region
are not included. Invariant: every price here has its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

__all__ = ["GIB", "PRICES", "Price"]


GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The prices of one provider in US dollars. Deletes are free with all three."""

    schemes: tuple[str, ...]
    """The schemes of the URLs of its stores."""

    hosts: tuple[str, ...]
    """The domains of its own endpoints. A server elsewhere has prices of its own."""

    provider: str
    region: str
    write_per_1000: float
    list_per_1000: float
    read_per_1000: float
    storage_per_gib_month: float
    list_keys_max: int
    """The most keys in one page of a listing."""
    known: str
    """The date of the source, and how sure the figure is."""
    source: str

    def of(self, *, writes: float, lists: float, reads: float, gib_months: float = 0.0) -> float:
        """Return the cost of so many requests, and of so many GiB stored for a month."""
        return (
            writes * self.write_per_1000 + lists * self.list_per_1000 + reads * self.read_per_1000
        ) / 1000 + gib_months * self.storage_per_gib_month


def price_of(scheme: str | None, endpoint: str | None = None) -> Price | None:
    """Return the prices of the stores of this scheme, or None if there are none: a folder costs nothing.

    `endpoint` is the URL of the server, if it is named. Prices of a server that is not the provider's own are
    not known.
    """
    found = next((price for price in PRICES if scheme in price.schemes), None)
    if found is None or endpoint is None:
        return found
    host = f".{urlsplit(endpoint).hostname or ''}"
    return found if any(host.endswith(f".{domain}") for domain in found.hosts) else None


PRICES: Final = (
    Price(
        schemes=("s3",),
        hosts=("amazonaws.com", "amazonaws.com.cn"),
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
        schemes=("gs", "gcs"),
        hosts=("googleapis.com",),
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
        schemes=("az", "abfs", "abfss"),
        hosts=("windows.net", "azure.net", "chinacloudapi.cn"),
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
