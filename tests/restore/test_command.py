"""`offload restore` with a running broker, as an operator runs it: output, notes, map and exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import offload, sync
from osiris_data import DATA
from osiris_writer import simple_chunks, write_stream
from stream_broker import StreamBroker, beside

from offload import MemoryHandle, StreamWriter, open_tier
from offload.ground.errors import NoSpace
from offload.model.part import StreamPart
from offload.restore.read_back import OffsetMap, OffsetRun


@pytest.fixture
def broker() -> Iterator[StreamBroker]:
    with beside(StreamBroker(chunk_messages=50)) as running:
        yield running


def test_a_stream_of_a_real_broker_is_published_with_sub_batches_and_a_map(
    tmp_path: Path, broker: StreamBroker
) -> None:
    tier, map_file = tmp_path / "tier", tmp_path / "map"
    sync(DATA / "batches", tier)
    raw = offload("read", tier, "batches", "--format", "raw").stdout

    ran = offload("restore", tier, "batches", broker.url, "--map", map_file, "--json")

    assert (ran.code, ran.document["messages"], ran.document["next_offset"]) == (0, 12240, 12271)
    assert b"".join(len(body).to_bytes(4, "big") + body for body in broker.bodies) == raw
    rows = [json.loads(line) for line in map_file.read_text().splitlines()]
    assert sum(row["count"] for row in rows if "count" in row) == 12240
    stored = {row["consumer"]: row for row in rows if "consumer" in row}
    assert stored
    assert all(row["new"] is None or row["new"] <= broker.next_offset for row in stored.values())


def test_a_restore_says_what_it_did_and_what_was_there_before(tmp_path: Path, broker: StreamBroker) -> None:
    write_stream(tmp_path / "orders", simple_chunks(4))
    sync(tmp_path / "orders", tmp_path / "tier")
    words = ("restore", tmp_path / "tier", "orders", broker.url)

    broker.dies_after = 5
    died, again, complete = (offload(*words) for _ in range(3))

    assert (died.code, again.code, complete.code) == (1, 0, 0)
    assert "run the same command again" in died.stderr
    assert again.lines == [
        f"orders: offsets [0, 12) are in {broker.url}; wrote 7 messages; offsets below 5 were there"
    ]
    assert complete.lines[0].endswith("wrote 0 messages; offsets below 12 were there")


def test_damage_is_an_error_and_left_out_only_on_request(tmp_path: Path, broker: StreamBroker) -> None:
    write_stream(tmp_path / "orders", simple_chunks(4))
    sync(tmp_path / "orders", tmp_path / "tier")
    (fragment,) = (tmp_path / "tier").rglob("*.fragment")
    raw = bytearray(fragment.read_bytes())
    raw[raw.index(b"message 4")] ^= 1
    fragment.write_bytes(raw)
    words = ("restore", tmp_path / "tier", "orders", broker.url)

    stopped, skipping = offload(*words), offload(*words, "--skip-damage")

    assert (stopped.code, skipping.code) == (1, 0)
    assert len(broker.bodies) == 9
    assert "note: left out: offsets [3, 6): " in skipping.stderr


def test_part_of_a_stream_is_restored_between_two_offsets(tmp_path: Path, broker: StreamBroker) -> None:
    write_stream(tmp_path / "orders", simple_chunks(4))
    sync(tmp_path / "orders", tmp_path / "tier")

    ran = offload(
        "restore", tmp_path / "tier", "orders", broker.url, "--from", 2, "--until", 7, "--rate", 1000
    )

    assert ran.code == 0, ran.stderr
    assert broker.bodies == [b"message %d" % k for k in range(2, 7)]


def test_the_archive_goes_on_behind_a_published_restore(tmp_path: Path, broker: StreamBroker) -> None:
    tier, map_file, folder = tmp_path / "tier", tmp_path / "map", tmp_path / "links" / "orders"
    write_stream(tmp_path / "orders", simple_chunks(4))
    sync(tmp_path / "orders", tier)
    words = ("restore", tier, "orders", broker.url, "--new-part")

    first = offload(*words, "--map", map_file, "--json")
    broker.append([b"new 1", b"new 2"])
    again = offload(*words)
    write_stream(folder, broker.log())
    synced = sync(folder.parent, tier)

    begins = broker.stored[-2][0]
    part = {"part": 2, "stream": "orders-part-2", "first_offset": begins}
    assert (first.document["new_part"], map_file.exists()) == (part, True)
    assert again.code == 0, again.stderr
    assert "by name" not in again.stderr, "the new messages are in the target"
    assert again.lines[-1] == f"orders: continues in part 2, which begins at offset {begins} of the target"
    assert (synced.objects[0]["stream"], synced.objects[0]["messages"]) == ("orders-part-2", 2)
    expected = [*(b"message %d" % k for k in range(12)), b"new 1", b"new 2"]
    raw = b"".join(len(body).to_bytes(4, "big") + body for body in expected)
    assert offload("read", tier, "orders", "--format", "raw").stdout == raw

    write_stream(tmp_path / "old" / "orders", simple_chunks(9))
    refused = offload("sync", f"rabbitmq://{tmp_path}/old", tier)

    assert "; first check that SOURCE is the restored stream that it continues; to keep" in refused.error


def test_a_part_behind_a_restore_is_encrypted_if_the_part_before_is(
    tmp_path: Path, broker: StreamBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOAD_KEY_TIER_2026", "bW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW0=")
    tier, folder, keys = tmp_path / "tier", tmp_path / "links" / "orders", ("--keys", "keyenv:")
    write_stream(tmp_path / "orders", simple_chunks(4))
    sync(tmp_path / "orders", tier, *keys, "--encrypt", "tier-2026")
    restored = offload("restore", tier, "orders", broker.url, "--new-part", *keys)
    assert restored.code == 0, restored.stderr
    broker.append([b"secret"])
    write_stream(folder, broker.log())

    forgotten = offload("sync", f"rabbitmq://{folder.parent}", tier, *keys)
    sync(folder.parent, tier, *keys, "--encrypt", "tier-2026")

    assert forgotten.code == 1
    assert "its next part has a key of its own: name its master key with --encrypt" in forgotten.error
    assert not any(b"secret" in path.read_bytes() for path in tier.rglob("*.fragment"))
    assert offload("read", tier, "orders", *keys, "--format", "raw").stdout.endswith(b"secret")


def test_a_map_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, broker: StreamBroker
) -> None:
    sync(DATA / "tiny", tmp_path / "tier")

    ran = offload("restore", tmp_path / "tier", "tiny", broker.url, "--map", tmp_path / "none" / "map")

    assert (ran.code, broker.bodies) == (2, [])
    assert "no file can be written there" in ran.error


def test_a_map_appears_when_it_is_whole(
    tmp_path: Path, broker: StreamBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync(DATA / "tiny", tmp_path / "tier")
    words = ("restore", tmp_path / "tier", "tiny", broker.url, "--map", tmp_path / "map")

    def full(found: OffsetMap) -> Iterator[OffsetRun]:
        raise NoSpace("the disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(OffsetMap, "runs", full)
        stopped, is_there = offload(*words), (tmp_path / "map").exists()

    assert (stopped.code, "the disk is full" in stopped.stderr, is_there) == (1, True, False)
    assert (offload(*words).code, (tmp_path / "map").exists()) == (0, True)


def test_a_stream_with_parts_is_restored_into_one_stream_with_its_gaps_named(
    tmp_path: Path, broker: StreamBroker
) -> None:
    tier, map_file = tmp_path / "tier", tmp_path / "map"
    asyncio.run(_two_parts(str(tier), first_offset=20))
    words = ("restore", tier, "orders", broker.url)

    broker.dies_after = 12
    died, ran = offload(*words), offload(*words, "--map", map_file)
    again = offload(*words, "--json")

    gap = {"part": 2, "from_offset": 9, "to_offset": 20, "records": 11, "kind": "lost"}
    assert (died.code, ran.code) == (1, 0), ran.stderr
    named = "note: gap before part 2: offsets [9, 20) are lost, 11 records"
    assert all(named in each.stderr for each in (died, ran, again))
    assert "note: 'orders' is in the target already" in ran.stderr
    assert ran.lines == [
        f"orders: offsets [0, 9) are in {broker.url}; wrote 0 messages; offsets below 9 were there",
        f"orders-part-2: offsets [20, 29) are in {broker.url}; wrote 6 messages; offsets below 23 were there",
        "orders: 1 gap, 11 records lost",
        f"every message compared; the map is in {map_file}",
    ]
    assert broker.bodies == [b"message %d" % k for k in [*range(9), *range(20, 29)]]
    assert [json.loads(line) for line in map_file.read_text().splitlines()] == [
        {"part": 1, "old": 0, "new": 0, "count": 9},
        gap | {"new": 9},
        {"part": 2, "old": 20, "new": 9, "count": 9},
    ]
    done = again.document
    assert done["gaps"] == [{"stream": "orders"} | gap]
    assert (done["first_offset"], done["next_offset"], done["messages"]) == (0, 29, 0)
    assert [(each["part"], each["stream"], each["next_offset"]) for each in done["parts"]] == [
        (1, "orders", 9),
        (2, "orders-part-2", 29),
    ]


def test_a_part_that_repeats_offsets_is_restored_whole_and_reported(
    tmp_path: Path, broker: StreamBroker
) -> None:
    asyncio.run(_two_parts(str(tmp_path / "tier"), first_offset=3))

    ran = offload("restore", tmp_path / "tier", "orders", broker.url)

    assert ran.code == 0, ran.stderr
    assert (
        "part 2 begins at offset 3, and repeats offsets below 9: all its records are restored" in ran.stderr
    )
    assert broker.bodies == [b"message %d" % k for k in [*range(9), *range(3, 12)]]


def test_one_part_of_a_stream_is_restored_by_its_name_or_up_to_its_end(
    tmp_path: Path, broker: StreamBroker
) -> None:
    """Files can hold one part. The error has the arguments that choose it."""
    tier, folder = tmp_path / "tier", tmp_path / "log"
    asyncio.run(_two_parts(str(tier), first_offset=20))

    several = offload("restore", tier, "orders", "--files", folder)
    later = offload("restore", tier, "orders-part-2", broker.url)

    assert several.code == 1
    assert "has 2 parts, and files can hold one of them" in several.error
    assert several.error.endswith("where PART is orders --until 9 or orders-part-2")
    assert later.lines == [f"orders-part-2: offsets [20, 29) are in {broker.url}; wrote 9 messages"]


def test_the_archive_goes_on_behind_all_parts_of_a_stream(tmp_path: Path, broker: StreamBroker) -> None:
    tier, folder = tmp_path / "tier", tmp_path / "links" / "orders"
    asyncio.run(_two_parts(str(tier), first_offset=20))
    words = ("restore", tier, "orders", broker.url, "--new-part")

    first = offload(*words)
    broker.append([b"new 1", b"new 2"])
    write_stream(folder, broker.log())
    synced = sync(folder.parent, tier)
    again = offload(*words)
    earlier = offload("restore", tier, "orders-part-2", broker.url, "--new-part")

    assert (first.code, again.code) == (0, 0), again.stderr
    assert first.lines[-1] == again.lines[-1]
    assert first.lines[-1].startswith("orders: continues in part 3, which begins at offset ")
    assert (synced.objects[0]["stream"], synced.objects[0]["messages"]) == ("orders-part-3", 2)
    assert broker.bodies[-3:] == [b"message 28", b"new 1", b"new 2"]
    assert offload("read", tier, "orders", "--format", "body").code == 0
    assert earlier.code == 1


async def _two_parts(tier: str, *, first_offset: int) -> None:
    async with open_tier(tier) as offloader:
        writer = await StreamWriter.claim(offloader, "orders")
        await writer.offload([MemoryHandle([*simple_chunks(3)])])
        second = StreamPart("orders", 2)
        await offloader.begin_part(second, before=writer.manifest)
        writer = await StreamWriter.claim(offloader, second.name, first_offset=first_offset)
        await writer.offload([MemoryHandle([*simple_chunks(3, first_offset=first_offset)])])
