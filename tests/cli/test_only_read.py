"""A read-only tier: commands that read work on it, and commands that write refuse it in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import offload
from foreign_tier import chunks_in, write_lines
from kit.installed import declare


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stream of seven records in two files."""
    monkeypatch.syspath_prepend(declare(tmp_path / "site", "lines", {"lines": "foreign_tier"}))
    root = tmp_path / "place"
    write_lines(root, "orders", 0, 1000, ["a", "b", "c", "d"])
    write_lines(root, "orders", 4, 2000, ["e", "f", "g"])
    return f"lines://{root}"


def test_ls_lists_the_streams_of_a_read_only_tier(url: str) -> None:
    [row] = offload("ls", url, "--json").objects

    assert (row["stream"], row["messages"], row["fragments"], row["version"]) == ("orders", 7, 2, 2)
    assert row["newest"] == "1970-01-01T00:00:02.000Z"


def test_read_finds_messages_of_a_read_only_tier_by_offset_and_time(url: str) -> None:
    assert offload("read", url, "orders", "--from", "2", "--format", "body").lines == [
        "c",
        "d",
        "e",
        "f",
        "g",
    ]
    assert offload("read", url, "orders", "--from", "@1001", "--format", "body").lines == ["e", "f", "g"]


def test_inspect_shows_the_fragments_of_a_read_only_tier_by_their_own_names(url: str) -> None:
    document = offload("inspect", url, "orders", "--json").document

    assert [each["object"] for each in document["fragments"]] == [
        "orders/0.1000.lines",
        "orders/4.2000.lines",
    ]
    assert (document["root"]["object"], document["attempts"]) == ("orders", [])
    assert "writer" not in document["root"]
    assert "[4, 7)" in offload("inspect", url, "orders").text


@pytest.mark.parametrize("level", ["manifest", "checksum", "bytes"])
def test_verify_checks_a_read_only_tier_at_every_level(url: str, level: str) -> None:
    ran = offload("verify", url, "--level", level, "--json")

    report = ran.document
    assert ran.code == 0
    assert (report["streams"], report["objects"], report["damages"]) == (1, 2, [])
    assert report["not_compared"] == (2 if level == "checksum" else 0)
    assert (report["bytes"] > 0) == (level == "bytes")


@pytest.mark.parametrize("level", ["manifest", "bytes"])
def test_a_fragment_that_contradicts_its_entry_is_damage(
    url: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` also checks the other fragments, and a later run resumes after the damaged one."""
    monkeypatch.setattr("foreign_tier.chunks_in", _without_the_last(0))

    ran = offload("verify", url, "--level", level, "--json")

    [damage] = ran.document["damages"]
    assert ran.code == 1
    assert (damage["stream"], damage["object"], damage["what"]) == ("orders", "orders/0.1000.lines", "offset")
    assert (ran.document["objects"], ran.document["judged_to"]) == (2, "orders/4.2000.lines")
    rest = offload("verify", url, "--after", "orders/0.1000.lines", "--json").document
    assert (rest["objects"], rest["damages"]) == (1, [])


@pytest.mark.parametrize(
    "command",
    [
        ["sync", "rabbitmq:///nowhere", "TIER"],
        ["trim", "TIER", "orders", "--before", "4"],
        ["delete", "TIER", "orders", "--yes"],
        ["sweep", "TIER"],
        ["rebuild", "TIER", "orders", "--yes"],
    ],
    ids=lambda command: command[0],
)
def test_commands_that_write_refuse_a_read_only_tier_in_one_sentence(url: str, command: list[str]) -> None:
    ran = offload(*(url if word == "TIER" else word for word in command))

    assert ran.code == 2
    assert ran.error == f"offload: {url} is read-only: its layout accepts no data or commits from here"


def _without_the_last(first_offset: int) -> object:
    def cut(path: Path) -> list[bytes]:
        chunks = chunks_in(path)
        return chunks[:-1] if path.name.startswith(f"{first_offset}.") else chunks

    return cut
