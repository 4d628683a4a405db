"""Fixtures and order of all tests: each server starts once, and examples of Hypothesis have no deadline.

Several processes share all tests (`processes`), but a group stays in one of them: Spark's tests share a JVM,
and the tests of a server share one process of it. Neighbours in a file share the fixtures of their module.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from random import SystemRandom
from typing import Final

import pytest
from campaign import CAMPAIGN, LeftOut
from expected_failures import NoUnexpectedPass
from hypothesis import HealthCheck, settings
from processes import Processes
from servers import SERVERS, Running
from servers.metadata import BY_NAME
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

WITHOUT_JVM: Final = (
    "tests/spark/test_copy_progress.py",
    "tests/spark/test_filters.py",
    "tests/spark/test_framing.py",
    "tests/spark/test_java.py",
    "tests/spark/test_jobs.py::test_a_command_starts_spark_in_a_process_of_its_own",
    "tests/spark/test_options.py",
    "tests/spark/test_reading.py",
    "tests/spark/test_tailing.py",
    "tests/spark/test_transfer.py",
    "tests/spark/test_writing.py",
)
"""Tests beside those of Spark that any process may run, because they do not use the JVM of the others."""

ONE_SERVER: Final = (*(each.name for each in SERVERS), *BY_NAME)
"""Servers of object stores and metadata services. A test has the name of its server in its parameters."""

NEIGHBOURS: Final = 24
"""The number of tests of one file that go to a process together. With single tests, each process would make
the fixtures of each module; with whole files, the last of them would keep the others waiting.
"""

FRESH_SEED = "OFFLOAD_FRESH_SEED"
"""Names the first fresh seed of the simulation. A run draws one, unless this is set to repeat another run."""

# The time of an example depends on the machine and its load. No test here makes a claim about it.
# Every run draws other examples, so few of them in `make test` still find a bug within days.
settings.register_profile(
    "any machine",
    deadline=None,
    max_examples=100 if CAMPAIGN else 10,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of processes. With none, this process runs the tests."""
    group = parser.getgroup("processes")  # its public function refuses short names
    group._addoption("-n", "--processes", type=int, default=0, help="number of processes that run tests")


def pytest_configure(config: pytest.Config) -> None:
    """End every run with a table of servers and a count of what it left out; draw one fresh seed for all.

    A shell lets a job of `nohup` or `&` ignore SIGINT. Every process that a test starts would ignore it too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault(FRESH_SEED, str(SystemRandom().randrange(10**6, 10**9)))
    config.pluginmanager.register(ClosingTable(), "servers-closing-table")
    config.pluginmanager.register(LeftOut(), "left-out")
    config.pluginmanager.register(NoUnexpectedPass(), "no-unexpected-pass")
    if count := config.getoption("processes"):
        config.pluginmanager.register(Processes(count, groups_of), "processes")
    gc.disable()  # until all tests are collected: they only become more, and each pass would walk over all


def pytest_report_header() -> str:
    """Begin every run with the seed that repeats it."""
    return f"simulation: {FRESH_SEED}={os.environ[FRESH_SEED]}"


def group_of(nodeid: str) -> str | None:
    """Return the group of a test that only one process may run, None if any process may."""
    for prefix in ONE_PROCESS:
        if nodeid.startswith(prefix) and not nodeid.startswith(WITHOUT_JVM):
            return prefix
    parameters = nodeid.partition("[")[2]
    return next((name for name in ONE_SERVER if name in parameters), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the groups first, and Spark's before all others: they are long, and others fill the gaps."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and group_of(item.nodeid) != ONE_PROCESS[0]:
            raise pytest.UsageError(f"{item.nodeid} would start a second JVM: take it out of WITHOUT_JVM")
    rank = {ONE_PROCESS[0]: 0, None: 2}
    items.sort(key=lambda item: rank.get(group_of(item.nodeid), 1))


def groups_of(items: Sequence[pytest.Item]) -> list[list[int]]:
    """Return the numbers of the tests that stay in one process together: a group, or neighbours in a file."""
    groups, tests = defaultdict[str, list[int]](list), Counter[str]()
    for number, item in enumerate(items):
        file = item.nodeid.partition("::")[0]
        groups[group_of(item.nodeid) or f"{file} {tests[file] // NEIGHBOURS}"].append(number)
        tests[file] += 1
    return [*groups.values()]


def pytest_collection_finish() -> None:
    """Keep the collected tests out of garbage collection, which would walk over millions of objects.

    What is garbage among them stays: to find it would take a second in each process.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def running_servers() -> Iterator[Session]:
    """Return the servers that this run of pytest has started so far."""
    with Session() as session:
        yield session


@pytest.fixture(scope="session")
def running_server(request: pytest.FixtureRequest, running_servers: Session) -> Running:
    """Return a running server. Parametrize it indirectly, with `servers.servers_of`."""
    return running_servers.running(request.param)
