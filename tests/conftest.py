"""For all tests: servers, each started once, when the first test needs it; and Hypothesis, without a clock.

The closing table tells of all servers.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from servers import Running
from servers.session import Session
from servers.table import ClosingTable

# How long an example takes is a matter of the machine and what else it does, and no claim of any test here.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


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
