"""The fixture `metadata_server`: each metadata service in turn, one for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.metadata import BY_NAME, USER, MetadataServer, served


@pytest.fixture(autouse=True)
def database_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name the user of PostgreSQL, as an operator does."""
    monkeypatch.setenv("PGUSER", USER)


@pytest.fixture(scope="session", params=list(BY_NAME))
def metadata_server(request: pytest.FixtureRequest) -> Iterator[MetadataServer]:
    with served(request.param) as server:
        yield server


@pytest.fixture(params=list(BY_NAME))
def own_server(request: pytest.FixtureRequest) -> Iterator[MetadataServer]:
    """Return a service that only this test uses, to freeze, kill and fill."""
    with served(request.param) as server:
        yield server
