"""Leave slow tests to the campaign, draw CI's share of them, and count what a run leaves out.

A test marked `campaign("reason")` runs under `make campaign`. `make share` runs one of `SHARES` parts of
these tests, and `make test-and-share` runs it with all others. The day chooses the part, so all parts run
within `SHARES` days. Every other run leaves these tests out and says how many, by reason. The name of a test
alone decides to which share it belongs.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from functools import wraps
from hashlib import sha256
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")

CAMPAIGN: Final = bool(os.environ.get("OFFLOAD_CAMPAIGN"))
"""True under `make campaign`: every test runs, and walks go on for longer."""

SHARE: Final = os.environ.get("OFFLOAD_SHARE")
"""The number of the share that runs: alone (`7`), or with all that `make test` runs (`+7`). 27 is 7 again."""

SHARES: Final = 20


def campaign(reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test that runs only in the campaign and in CI's share.

    `reason` says what `make test` keeps of the claim, or why it keeps nothing.
    """
    return pytest.mark.campaign(reason)


def keeping(
    kept: Container[T], values: Iterable[T], reason: str, *, id_: Callable[[T], str] = str
) -> list[Any]:
    """Return `values` for `pytest.mark.parametrize`: all that are not in `kept` are left to the campaign."""
    left = campaign(reason)
    return [pytest.param(each, id=id_(each), marks=() if each in kept else left) for each in values]


def leaving(reason: str, *names: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator of a test class that leaves these inherited tests to the campaign."""

    def left(inherited: Callable[..., None]) -> Callable[..., None]:
        @campaign(reason)
        @wraps(inherited)  # pytest reads the fixtures of the original
        def test(*arguments: Any, **fixtures: Any) -> None:
            inherited(*arguments, **fixtures)

        return test

    def decorate(cls: type[T]) -> type[T]:
        for name in names:
            setattr(cls, name, left(getattr(cls, name)))
        return cls

    return decorate


def some(reason: str, every: int, *, start: int = 0) -> Callable[[type[T]], type[T]]:
    """Return a decorator of a test class that leaves all but one of `every` of its tests to the campaign.

    The tests count in the order of their names. Classes with the same clauses and another `start` keep other
    clauses, so `every` such classes keep all.
    """

    def decorate(cls: type[T]) -> type[T]:
        names = sorted(name for name in dir(cls) if name.startswith("test"))
        return leaving(reason, *(name for at, name in enumerate(names) if at % every != start))(cls)

    return decorate


def few(reason: str, every: int, *, start: int = 0, whole: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Return the mark of parametrized tests that keep one of `every` cases each, and at least one case.

    The other cases are left to the campaign. Classes with the same clauses and another `start` keep other
    cases, so `every` such classes keep all. The tests named in `whole` keep every case.
    """
    return pytest.mark.few(reason, every, start, whole)


def leave_cases(items: Iterable[pytest.Item]) -> None:
    """Mark the cases that `few` does not keep for the campaign. Cases with that mark do not count."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("campaign"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for name, each in cases.items():
        mark = each[0].get_closest_marker("few")
        assert mark is not None
        for item in left_of(each, mark, name.rpartition("::")[2]):
            item.add_marker(campaign(mark.args[0]))


def left_of(cases: Sequence[T], mark: pytest.Mark, name: str) -> list[T]:
    """Return the cases that the mark `few` of the test leaves to the campaign."""
    _, every, start, whole = mark.args
    if name in whole:
        return []
    return [case for number, case in enumerate(cases) if number % every != start % min(every, len(cases))]


def is_drawn(nodeid: str, share: int) -> bool:
    """Return whether the test belongs to this share."""
    return int(sha256(nodeid.encode()).hexdigest(), 16) % SHARES == share % SHARES


def leave_calls(metafunc: pytest.Metafunc) -> Counter[str]:
    """Drop the cases of a test that are left to the campaign before they become items. Return them by reason.

    If all cases are left, one stays: pytest would take a test without cases for one without parameters.

    This uses an internal of pytest, the list of planned cases, for which it has no public function. If it
    changes, `tests/test_campaign.py` fails.
    """
    definition, calls = metafunc.definition, metafunc._calls
    own, closest = _reason(definition.own_markers), _reason(definition.iter_markers())
    reasons = [own or _reason(call.marks) or closest for call in calls]
    mark = definition.get_closest_marker("few")
    if mark is not None:
        asked = [number for number, reason in enumerate(reasons) if reason is None]
        for number in left_of(asked, mark, definition.name):
            reasons[number] = mark.args[0]
    kept = [call for call, reason in zip(calls, reasons, strict=True) if reason is None]
    if calls and not kept:
        kept, reasons = calls[:1], reasons[1:]
    metafunc._calls = kept
    return Counter(filter(None, reasons))


def _reason(marks: Iterable[pytest.Mark]) -> str | None:
    return next((mark.args[0] for mark in marks if mark.name == "campaign"), None)


def is_ordinary(config: pytest.Config) -> bool:
    """Return whether this run, like `make test`, has all tests of its files but those of the campaign.

    If a run selects by name or mark, only pytest knows which tests it selects.
    """
    selects = config.option.keyword or config.option.markexpr or any("::" in each for each in config.args)
    return not (CAMPAIGN or SHARE is not None or selects)


class LeftOut:
    """A plugin of pytest: leaves tests to the campaign and reports all that did not run."""

    def __init__(self) -> None:
        self._left: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> Generator[None]:
        """Make no items of most cases that are left: they are half of all."""
        yield
        if is_ordinary(metafunc.config):
            self._left += leave_calls(metafunc)

    @pytest.hookimpl(trylast=True)  # `-k` and `-m` select first: the counts are of the rest
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests that this run is for."""
        if not is_ordinary(config):
            leave_cases(items)
        if CAMPAIGN:
            return
        kept, left = [], []
        for item in items:
            mark = item.get_closest_marker("campaign")
            if mark is None:
                wanted = SHARE is None or SHARE.startswith("+")
            else:
                wanted = SHARE is not None and is_drawn(item.nodeid, int(SHARE))
            (kept if wanted else left).append(item)
            if mark is not None and not wanted:
                self._left[mark.args[0]] += 1
        items[:] = kept
        config.hook.pytest_deselected(items=left)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a skipped test by its reason."""
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print one line for each reason, the most frequent first."""
        for title, counts in (("left to the campaign", self._left), ("skipped", self._skipped)):
            if counts:
                terminalreporter.section(f"{title}: {counts.total()} tests")
                for reason, count in counts.most_common():
                    terminalreporter.write_line(f"{count:6}  {reason}")
