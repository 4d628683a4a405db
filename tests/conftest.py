"""For all tests: servers, each started once, when the first test needs it; and Hypothesis, without a clock.

The closing table tells of all servers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from servers import Running
from servers.session import Session
from servers.table import ClosingTable

SPARK = Path(__file__).parent / "spark"

FRESH_SEED = "OFFLOAD_FRESH_SEED"
"""Names the first fresh seed of the simulation. A run draws one, unless this is set to repeat another run."""

# How long an example takes is a matter of the machine and what else it does, and no claim of any test here.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Every run of pytest ends with the table, and its processes share one draw of fresh seeds."""
    os.environ.setdefault(FRESH_SEED, str(SystemRandom().randrange(10**6, 10**9)))
    config.pluginmanager.register(ClosingTable(), "servers-closing-table")


def pytest_report_header() -> str:
    """Every run begins with the seed that repeats it."""
    return f"simulation: {FRESH_SEED}={os.environ[FRESH_SEED]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests come first: they are one long chain in one process, beside which all others have room."""
    items.sort(key=lambda item: SPARK not in item.path.parents)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Spark's tests share one process, and so one session; any other test goes to whichever is free."""
    from xdist.scheduler import LoadScopeScheduling

    class OneChain(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith("tests/spark/") else nodeid

    return OneChain(config, log)


@pytest.fixture(scope="session")
def running_servers() -> Iterator[Session]:
    """The servers that this run of pytest has started so far."""
    with Session() as session:
        yield session


@pytest.fixture(scope="session")
def running_server(request: pytest.FixtureRequest, running_servers: Session) -> Running:
    """The server of this name, running. Parametrize it indirectly, by `servers.servers_of`."""
    return running_servers.running(request.param)
