"""Every client of every cloud backend, for tests on a server that a test names."""

from __future__ import annotations

from typing import Final

import pytest
from cloud.azure import AZURE, DIRECT_AZURE
from cloud.gcs import DIRECT_GCS, GCS
from cloud.s3 import S3

DIRECT_S3: Final = S3.given(client="direct")
SERVICES: Final = {"s3": S3, "gcs": GCS, "azure": AZURE}
"""The client of each backend that sends all calls."""

CLIENTS: Final = {
    "s3fs": S3,
    "s3-direct": DIRECT_S3,
    "gcsfs": GCS,
    "gcs-direct": DIRECT_GCS,
    "adlfs": AZURE,
    "azure-direct": DIRECT_AZURE,
}

DIRECT: Final = {"s3": DIRECT_S3, "gcs": DIRECT_GCS, "azure": DIRECT_AZURE}
"""The client of each backend that moves fragments by the byte transport."""

EACH_DIRECT: Final = pytest.mark.parametrize("client", DIRECT.values(), ids=list(DIRECT))
EACH_SERVICE: Final = pytest.mark.parametrize("client", SERVICES.values(), ids=list(SERVICES))
EACH_CLIENT: Final = pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))
EACH_CALL: Final = pytest.mark.parametrize(
    ("client", "call"),
    [
        pytest.param(client, call, id=f"{name}-{call.__name__}")
        for name, client in CLIENTS.items()
        for call in client.calls
    ],
)
"""Every call that is one request, by every client."""
