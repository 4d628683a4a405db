"""Tests of what is left to the campaign: how many cases of `few` stay, which, and what is counted."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

import campaign as campaigns
import pytest
from campaign import SHARES, LeftOut, campaign, few, leave_cases

SUITE: Final = '''
import pytest
from campaign import campaign, few, keeping

@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=campaign("server")), 3, 4])
def number(request):
    return request.param

@pytest.mark.parametrize("letter", keeping("ab", "abcd", "letters"))
def test_letters(letter):
    """Some cases stay."""

@few("numbers", 2)
@pytest.mark.parametrize("letter", "abc")
def test_a_few(number, letter):
    """Some cases stay of those that no server leaves."""

@campaign("slow")
def test_slow(number):
    """A reason of the test is before that of a case."""

@campaign("one")
def test_one():
    """No case, so no parameters."""

@campaign("class")
class TestInherited:
    def test_left(self, number):
        """A reason of a case is before that of the class."""

    @pytest.mark.parametrize("whole", [1, 2])
    def test_whole(self, whole):
        """All cases are left for one reason."""

class TestGenerated:
    @few("generated", 3)
    def test_drawn(self, drawn):
        """The class makes the cases."""

    def pytest_generate_tests(self, metafunc):
        if "drawn" in metafunc.fixturenames:
            metafunc.parametrize("drawn", range(7))
'''
"""Tests that are left to the campaign for each kind of reason."""


class Case:
    """A collected test with its marks, as far as `leave_cases` asks for them."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self.marks = nodeid, {each.name: each.mark for each in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark.mark


def kept(cases: list[Case]) -> list[int]:
    """Return the numbers of the cases that `make test` runs."""
    leave_cases(cases)  # type: ignore[arg-type]
    return [number for number, case in enumerate(cases) if "campaign" not in case.marks]


def cases(count: int, mark: pytest.MarkDecorator, name: str = "test_a") -> list[Case]:
    return [Case(f"file.py::{name}[{number}]", mark) for number in range(count)]


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("every", range(1, 5))
def test_every_start_keeps_some_cases_and_all_starts_together_keep_all(count: int, every: int) -> None:
    found = [kept(cases(count, few("", every, start=start))) for start in range(every)]

    assert all(found)
    assert {number for each in found for number in each} == set(range(count))
    assert max(map(len, found)) <= -(-count // min(count, every))


def test_each_test_keeps_its_own_cases_and_a_whole_one_all() -> None:
    mark = few("", 3, whole=("test_b",))

    assert kept([*cases(4, mark), *cases(4, mark, "test_b")]) == [0, 3, 4, 5, 6, 7]


def test_cases_of_the_campaign_do_not_count() -> None:
    found = cases(4, few("", 2))
    found[0].add_marker(campaign("another server"))

    assert kept(found) == [1, 3]


class Seen:
    """A plugin of pytest that keeps the names of the tests that a run would run, and counts all items."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.items = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.kept = sorted(item.nodeid for item in session.items)


def collected(folder: Path, *options: str) -> tuple[Seen, list[str]]:
    """Collect the suite. Return what was seen, and the lines of its end that count what is left."""
    seen, out = Seen(), StringIO()
    argv = ["--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", f"-c{folder}/pytest.ini"]
    with redirect_stdout(out):
        code = pytest.main([*argv, *options, str(folder)], plugins=[seen, LeftOut()])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), out.getvalue()
    _, left, counts = out.getvalue().partition("left to the campaign: ")
    assert left
    return seen, sorted(line for line in counts.splitlines() if line.startswith("  "))


def test_a_whole_run_keeps_and_counts_what_a_selecting_one_does_with_fewer_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "CAMPAIGN", False)
    monkeypatch.setattr(campaigns, "SHARE", None)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "test_suite.py").write_text(SUITE)

    selecting, left_of_selecting = collected(tmp_path, "-k", "test")
    whole, left_of_whole = collected(tmp_path)

    assert whole.kept == selecting.kept
    assert left_of_whole == left_of_selecting
    assert {"     4  slow", "     1  one", "     4  server", "     5  class"} < set(left_of_whole)
    assert (len(whole.kept), whole.items, selecting.items) == (10, 14, 34)


def test_a_share_runs_alone_or_with_the_ordinary_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "CAMPAIGN", False)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    found: dict[str | None, list[str]] = {}
    for share in (None, *map(str, range(SHARES)), "+3", "+23"):
        monkeypatch.setattr(campaigns, "SHARE", share)
        found[share] = collected(tmp_path)[0].kept

    alone = [found[str(number)] for number in range(SHARES)]
    assert sum(map(len, alone)) == len({name for each in alone for name in each}) == 24
    assert not {*found[None]} & {name for each in alone for name in each}
    assert found["+3"] == found["+23"] == sorted(found[None] + found["3"])
