"""The client of every cloud backend, for tests on a server that a test names."""

from __future__ import annotations

from typing import Final

import pytest
from cloud.azure import AZURE
from cloud.gcs import GCS
from cloud.s3 import S3

CLIENTS: Final = {"s3": S3, "gcs": GCS, "azure": AZURE}

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
