"""Tests of errors on the wire: one document for each class, by what the caller does next."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from offload.ground import errors
from offload.ground.errors import (
    Corrupt,
    Diverged,
    Divergence,
    OffloadError,
    StreamDeleted,
    Throttled,
    TryAgain,
)
from offload.showing.errors import PROBLEMS, problem_of, retry_seconds

API = Path(__file__).parents[2] / "docs" / "api.md"
CLASSES = [
    each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, OffloadError)
]


def test_each_class_has_a_status_and_a_type_of_its_own() -> None:
    assert set(PROBLEMS) == set(CLASSES)
    assert len({row.name for row in PROBLEMS.values()}) == len(PROBLEMS)


def test_the_page_has_the_status_and_the_type_of_each_class() -> None:
    page = API.read_text(encoding="utf-8").partition("\n## Errors\n")[2]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) `([\w-]+)` \|$", page, re.MULTILINE)

    assert {(name, int(status), word) for name, status, word in rows} == {
        (each.__name__, row.status, row.name) for each, row in PROBLEMS.items()
    }


def test_no_error_claims_that_the_service_itself_is_broken() -> None:
    assert 500 not in {row.status for row in PROBLEMS.values()}


def test_damage_names_its_object_and_its_position() -> None:
    damage = Corrupt("trailer", "orders/1.fragment", expected=1, found=b"\xff", position=7, stream="orders")

    document = json.loads(json.dumps(problem_of(damage)))
    assert document == {
        "type": "/problems/corrupt",
        "title": PROBLEMS[Corrupt].title,
        "status": 502,
        "detail": str(damage),
        "object": "orders/1.fragment",
        "position": 7,
        "stream": "orders",
    }


def test_an_error_of_a_third_party_has_the_document_of_its_base() -> None:
    class Backoff(TryAgain):
        pass

    assert problem_of(Backoff("later"))["type"] == "/problems/try-again"
    assert problem_of(StreamDeleted("gone"))["status"] == 410
    assert problem_of(Diverged("a gap", kind=Divergence.GAP))["kind"] == "gap"


@pytest.mark.parametrize(
    ("error", "pause_seconds"),
    [
        (TryAgain("busy"), 5),
        (Throttled("slow down", 0.2), 1),
        (Throttled("slow down", float("inf")), 3600),
        (Throttled("slow down", float("nan")), 5),
        (Throttled("slow down", -1), 5),
        (OffloadError("no"), None),
    ],
)
def test_a_caller_is_told_when_to_try_again(error: OffloadError, pause_seconds: int | None) -> None:
    assert retry_seconds(error) == pause_seconds
