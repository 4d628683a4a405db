"""`offload index` and `offload find`: each message is found by its key, and the output says what it cost."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import Ran, finish, offload, read, start, start_dying, sync
from osiris_data import DATA, STREAMS

ID = ("--by", "amqp:properties.message_id")
SEQUENCE = ("--by", "amqp:body.seq")
AMQP = ("--decode", "amqp")


@pytest.fixture(scope="module")
def synced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier with real streams, indexed by message id. Tests do not change it."""
    folder = tmp_path_factory.mktemp("find") / "tier"
    sync(DATA, folder)
    for stream in STREAMS:
        assert offload("index", folder, stream, *ID).code == 0
        assert offload("index", folder, stream, *SEQUENCE).code == 0
    return folder


@pytest.fixture
def tier(synced: Path, tmp_path: Path) -> Path:
    """A copy of that tier."""
    return Path(shutil.copytree(synced, tmp_path / "tier"))


def indexes(tier: Path) -> list[Path]:
    """Return the index objects of a tier."""
    return sorted(tier.rglob("*.index"))


def numbers(tier: Path, stream: str) -> dict[int, int]:
    """Return the number in the body of each message that has one, by its offset."""
    found = dict[int, int]()
    for line in read(tier, stream, *AMQP).objects:
        with suppress(ValueError, KeyError, TypeError):
            found[line["offset"]] = json.loads(line["value"])["seq"]
    return found


def find(tier: Path, *arguments: object, code: int = 0) -> Ran:
    ran = offload("find", tier, *arguments)
    assert ran.code == code, ran.stderr
    return ran


@pytest.mark.parametrize("stream", STREAMS)
def test_every_message_is_found_by_its_number_and_nothing_is_scanned(
    synced: Path, tmp_path: Path, stream: str
) -> None:
    wanted = numbers(synced, stream)
    assert len(wanted) >= 10
    terms = tmp_path / "terms"
    terms.write_bytes("".join(f"{each}\n" for each in wanted.values()).encode() + b"\nnobody\n")

    ran = find(synced, stream, *SEQUENCE, "--terms-from", terms, *AMQP)

    assert [line["offset"] for line in ran.objects] == [*wanted]
    assert ran.error.endswith(" read by them, 0 scanned")


def test_a_line_is_that_of_read_behind_the_name_of_the_stream(synced: Path) -> None:
    [line] = find(synced, "tiny", *ID, "--term", "m7", *AMQP).lines

    assert line == '{"stream":"tiny",' + read(synced, "tiny", "--from", 7, "--limit", 1, *AMQP).lines[0][1:]
    assert (
        find(synced, "tiny", *ID, "--term", "m7", "--format", "raw").stdout
        == read(synced, "tiny", "--from", 7, "--limit", 1, "--format", "raw").stdout
    )


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ((), [2, 4, 8]),
        (("--limit", 2), [2, 4]),
        (("--limit", 0), []),
        (("--from", 3), [4, 8]),
        (("--to", 8), [2, 4]),
        (("--from", 3, "--to", 100), [4, 8]),
        (("--from", "next"), []),
    ],
)
@pytest.mark.parametrize("by", ["amqp:properties.message_id", "amqp:body.key,properties.message_id"])
def test_positions_and_a_limit_cut_what_is_found(
    synced: Path, by: str, options: tuple[Any, ...], offsets: list[int]
) -> None:
    """By an index, and by a SPEC that nobody has indexed."""
    terms = ("--term", "m8", "--term", "m2", "--term", "m4", "--term", "m2")

    assert [line["offset"] for line in find(synced, "tiny", "--by", by, *terms, *options).objects] == offsets


def test_a_glob_searches_all_streams_that_it_matches(synced: Path) -> None:
    found = find(synced, "*", *SEQUENCE, "--term", "3", "--term", "nobody").objects

    assert [line["stream"] for line in found] == sorted(STREAMS)
    assert (
        find(synced, "x*", *ID, "--term", "m1", code=1)
        .stderr.splitlines()[-1]
        .endswith("has no stream that 'x*' matches")
    )


def test_a_glob_passes_over_a_deleted_stream(tier: Path) -> None:
    assert offload("delete", tier, "batches", "--yes").code == 0

    ran = find(tier, "[bt]*", *ID, "--term", "m7")

    assert [line["stream"] for line in ran.objects] == ["tiny"]
    assert "batches" in ran.stderr


@pytest.mark.parametrize("number", [20, 40, 60])
def test_an_index_run_that_is_killed_is_continued(tier: Path, number: int) -> None:
    for each in indexes(tier):
        each.unlink()
    finish(start_dying(number, "index", tier, "filtered", *SEQUENCE))

    assert offload("index", tier, "filtered", *SEQUENCE, "--json").document["next_offset"] == 20000

    terms = ("--term", 19999, "--term", 0)
    found = find(tier, "filtered", *SEQUENCE, *terms, "--indexed-only").objects
    assert [line["offset"] for line in found] == [0, 19999]
    assert offload("verify", tier).code == 0


def test_indexed_only_leaves_out_what_is_not_indexed(tier: Path) -> None:
    assert find(tier, "tiny", *ID, "--term", "m7", "--indexed-only").objects[0]["offset"] == 7
    for each in indexes(tier):
        each.unlink()

    ran = find(tier, "tiny", *ID, "--term", "m7", "--indexed-only", code=1)

    assert ran.stdout == b""
    assert "stream 'tiny': left out [0, 10), which is not indexed" in ran.stderr
    assert find(tier, "tiny", *ID, "--term", "m7").stderr.endswith("0 records read by them, 10 scanned\n")


def test_a_damaged_index_costs_a_scan_and_a_note_and_verify_finds_it(tier: Path) -> None:
    [path] = [each for each in indexes(tier) if "tiny" in each.parts and "message_id" in str(each)]
    raw = bytearray(path.read_bytes())
    raw[3] ^= 1
    path.write_bytes(raw)

    ran = find(tier, "tiny", *ID, "--term", "m7")

    assert [line["offset"] for line in ran.objects] == [7]
    assert "what this index object covers counts as not indexed" in ran.stderr
    assert "10 scanned" in ran.stderr
    verified = offload("verify", tier)
    [damage] = [line for line in verified.lines if line.startswith("DAMAGE")]
    assert verified.code == 1
    assert "index rows checksum" in damage
    assert damage.endswith(
        "it is only an index, and no data is lost: delete the object, and run `offload index` again"
    )


def test_index_reads_only_what_is_new_and_reports_it(tier: Path) -> None:
    again = offload("index", tier, "tiny", *ID, "--json").document
    other = offload("index", tier, "tiny", "--by", "amqp:body.key", "--json").document

    assert (again["built"], again["objects"], again["next_offset"]) == (0, 1, 10)
    assert (other["built"], other["rows"], other["records"], other["objects"]) == (1, 10, 10, 1)
    assert offload("verify", tier).code == 0
    assert "nothing to delete" in offload("sweep", tier, "--grace", "0").text


def test_a_copy_has_no_index_and_a_deleted_stream_keeps_none(tier: Path, tmp_path: Path) -> None:
    assert offload("copy", tier, tmp_path / "copy").code == 0
    assert indexes(tmp_path / "copy") == []

    assert offload("delete", tier, "tiny", "--yes").code == 0
    swept = offload("sweep", tier, "--json").document

    assert [each for each in indexes(tier) if "tiny" in each.parts] == []
    [row] = [each for each in swept["streams"] if each["stream"] == "tiny"]
    assert row["deleted"]["an index of an earlier life or time of the stream"]["objects"] == 2


def test_an_encrypted_stream_is_refused_in_one_line_and_is_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOAD_KEY_TIER_2026", "bW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW0=")
    tier, options = tmp_path / "tier", ("--keys", "keyenv:")
    assert offload("sync", f"rabbitmq://{DATA / 'tiny'}", tier, *options, "--encrypt", "tier-2026").code == 0

    ran = offload("index", tier, "tiny", *ID)

    assert ran.code == 1
    assert ran.error.endswith(
        "stream 'tiny' is encrypted: an index would show which records have the same key"
    )
    assert find(tier, "tiny", *ID, "--term", "m7", *options).objects[0]["offset"] == 7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--by", "amqp", "--term", "x"), "is no SPEC of an index"),
        (("--by", "nosuch:key", "--term", "x"), "no plugin knows the decoder 'nosuch'"),
        (("--by", "amqp:nosuch", "--term", "x"), "decoder amqp has no 'nosuch'"),
        ((*ID,), "a find takes --term or --terms-from"),
        ((*ID, "--term", ""), "no term is empty"),
        ((*ID, "--term", "x", "--from", "yesterday"), "is not a position"),
    ],
)
def test_a_wrong_argument_ends_with_2_and_one_line(
    synced: Path, arguments: tuple[str, ...], says: str
) -> None:
    ran = offload("find", synced, "tiny", *arguments)

    assert ran.code == 2
    assert says in ran.error


def test_an_error_before_the_search_is_one_line(synced: Path, tmp_path: Path) -> None:
    assert "is no tier" in find(tmp_path, "tiny", *ID, "--term", "x", code=1).error
    assert "has no stream 'nosuch'" in find(synced, "nosuch", *ID, "--term", "x", code=1).stderr
    absent, folder = (
        find(synced, "tiny", *ID, "--terms-from", each, code=2).error for each in ("no", tmp_path)
    )
    assert absent.endswith("--terms-from: there is no file 'no'")
    assert folder.endswith(f"--terms-from: {str(tmp_path)!r} cannot be read: Is a directory")


@pytest.mark.parametrize("by", ["amqp:properties.message-id", "rocketmq:keys"])
def test_a_place_that_no_record_has_is_noted(tier: Path, by: str) -> None:
    note = "none of 10 records has such a value: check --by and its decoder"

    assert f"note: {note}\n" in find(tier, "tiny", "--by", by, "--term", "m7").stderr
    assert offload("index", tier, "tiny", "--by", by).error == f"note: stream 'tiny': {note}"
    assert note not in find(tier, "tiny", "--by", "amqp:body.key", "--term", "nobody").stderr
    assert offload("index", tier, "tiny", "--by", "amqp:body.key").stderr == ""


def test_a_glob_indexes_all_streams_that_it_matches(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted stream is passed over. One that is refused does not stop the others."""
    monkeypatch.setenv("OFFLOAD_KEY_TIER_2026", "bW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW0=")
    assert offload("delete", tier, "batches", "--yes").code == 0
    by = ("--by", "amqp:body.key")

    ran = offload("index", tier, "[bt]*", *by)
    assert (ran.code, [line.partition(":")[0] for line in ran.lines]) == (0, ["tiny"])
    assert "batches" in ran.stderr

    shutil.copytree(DATA / "tiny", tier.parent / "another")
    secret = ("--keys", "keyenv:", "--encrypt", "tier-2026")
    assert offload("sync", f"rabbitmq://{tier.parent / 'another'}", tier, *secret).code == 0
    ran = offload("index", tier, "[at]*", *by)
    assert (ran.code, [line.partition(":")[0] for line in ran.lines]) == (1, ["tiny"])
    assert "stream 'another' is encrypted" in ran.error
    assert offload("index", tier, "x*", *by).error.endswith("has no stream that 'x*' matches")


def test_two_processes_index_one_stream(tier: Path) -> None:
    for each in indexes(tier):
        each.unlink()
    running = [start("index", tier, "filtered", *SEQUENCE, "--json") for _ in range(2)]
    reports = [json.loads(each.communicate(timeout=60)[0]) for each in running]

    assert [each.returncode for each in running] == [0, 0]
    assert {report["next_offset"] for report in reports} == {20000}
    assert offload("index", tier, "filtered", *SEQUENCE, "--json").document["objects"] == 1
    assert len([each for each in indexes(tier) if "filtered" in each.parts]) == 1
    assert len(find(tier, "filtered", *SEQUENCE, "--term", 777, "--indexed-only").objects) == 1
    assert offload("verify", tier).code == 0
