"""Tests of the mark `few`: how many cases `make test` keeps, and which."""

from __future__ import annotations

import pytest
from campaign import campaign, few, leave_cases


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
