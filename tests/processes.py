"""Run the tests in several processes that share one collection: `pytest --processes 6`.

A collection imports hundreds of modules and makes thousands of tests. If each process collected for itself,
that would be a tenth of the CPU of a run. So one process collects, and then forks: its children have the
tests already. They ask for groups of tests, and the parent reports what they send as if it had run the tests.

A fork copies the thread that forks, and no other one. So a run ends with an error if a module starts a thread
when it is imported. What a module notes of its process, such as the number of it, is that of the parent.

This uses internals of pytest, for which it has no public function: the folder of `tmp_path_factory`, and the
capture of output. If they change, `tests/test_processes.py` fails.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import pytest

SECONDS_MAX: Final = 60
"""How long a child may take to end its fixtures after it was interrupted."""

Group = list[int]
"""The numbers of tests that run one after the other in one process."""


class Child:
    """A process that runs tests, as the parent knows it."""

    def __init__(self, run: Callable[[Connection], None]) -> None:
        context = multiprocessing.get_context("fork")
        self.connection, end = context.Pipe()
        self.process = context.Process(target=run, args=(end,))
        self.process.start()
        end.close()
        self.given: deque[int] = deque()
        """The tests that it was given and has not finished."""


class Processes:
    """A plugin of pytest that runs the tests in `count` children. `groups_of` says which stay together."""

    def __init__(self, count: int, groups_of: Callable[[Sequence[pytest.Item]], list[Group]]) -> None:
        self._count, self._groups_of = count, groups_of

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests, in the order of their groups."""
        if session.config.option.collectonly or not session.items or session.testsfailed:
            return None  # pytest's own loop does what is due
        if others := [each.name for each in threading.enumerate() if each is not threading.main_thread()]:
            raise pytest.UsageError(f"a fork would lose the threads of imported modules: {others}")
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # the children share it
        sys.stdout.flush()
        groups = deque(self._groups_of(session.items))
        children = list[Child]()
        try:
            for number in range(min(self._count, len(groups))):
                children.append(Child(partial(_live, session, number)))
            self._serve(session, groups, children)
        finally:
            _end(children)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True

    def _serve(self, session: pytest.Session, groups: deque[Group], children: list[Child]) -> None:
        """Give out groups and report, until all children have ended."""
        hook, config = session.config.hook, session.config
        living = {child.connection: child for child in children}
        while living:
            for ready in wait(list(living)):
                child = living[ready]  # type: ignore[index]
                try:
                    message = child.connection.recv()
                except (EOFError, ConnectionResetError):
                    del living[child.connection]
                    self._report_lost(session, child)
                    continue
                match message:
                    case "ask":
                        is_over = session.shouldfail or session.shouldstop
                        group = groups.popleft() if groups and not is_over else None
                        child.given += group or ()
                        child.connection.send(group)
                    case "done":
                        child.given.popleft()
                    case dict():
                        report = hook.pytest_report_from_serializable(config=config, data=message)
                        hook.pytest_runtest_logreport(report=report)

    def _report_lost(self, session: pytest.Session, child: Child) -> None:
        """Fail the tests of a child that has ended without an answer."""
        child.process.join(SECONDS_MAX)
        lost = [] if session.shouldfail else [session.items[number] for number in child.given]
        for item in lost:
            text = f"its process ended with code {child.process.exitcode} in {lost[0].nodeid}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            session.config.hook.pytest_runtest_logreport(report=report)


def _end(children: Sequence[Child]) -> None:
    """Wait for the children. If this process was interrupted, interrupt them, and they end their fixtures."""
    if sys.exc_info()[0] is not None:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child.process.pid or 0, signal.SIGINT)
    for child in children:
        child.process.join(SECONDS_MAX)
        child.process.kill()


def _live(session: pytest.Session, number: int, parent: Connection) -> None:
    """Run tests in a child until the parent has no more."""
    config = session.config
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Sender(config, parent))
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are the parent's
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._given_basetemp, factory._basetemp = factory.getbasetemp() / f"process-{number}", None

    def asked() -> Group:
        parent.send("ask")
        return parent.recv() or []

    group = asked()
    try:
        while group and not session.shouldfail:
            following: Group = []
            for at, test in enumerate(group):
                if at + 1 == len(group):
                    following = (
                        asked()
                    )  # before the last test, which keeps the fixtures that the next one needs
                ahead = [*group[at + 1 :], *following]
                item, next_item = session.items[test], session.items[ahead[0]] if ahead else None
                config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
                parent.send("done")
            group = following
    except (KeyboardInterrupt, BrokenPipeError, EOFError):
        pass
    finally:
        session._setupstate.teardown_exact(None)
        atexit._run_exitfuncs()


class _Sender:
    """A plugin of a child that sends its reports."""

    def __init__(self, config: pytest.Config, parent: Connection) -> None:
        self._config, self._parent = config, parent

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._parent.send(data)
