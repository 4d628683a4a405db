"""Tests of `rocketmq://`: what a real broker kept is copied, and damage is named and stops no other queue."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign import CAMPAIGN
from command_line import offload
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_rocketmq import log as log_module
from offload_rocketmq.log import CommitLog, LogExtent
from offload_rocketmq.source import SYSTEM_TOPICS, RocketmqSource, RocketmqStream, open_url
from offload_rocketmq.units import UNIT
from rocketmq_sets import DATA, messages, restored
from rocketmq_store import BrokerStore, encoded

from offload import (
    Corrupt,
    Diverged,
    Misuse,
    NotOffloaded,
    ObjectStoreOffloader,
    ReadPriority,
    StreamReader,
    StreamReport,
    TieredReader,
    TryAgain,
    sync,
)
from offload.entries.ledger import EntryLedgerStream
from offload.ground.errors import Divergence
from offload.opening.plugins import Plugins
from offload.store.memory import MemoryStore

FLOOD = ("Flood/0", "Flood/1", "Flood/2")


def memory_tier() -> ObjectStoreOffloader:
    return ObjectStoreOffloader(MemoryStore())


async def synced(
    source: RocketmqSource, tier: ObjectStoreOffloader, *, new_part: bool = False
) -> dict[str, StreamReport]:
    return {report.stream: report async for report in sync(source, tier, new_part=new_part)}


async def copied(tier: ObjectStoreOffloader) -> dict[tuple[str, int], bytes]:
    """Return every record of the tier, by stream and offset."""
    found = dict[tuple[str, int], bytes]()
    for name in await tier.streams():
        reader = await StreamReader.open(tier, name)
        async for batch in reader.messages(reader.manifest.first_offset):
            found |= {(name, batch.offset + at): body for at, body in enumerate(batch.bodies)}
    return found


def copies_of(folder: Path) -> tuple[dict[str, StreamReport], dict[tuple[str, int], bytes]]:
    """Copy a store to a new tier."""

    async def run() -> tuple[dict[str, StreamReport], dict[tuple[str, int], bytes]]:
        tier = memory_tier()
        reports = await synced(RocketmqSource(folder), tier)
        return reports, await copied(tier) if any(each.manifest for each in reports.values()) else {}

    return asyncio.run(run())


def hashes(records: Mapping[tuple[str, int], bytes]) -> dict[tuple[str, int], str]:
    return {key: hashlib.sha256(raw).hexdigest() for key, raw in records.items()}


def answers(name: str) -> dict[tuple[str, int], str]:
    """Return the broker's answers, without the topics of the broker itself and those of inner batches."""
    return {
        (f"{each['topic']}/{each['queue']}", each["offset"]): each["record_sha256"]
        for each in messages(name)
        if each["topic"] not in SYSTEM_TOPICS | {"Inner"}
    }


def all_records(*stores: BrokerStore) -> dict[tuple[str, int], bytes]:
    return {
        (f"{topic}/{queue}", offset): raw
        for store in stores
        for (topic, queue), written in store.records.items()
        for offset, raw in enumerate(written)
    }


@pytest.mark.parametrize("name", ["trimmed", "six", "extras", "torn"])
def test_a_copy_has_every_record_that_the_broker_shows(name: str, tmp_path: Path) -> None:
    """Also those behind deleted files, with hosts in IPv6, and of a broker that was killed."""
    reports, found = copies_of(restored(name, tmp_path / "store"))

    assert [report.error for report in reports.values() if report.error] == []
    assert hashes(found) == answers(name)


VARIANTS = json.loads((DATA / "torn" / "variants.json").read_text())


def damaged(steps: list[dict[str, Any]], folder: Path) -> Path:
    """Return a copy of the set `torn` to which these steps were applied."""
    store = restored("torn", folder)
    for step in steps:
        file, at = store / step["file"], step.get("at", 0)
        if step["do"] == "remove":
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        elif step["do"] == "truncate":
            os.truncate(file, step["length"])
        else:
            raw = bytearray(file.read_bytes())
            raw[at : at + step["length"]] = bytes(
                raw[at] ^ step["value"] if step["do"] == "xor" else 0 for at in range(at, at + step["length"])
            )
            file.write_bytes(raw)
    return store


@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if not name.startswith("last-file-") and name != "queues-lost"]
)
def test_of_a_crashed_store_what_the_broker_keeps_is_copied(name: str, tmp_path: Path) -> None:
    """Nothing at or behind the first bad record of the log counts, also not the sound records behind it."""
    reports, found = copies_of(damaged(VARIANTS[name]["steps"], tmp_path / "store"))

    ends = {stream: report.manifest and report.manifest.next_offset for stream, report in reports.items()}
    assert ends == VARIANTS[name]["kept"]
    expected = {key: each for key, each in answers("torn").items() if key[1] < VARIANTS[name]["kept"][key[0]]}
    assert hashes(found) == expected


def test_a_lost_file_of_the_log_is_named_and_the_records_before_it_are_copied(tmp_path: Path) -> None:
    """The real broker counts its messages, and cannot read them."""
    reports, found = copies_of(damaged(VARIANTS["last-file-lost"]["steps"], tmp_path / "store"))

    readable = {each["record_sha256"] for each in messages("torn") if each["commit_log_offset"] < 2359296}
    assert set(hashes(found).values()) == readable
    for name in FLOOD:
        assert isinstance(reports[name].error, Corrupt)
        assert f"consumequeue/{name}/00000000000000004000 at byte " in str(reports[name].error)
        assert "within one file of the log" in str(reports[name].error)


def test_a_log_file_of_another_size_is_named(tmp_path: Path) -> None:
    """The real broker does not start with it."""
    reports, _ = copies_of(damaged(VARIANTS["last-file-short"]["steps"], tmp_path / "store"))

    for report in reports.values():
        assert isinstance(report.error, Corrupt)
        assert "00000000000002359296 at byte 0: size of the file: expected 262144" in str(report.error)


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (".", "is no folder: give the folder `storePathRootDir` of the broker"),
        ("commitlog", "commitlog is no folder"),
        ("consumequeue", "consumequeue is no folder: a broker builds it from the log when it starts"),
    ],
)
def test_a_folder_that_is_no_store_is_named(missing: str, text: str, tmp_path: Path) -> None:
    BrokerStore(tmp_path / "store").append("Orders", 0, b"a")
    shutil.rmtree(tmp_path / "store" / missing)

    with pytest.raises(NotOffloaded, match=text):
        copies_of(tmp_path / "store")


class Lock:
    """A process that holds the lock of a store, as a running broker does."""

    def __init__(self, store: Path) -> None:
        self._code = (
            "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
            "print('locked', flush=True); sys.stdin.read()"
        )
        self._path = store / "lock"

    def __enter__(self) -> None:
        command = [sys.executable, "-c", self._code, str(self._path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"locked\n"

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate()


def test_the_rule_of_crashes_holds_only_if_no_broker_has_the_lock(tmp_path: Path) -> None:
    """A bad record of a store that is in use is damage, and is reported."""
    store = BrokerStore(tmp_path, span_ms=2000)
    positions = [store.append("Orders", 0, b"%d" % number) for number in range(6)]
    other = store.append("Others", 0, b"behind")
    store.flip(positions[4] + 88)
    (tmp_path / "abort").touch()
    everything = all_records(store)

    with Lock(tmp_path):
        reports, found = copies_of(tmp_path)
        assert isinstance(reports["Orders/0"].error, Corrupt)
        where = f"commitlog/00000000000000000000 at byte {positions[4]}"
        assert where in str(reports["Orders/0"].error)
        assert found.keys() == everything.keys() - {("Orders/0", 4), ("Orders/0", 5)}

    reports, found = copies_of(tmp_path)
    assert {name: report.error for name, report in reports.items()} == {"Orders/0": None, "Others/0": None}
    assert found == {("Orders/0", number): everything["Orders/0", number] for number in range(4)}
    assert other > positions[4]


def test_a_crashed_store_is_scanned_from_the_file_that_the_checkpoint_names(tmp_path: Path) -> None:
    """A bad record in an older file is not found by the recovery. It is damage, as in a sound store."""
    store = BrokerStore(tmp_path, log_size=1024)
    for number in range(30):
        store.append("Orders", 0, b"%d" % number)
    store.flip(store.positions["Orders", 0][2] + 88)
    (tmp_path / "abort").touch()

    reports, _ = copies_of(tmp_path)
    assert reports["Orders/0"].error is None
    assert reports["Orders/0"].manifest is not None
    assert reports["Orders/0"].manifest.next_offset == 2

    late_ms = 1_700_000_000_000 + 30 * 2000
    (tmp_path / "checkpoint").write_bytes(late_ms.to_bytes(8, "big") * 2 + bytes(4080))
    reports, _ = copies_of(tmp_path)
    assert isinstance(reports["Orders/0"].error, Corrupt)
    assert "queue offset 2" in str(reports["Orders/0"].error)


def test_a_store_whose_head_was_deleted_goes_on_behind_its_own_copy(tmp_path: Path) -> None:
    """The log begins within the last chunk of each queue on the tier."""
    store, tier = BrokerStore(tmp_path, log_size=2048, span_ms=1), memory_tier()

    def write(count: int) -> None:
        for number in range(count):
            store.append("Orders", number % 4, b"message %d" % number)

    async def run() -> None:
        write(80)
        source = RocketmqSource(tmp_path)
        await synced(source, tier)
        write(40)
        ends = [positions[19] for positions in store.positions.values()]
        store.delete_log(before=min(ends))
        first = min(int(file.name) for file in (tmp_path / "commitlog").iterdir())
        assert all(positions[0] < first <= positions[19] for positions in store.positions.values())
        for each in (source, RocketmqSource(tmp_path)):  # the same process, and a new one
            reports = await synced(each, tier)
            assert [report.error for report in reports.values()] == [None] * 4
        assert await copied(tier) == all_records(store)

        write(40)  # only the disk has them
        for stream in await RocketmqSource(tmp_path).streams():
            reader = await TieredReader.open(stream, tier, priority=ReadPriority.LOCAL_FIRST)
            read = [body async for batch in reader.messages(0) for body in batch.bodies]
            assert read == store.records["Orders", int(stream.name[-1])]

    asyncio.run(run())


def test_messages_that_were_deleted_before_they_were_copied_are_a_gap(tmp_path: Path) -> None:
    store, tier = BrokerStore(tmp_path, log_size=1024), memory_tier()

    async def run() -> None:
        store.append("Orders", 0, b"first")
        await synced(RocketmqSource(tmp_path), tier)
        for number in range(40):
            store.append("Orders", 0, b"%d" % number)
        store.delete_log(before=store.positions["Orders", 0][30])

        report = (await synced(RocketmqSource(tmp_path), tier))["Orders/0"]

        assert isinstance(report.error, Diverged)
        assert report.error.kind is Divergence.GAP
        (report,) = (await synced(RocketmqSource(tmp_path), tier, new_part=True)).values()
        assert report.error is None
        assert report.manifest is not None
        assert report.manifest.next_offset == 41

    asyncio.run(run())


def test_offsets_that_a_broker_lost_and_gave_again_are_a_fork(tmp_path: Path) -> None:
    tier = memory_tier()
    before, after = BrokerStore(tmp_path / "before"), BrokerStore(tmp_path / "after")
    for store, last in ((before, b"lost"), (after, b"again")):
        for body in (b"a", b"b", last):
            store.append("Orders", 0, body)
    after.append("Orders", 0, b"more")

    async def run() -> None:
        await synced(RocketmqSource(tmp_path / "before"), tier)
        report = (await synced(RocketmqSource(tmp_path / "after"), tier))["Orders/0"]
        assert isinstance(report.error, Diverged)
        assert report.error.kind is Divergence.FORK

        (report,) = (await synced(RocketmqSource(tmp_path / "after"), tier, new_part=True)).values()
        assert report.error is None
        assert (report.part.first, report.part.number) == ("Orders/0", 2)

    asyncio.run(run())


def test_a_unit_that_was_lost_and_given_again_is_counted_again(tmp_path: Path) -> None:
    before, after = BrokerStore(tmp_path / "before"), BrokerStore(tmp_path / "after")
    for store, last in ((before, b"lost"), (after, b"a longer one")):
        for body in (b"a", b"b", last):
            store.append("Orders", 0, body)

    async def run() -> None:
        (stream,) = await RocketmqSource(tmp_path / "before").streams()
        async with await stream.snapshot() as snapshot:
            assert snapshot.next_offset == 3
        shutil.copytree(tmp_path / "after", tmp_path / "before", dirs_exist_ok=True)
        async with await stream.snapshot() as snapshot:
            (ledger,) = snapshot.ledgers
            read = bytes(await ledger.read(await ledger.table()))
            assert after.records["Orders", 0][2] in read

    asyncio.run(run())


def test_units_of_a_log_file_that_a_crash_lost_are_left_out(tmp_path: Path) -> None:
    """The queues were on the disk before the end of the log was."""
    store = BrokerStore(tmp_path, log_size=1024)
    for number in range(30):
        store.append("Orders", 0, b"%d" % number)
    lost = store.log_file(store.end)
    lost.unlink()
    (tmp_path / "abort").touch()

    reports, found = copies_of(tmp_path)

    assert reports["Orders/0"].error is None
    kept = sum(position < int(lost.name) for position in store.positions["Orders", 0])
    assert len(found) == kept < 30


def other_record(store: BrokerStore, **changes: Any) -> None:
    """Write a record with other fields in the place of record 13 of Orders/0."""
    position, old = store.positions["Orders", 0][13], store.records["Orders", 0][13]
    fields: dict[str, Any] = {"topic": "Orders", "queue": 0, "offset": 13, "body": b"00013"}
    raw = encoded(**(fields | changes), position=position)
    assert len(raw) == len(old), "the unit stays as it is"
    patch(store.log_file(position), position % store.log_size, raw)


def patch(file: Path, at: int, raw: bytes) -> None:
    data = bytearray(file.read_bytes())
    data[at : at + len(raw)] = raw
    file.write_bytes(data)


def unit(store: BrokerStore, *, more: int = 0, size: int = 0, place: int = 0) -> None:
    """Write another unit in the place of the one of record 13 of Orders/0."""
    position = place or store.positions["Orders", 0][13] + more
    size_bytes = size or len(store.records["Orders", 0][13])
    store.put_unit("Orders", 0, 13, UNIT.pack(position=position, size_bytes=size_bytes, tag_code=0))


def flip(store: BrokerStore, at: int) -> None:
    """Change a byte of record 13 of Orders/0."""
    store.flip(store.positions["Orders", 0][13] + at)


LOG = "commitlog/00000000000000000000 at byte {position}: damaged chunk at offset 13: "
QUEUE = "consumequeue/Orders/0/00000000000000000160 at byte 100: "
ZEROS = bytes(UNIT.size_bytes)
DAMAGE: dict[str, tuple[Callable[[BrokerStore], object], str]] = {
    "a unit beyond the log": (lambda store: unit(store, place=2**40), QUEUE + "place in a unit"),
    "a unit at the last number": (lambda store: unit(store, place=2**63 - 1), QUEUE + "place in a unit"),
    "a unit across two files": (lambda store: unit(store, place=4090), QUEUE + "place in a unit"),
    "a unit backwards": (lambda store: unit(store, place=50), QUEUE + "place in a unit: expected 13"),
    "a unit of a small size": (lambda store: unit(store, size=90), QUEUE + "size in a unit"),
    "a unit of a huge size": (lambda store: unit(store, size=2**31 - 2), QUEUE + "place in a unit"),
    "a unit of zeros": (lambda store: store.put_unit("Orders", 0, 13, ZEROS), QUEUE + "unit: expected one"),
    "a unit of a negative place": (lambda store: unit(store, place=-1), QUEUE + "unit: expected one"),
    "a unit into a record": (
        lambda store: unit(store, more=2, size=93),
        "size of the record (queue offset 13)",
    ),
    "another topic": (lambda store: other_record(store, topic="ORDERS"), LOG + "topic"),
    "a longer topic": (lambda store: other_record(store, topic="Orders1", body=b"0013"), LOG + "topic"),
    "another queue": (lambda store: other_record(store, queue=1), LOG + "queue (queue offset 13)"),
    "another offset": (lambda store: other_record(store, offset=12), LOG + "queue offset (queue offset 13)"),
    "another body": (lambda store: flip(store, 90), LOG + "checksum of the body"),
    "another magic": (lambda store: flip(store, 4), LOG + "magic"),
    "another size": (lambda store: flip(store, 3), LOG + "size of the record"),
    "cut properties": (lambda store: flip(store, 101), LOG + "sizes of the parts (queue offset 13)"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_by_file_and_byte_and_the_rest_is_copied(kind: str, tmp_path: Path) -> None:
    """The records before it too, and the other queues. When it is mended, the next copy goes on."""
    damage, text = DAMAGE[kind]
    store = BrokerStore(tmp_path / "store")
    for number in range(24):
        store.append("Orders", 0, b"%05d" % number)
    store.append("Others", 0, b"whole")
    kept = tmp_path / "kept"
    shutil.copytree(store.folder, kept)
    damage(store)
    position = store.positions["Orders", 0][13]

    async def run() -> None:
        tier = memory_tier()
        reports = await synced(RocketmqSource(store.folder), tier)
        error = reports["Orders/0"].error
        assert isinstance(error, Corrupt)
        assert text.format(position=position) in str(error)
        assert reports["Others/0"].error is None
        expected = all_records(store)
        assert await copied(tier) == {
            key: raw for key, raw in expected.items() if key[0] == "Others/0" or key[1] < 13
        }

        reports = await synced(RocketmqSource(kept), tier)
        assert reports["Orders/0"].error is None
        assert await copied(tier) == expected

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda folder: (folder / f"{160:020}").unlink(), f"{320:020} at byte 0: file before it"),
        (lambda folder: os.truncate(folder / f"{320:020}", 155), f"{320:020} at byte 0: size of the file"),
        (
            lambda folder: (folder / f"{160:020}").rename(folder / f"{170:020}"),
            f"{320:020} at byte 0: name of",
        ),
        (lambda folder: (folder / ("9" * 20)).write_bytes(b"x"), "name of the file"),
    ],
)
def test_files_of_a_queue_that_cannot_be_are_named(
    change: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    store = BrokerStore(tmp_path)
    for number in range(24):
        store.append("Orders", 0, b"%05d" % number)
    store.append("Others", 0, b"whole")
    change(tmp_path / "consumequeue" / "Orders" / "0")

    reports, found = copies_of(tmp_path)

    assert isinstance(reports["Orders/0"].error, Corrupt)
    assert text in str(reports["Orders/0"].error)
    assert ("Others/0", 0) in found


def test_an_empty_last_file_is_one_that_the_broker_is_creating(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path)
    for number in range(8):
        store.append("Orders", 0, b"%d" % number)
    (tmp_path / "commitlog" / f"{4096:020}").touch()
    (tmp_path / "consumequeue" / "Orders" / "0" / f"{160:020}").touch()

    reports, found = copies_of(tmp_path)

    assert reports["Orders/0"].error is None
    assert found == all_records(store)


def test_the_log_is_listed_again_only_if_a_file_comes_or_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was empty when it was listed counts when it has grown: its folder does not change then."""
    store = BrokerStore(tmp_path, log_size=1024)
    for number in range(20):
        store.append("Orders", 0, b"%d" % number)
    following = store.log_file(store.end + 1024)
    listings = list[Path]()
    listed = log_module.numbered_files
    monkeypatch.setattr(
        log_module, "numbered_files", lambda folder: listings.append(folder) or listed(folder)
    )
    log = CommitLog(tmp_path)

    def look(*, age_s: int) -> LogExtent:
        past = os.stat(tmp_path).st_mtime - age_s
        os.utime(tmp_path / "commitlog", (past, past))
        return log.look()

    first = look(age_s=0)
    assert [look(age_s=age_s) for age_s in (0, 10, 10, 10)] == [first] * 4
    assert len(listings) == 3
    following.touch()
    assert [look(age_s=age_s) for age_s in (20, 20)] == [first] * 2
    os.truncate(following, 1024)
    assert look(age_s=20).starts == (*first.starts, int(following.name))


def test_blank_units_at_the_beginning_of_a_queue_are_no_entries(tmp_path: Path) -> None:
    """A broker that builds a queue anew fills its first file before the first unit."""
    store = BrokerStore(tmp_path)
    for number in range(12):
        store.append("Orders", 0, b"%d" % number)
    for offset in range(3):
        blank = UNIT.pack(position=0, size_bytes=2**31 - 1, tag_code=0)
        store.put_unit("Orders", 0, offset, blank)

    reports, found = copies_of(tmp_path)

    assert reports["Orders/0"].error is None
    assert found == {key: raw for key, raw in all_records(store).items() if key[1] >= 3}


def test_topics_of_the_broker_are_left_out_and_other_folders_are_noted(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path / "store")
    for topic in (
        "Orders",
        "%RETRY%readers",
        "%DLQ%readers",
        "%LMQ%x",
        "rmq_sys_REVIVE_LOG",
        *SYSTEM_TOPICS,
        "b1",
    ):
        store.append(topic, 0, b"a")
    long_name = "%RETRY%" + "x" * 130
    store.append(long_name, 11, b"a")
    for folder in ("consumequeue/Orders/01", "consumequeue/Orders/x", "batchconsumequeue/Inner/0"):
        (store.folder / folder).mkdir(parents=True)
    (store.folder / "consumequeue" / os.fsdecode(b"\xff") / "0").mkdir(parents=True)
    names = ["%DLQ%readers/0", "%RETRY%readers/0", f"{long_name}/11", "Orders/0"]

    async def run() -> None:
        source = RocketmqSource(store.folder)
        assert [stream.name for stream in await source.streams()] == sorted([*names, "b1/0"])
        assert [note.removeprefix("skipped: ").removeprefix(f"{store.folder}/") for note in source.notes] == [
            "batchconsumequeue/Inner is of a topic of type BatchCQ, which is not read",
            "consumequeue/Orders/01 is not named by the number of a queue",
            "consumequeue/Orders/x is not named by the number of a queue",
            f"no stream can have the name of {store.folder}/consumequeue/\\xff/0",
        ]
        named = RocketmqSource(store.folder, broker="b1")
        assert [stream.name for stream in await named.streams()] == sorted(f"b1/{name}" for name in names)
        assert (await named.stream("b1/Orders/0")).name == "b1/Orders/0"
        tier = memory_tier()
        assert all(report.error is None for report in (await synced(named, tier)).values())
        assert len(await copied(tier)) == 4

    asyncio.run(run())


@pytest.mark.parametrize(
    ("before", "now", "names"),
    [
        ([], ["--source-option", "broker=b"], ("b/T/0", "T/0")),
        (["--source-option", "broker=b"], [], ("T/0", "b/T/0")),
        (["--source-option", "broker=b"], ["--source-option", "broker=c"], None),
        ([], [], None),
    ],
)
def test_a_note_says_that_the_name_of_the_broker_was_perhaps_forgotten(
    tmp_path: Path, before: list[str], now: list[str], names: tuple[str, str] | None
) -> None:
    store = BrokerStore(tmp_path / "store")
    store.append("T", 0, b"one")
    source, tier = f"rocketmq://{store.folder}", tmp_path / "tier"
    assert offload("sync", source, tier, *before).stderr == ""

    ran = offload("sync", source, tier, *now)

    assert ran.code == 0
    noted = [line for line in ran.stderr.splitlines() if line.startswith("note: ")]
    assert bool(noted) == (names is not None)
    if names is not None:
        assert noted[0].startswith(f"note: stream {names[0]!r} is new on the tier, which has {names[1]!r}: ")


def test_a_store_with_topics_of_the_broker_alone_has_no_stream(tmp_path: Path) -> None:
    BrokerStore(tmp_path).append("SCHEDULE_TOPIC_XXXX", 2, b"a")

    with pytest.raises(NotOffloaded, match="no queue but those of the broker itself"):
        copies_of(tmp_path)


@pytest.mark.parametrize("broker", ["", "a/b", "x" * 70000])
def test_a_name_of_a_broker_that_cannot_be_is_a_misuse(broker: str) -> None:
    with pytest.raises(Misuse, match="option 'broker' takes the name of a broker"):
        open_url("rocketmq:///store", options={"broker": broker})


@pytest.mark.parametrize("url", ["rocketmq://", "rocketmq:///a\0b"])
def test_a_url_without_a_path_is_a_misuse(url: str) -> None:
    with pytest.raises(Misuse, match="is no source: use rocketmq:// and the path"):
        open_url(url, options={})


def test_the_plugin_declares_the_source() -> None:
    declared = {each.declaration.name for each in Plugins.find().of_kind("source")}

    assert "rocketmq" in declared


def test_positions_in_the_shared_log_are_those_of_the_records(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path, log_size=1024)
    for number in range(40):
        store.append("Orders", number % 2, b"%d" % number)

    async def run() -> None:
        for stream in await RocketmqSource(tmp_path).streams():
            assert isinstance(stream, RocketmqStream)
            assert stream.shared_log.key == str(tmp_path / "commitlog")
            async with await stream.snapshot() as snapshot:
                found = [await stream.log_position(offset) for offset in range(snapshot.next_offset)]
            assert found == store.positions["Orders", int(stream.name[-1])]

    asyncio.run(run())


def test_a_snapshot_does_not_grow_and_the_next_one_counts_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BrokerStore(tmp_path, queue_units=8)
    for number in range(11):
        store.append("Orders", 0, b"%d" % number)

    async def run() -> None:
        (stream,) = await RocketmqSource(tmp_path).streams()
        mark = await stream.mark()
        assert await stream.mark() == mark
        snapshot = await stream.snapshot()
        store.append("Orders", 0, b"new")
        assert await stream.mark() != mark
        assert snapshot.next_offset == 11
        assert [int((await ledger.table())["records"].sum()) for ledger in snapshot.ledgers] == [8, 3]
        assert isinstance(stream, RocketmqStream)
        files, reads = stream._files, list[tuple[int, int]]()
        units = type(files).units
        monkeypatch.setattr(type(files), "units", lambda *args: reads.append(args[1:3]) or units(*args))
        async with await stream.snapshot() as snapshot:
            assert snapshot.next_offset == 12
        assert [read for read in reads if read[0] == 0 and read[1] > 0] == [], (
            "a full file is not counted again"
        )

    asyncio.run(run())


def test_a_log_file_that_is_deleted_while_it_is_read_is_tried_again(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path, log_size=1024)
    for number in range(24):
        store.append("Orders", 0, b"%d" % number)

    async def run() -> None:
        (stream,) = await RocketmqSource(tmp_path).streams()
        snapshot = await stream.snapshot()
        store.log_file(0).unlink()
        with pytest.raises(TryAgain, match="the broker removed it meanwhile"):
            await snapshot.ledgers[0].table()

    asyncio.run(run())


@settings(max_examples=150 if CAMPAIGN else 20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, 900)), max_size=12),
            st.integers(0, 12),
            st.booleans(),
        ),
        max_size=8,
    ),
    st.sampled_from([1, 700, 5000]),
)
def test_no_record_is_lost_while_a_broker_writes_and_deletes(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[list[tuple[int, int]], int, bool]],
    span_ms: int,
) -> None:
    """A step appends to three queues, copies in the same or in a new process, and deletes what was copied."""
    store, tier = BrokerStore(tmp_path_factory.mktemp("store"), log_size=1500, span_ms=span_ms), memory_tier()

    async def run() -> None:
        source = RocketmqSource(store.folder)
        for appended, kept, restarts in steps:
            for queue, size in appended:
                store.append("Orders", queue, np.random.default_rng(store.count).bytes(size))
            if not store.records:
                continue
            if restarts:
                source = RocketmqSource(store.folder)
            reports = await synced(source, tier)
            assert [report.error for report in reports.values() if report.error] == []
            assert await copied(tier) == all_records(store)
            written = sorted(each for positions in store.positions.values() for each in positions)
            store.delete_log(before=written[-min(kept + 1, len(written))])

    asyncio.run(run())


def test_the_lock_of_a_store_is_looked_at_and_never_taken(tmp_path: Path) -> None:
    """A broker that starts at that moment must get it."""
    store = BrokerStore(tmp_path)
    store.append("Orders", 0, b"a")
    (tmp_path / "abort").touch()
    with (tmp_path / "lock").open("w") as file:
        reports, _ = copies_of(tmp_path)
        assert reports["Orders/0"].error is None
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert issubclass(RocketmqStream, EntryLedgerStream)


def test_a_store_that_is_put_in_the_place_of_another_is_compared_by_its_own_bytes(tmp_path: Path) -> None:
    """All sizes agree with those of the log before, which this process has mapped."""
    folder, tier = tmp_path / "store", memory_tier()
    before, after = BrokerStore(folder), BrokerStore(folder, span_ms=3000)

    async def run() -> None:
        source = RocketmqSource(folder)
        for number in range(5):
            before.append("Orders", 0, b"old %d" % number)
        await synced(source, tier)
        kept = await copied(tier)
        for number in range(5, 7):
            before.append("Orders", 0, b"old %d" % number)
        shutil.rmtree(folder)
        for number in range(7):
            after.append("Orders", 0, b"new %d" % number)

        error = (await synced(source, tier))["Orders/0"].error

        assert isinstance(error, Diverged)
        assert error.kind is Divergence.FORK
        assert await copied(tier) == kept

    asyncio.run(run())
