"""What every test of the S3 backend shares."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import botocore.session
import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_loader() -> Iterator[None]:
    """botocore reads two megabytes of JSON for each session anew; the hundreds of stores here, once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))
        yield
