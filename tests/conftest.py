"""Fixtures and order of all tests: each server starts once, and examples of Hypothesis have no deadline.

The processes of pytest-xdist share all tests, but a group stays in one process: Spark's tests share one JVM,
and the tests of a server share one process of it.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from random import SystemRandom
from typing import Any, Final

import pytest
from campaign import CAMPAIGN, LeftOut
from hypothesis import HealthCheck, settings
from servers import SERVERS, Running
from servers.session import Session
from servers.table import ClosingTable

ONE_PROCESS: Final = (
    "tests/spark/",
    "tests/packaging/test_example_backend.py",
    "tests/packaging/test_example_offloader.py",
    "tests/packaging/test_wheel.py",
    "tests/conformance_box/test_black_box.py",
    "tests/cli/test_crash.py",
)
"""Tests that share something slow to make: a JVM, an installation, a whole run. The longest is first."""

FRESH_SEED = "OFFLOAD_FRESH_SEED"
"""Names the first fresh seed of the simulation. A run draws one, unless this is set to repeat another run."""

# The time of an example depends on the machine and its load. No test here makes a claim about it.
# Every run draws other examples, so few of them in `make test` still find a bug within days.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=100 if CAMPAIGN else 30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """End every run with a table of servers and a count of what it left out; draw one fresh seed for all.

    A shell lets a job of `nohup` or `&` ignore SIGINT. Every process that a test starts would ignore it too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault(FRESH_SEED, str(SystemRandom().randrange(10**6, 10**9)))
    config.pluginmanager.register(ClosingTable(), "servers-closing-table")
    config.pluginmanager.register(LeftOut(), "left-out")


def pytest_report_header() -> str:
    """Begin every run with the seed that repeats it."""
    return f"simulation: {FRESH_SEED}={os.environ[FRESH_SEED]}"


def group_of(nodeid: str) -> str | None:
    """Return the group of a test that only one process may run, None if any process may."""
    for prefix in ONE_PROCESS:
        if nodeid.startswith(prefix):
            return prefix
    parameters = nodeid.partition("[")[2]
    return next((each.name for each in SERVERS if each.name in parameters), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the groups first, and Spark's before all others: they are long, and others fill the gaps."""
    rank = {ONE_PROCESS[0]: 0, None: 2}
    items.sort(key=lambda item: rank.get(group_of(item.nodeid), 1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each group to one process, and any other test to the first process that is free.

    `--dist loadgroup` of pytest-xdist 3.8 has no effect on pytest 9.2, which ignores that it renames tests.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or nodeid

    return Groups(config, log)


def pytest_collection_finish() -> None:
    """Keep the collected tests out of garbage collection, which would walk over millions of objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def running_servers() -> Iterator[Session]:
    """Return the servers that this run of pytest has started so far."""
    with Session() as session:
        yield session


@pytest.fixture(scope="session")
def running_server(request: pytest.FixtureRequest, running_servers: Session) -> Running:
    """Return a running server. Parametrize it indirectly, with `servers.servers_of`."""
    return running_servers.running(request.param)
