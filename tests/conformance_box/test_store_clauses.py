"""The larger clauses of stores: their size, and draws that a seed repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from campaign import campaign
from conformance_box.installed import Site, box, outcomes
from conformance_box.test_black_box import broken
from offload_conformance.store.parts import GIB, PARTS, PARTS_MIN, Plan

from offload.contracts.capabilities import Capabilities

MODEL = "store/any_calls_answer_as_a_dictionary_would"
MANY = "store/uploads_may_have_many_parts"
MIB = 2**20

REMEMBERS_SIZES = """
    async def put(self, key, body):
        await super().put(key, body)
        globals().setdefault("SIZES", []).append(body.size_bytes)
"""

FORGETS = """
    async def delete(self, keys):
        await super().delete(keys[:2])
"""


def clause(report: dict[str, Any], name: str) -> dict[str, Any]:
    [found] = [each for each in report["clauses"] if each["id"] == name]
    return found  # type: ignore[no-any-return]


def capabilities(part_size_bytes_min: int) -> Capabilities:
    return Capabilities(
        atomic_create=True, strong_listing=True, multipart=True, part_size_bytes_min=part_size_bytes_min
    )


@pytest.mark.parametrize(
    ("part_size_bytes_min", "wanted", "plan"),
    [
        (1, 0, Plan(PARTS, 16)),
        (5 * MIB, 0, Plan(PARTS_MIN, 5 * MIB)),
        (100 * MIB, 0, Plan(PARTS_MIN, 100 * MIB)),
        (1, 5 * GIB, Plan(PARTS, 5 * MIB)),
        (5 * MIB, 5 * GIB, Plan(PARTS, 5 * MIB)),
        (5 * MIB, GIB, Plan(204, 5 * MIB)),
    ],
)
def test_an_upload_has_as_many_parts_as_allowed_and_at_least_twelve(
    part_size_bytes_min: int, wanted: int, plan: Plan
) -> None:
    assert Plan.of(capabilities(part_size_bytes_min), wanted) == plan


def test_the_numbers_in_parts_continue_and_the_last_part_is_shorter() -> None:
    plan = Plan(3, 16)

    assert b"".join(map(plan.part, (1, 2, 3))) == b"".join(n.to_bytes(8, "little") for n in range(5))
    assert plan.size_bytes == 40


def test_the_model_makes_few_enough_requests_for_a_slow_server(site: Site) -> None:
    site.install("sound", broken("pass"))

    asked = clause(box("sound://here", "--select", MODEL, "--seed", 1, "--json").document, MODEL)

    assert asked["outcome"] == "passed"
    assert 500 < asked["requests"] <= 1500


@campaign("a seed that repeats calls that fail; make test has one that repeats a walk")
def test_a_seed_repeats_the_same_calls_and_the_message_shows_them(site: Site) -> None:
    site.install("broken", broken(FORGETS))

    one, two = (
        clause(box("broken://here", "--select", MODEL, "--seed", 3, "--json").document, MODEL)
        for _ in range(2)
    )

    assert (one["outcome"], one["requests"], one["message"]) == ("failed", two["requests"], two["message"])
    assert "state.delete(named=" in one["message"]


def test_an_upload_has_the_requested_size(site: Site) -> None:
    site.install("sound", broken(REMEMBERS_SIZES))

    for size in ("0", "40MiB"):
        ran = box("sound://here", "--select", MANY, "--json", "--upload-size", size)
        assert outcomes(ran.document) == {MANY: "passed"}

    import sound_code

    sizes = [size for size in sound_code.SIZES if size]  # an empty object is put beside the upload
    assert sizes == [Plan(PARTS, 16).size_bytes, Plan(PARTS, 40 * 1024).size_bytes]


def test_an_invalid_size_gives_exit_code_2(site: Site) -> None:
    ran = box("there", "--upload-size", "much")

    assert (ran.code, ran.stdout) == (2, b"")
    assert "--upload-size takes bytes" in ran.stderr


MORE = "more with `--listing-keys 10050`"


@pytest.mark.parametrize(
    ("keys", "message"),
    [(1200, f"1,200 keys; {MORE}"), pytest.param(10_050, "", marks=campaign("the longest listings"))],
)
def test_the_report_has_the_length_of_the_longest_listing(
    site: Site, tmp_path: Path, keys: int, message: str
) -> None:
    site.install("sound", broken("pass"))
    name, page = "store/listing_goes_on_page_after_page", tmp_path / "page.md"

    ran = box("sound://here", "--select", name, "--json", "--listing-keys", keys, "--markdown", page)

    asked = clause(ran.document, name)
    assert (asked["outcome"], asked["message"]) == ("passed", message)
    assert keys < asked["requests"] < keys + 30
    assert (f"| `{name}` | {message} |" in page.read_text()) == bool(message)
