"""Servers for tests: each is started once, when the first test needs it; the closing table tells of all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Running
from servers.session import Session
from servers.table import ClosingTable


def pytest_configure(config: pytest.Config) -> None:
    """Every run of pytest ends with the table."""
    config.pluginmanager.register(ClosingTable(), "servers-closing-table")


@pytest.fixture(scope="session")
def running_servers() -> Iterator[Session]:
    """The servers that this run of pytest has started so far."""
    with Session() as session:
        yield session


@pytest.fixture(scope="session")
def running_server(request: pytest.FixtureRequest, running_servers: Session) -> Running:
    """The server of this name, running. Parametrize it indirectly, by `servers.servers_of`."""
    return running_servers.running(request.param)
