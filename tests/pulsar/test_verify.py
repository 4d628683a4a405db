"""Tests of verifying buckets: sound sets of Pulsar, its defects, and the bad input of strangers."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Ran, offload
from hypothesis import given
from hypothesis import strategies as st
from offload_pulsar import BrokerNames, PulsarBucket, PulsarKey, verifying
from offload_pulsar.index import LedgerGroup, PulsarIndex
from offload_pulsar.ledger_metadata import LedgerInfo, LedgerMetadata, message_class
from offload_pulsar.verifying import BucketReport, verify_bucket
from pulsar_sets import REPEATABLE, SETS, ListedEntries, objects_of, store_of, uid_of

from offload.contracts.store import Body
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

STORED = [name for name in SETS if (Path(__file__).parent.parent / "data" / "pulsar" / name).is_dir()]
SOUND = [name for name in STORED if name != "ledger-info" and "defect" not in name and "sparse" not in name]
KEY = PulsarKey(uid_of("exact-fit"), 7)
NAMES = BrokerNames(managed_ledger="public/default/persistent/orders")


def verified(store: MemoryStore) -> BucketReport:
    report = BucketReport(keeps_metadata=True)
    asyncio.run(verify_bucket(store, report))
    return report


def damages(store: MemoryStore) -> list[str]:
    return [str(each) for each in verified(store).damages]


@pytest.mark.parametrize("name", SOUND)
def test_what_pulsar_wrote_is_sound(name: str) -> None:
    report = verified(asyncio.run(store_of(name)))

    assert not report.damages
    assert report.attempts == 1
    assert report.size_bytes == report.total_size_bytes == sum(each["size"] for each in SETS[name]["objects"])
    if name in REPEATABLE:
        assert report.entries == SETS[name]["last_entry"] + 1


def test_entries_of_producers_have_checksums_of_their_own() -> None:
    report = verified(asyncio.run(store_of("messages")))

    assert (report.entries, report.checked_entries) == (124, 123)


def test_no_more_is_read_for_an_entry_that_crosses_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "WINDOW_SIZE_BYTES", 4096)

    async def main() -> None:
        inner = MemoryStore()
        bucket = PulsarBucket(inner)
        await bucket.offload(ListedEntries(7, [b"x" * 1000] * 100), KEY.uid, names=NAMES)
        old: Any = inner.objects[str(KEY)]
        data = bytearray(old)
        data[128:132] = b"\x7f\xff\xff\xff"
        inner.objects[str(KEY)] = type(old).of(bytes(data), old.metadata)
        store, report = FaultyStore(inner), BucketReport(keeps_metadata=True)

        await verify_bucket(store, report)

        assert [(each.what, each.position) for each in report.damages] == [("size of an entry", 128)]
        assert sum(call.operation == "get" for call in store.calls) <= 3

    asyncio.run(main())


@pytest.mark.parametrize("of", ["blocks", "entries"])
def test_the_damages_of_one_attempt_are_bounded(of: str) -> None:
    """The other blocks are left out, and counted as bytes that are behind."""

    async def main() -> MemoryStore:
        store = MemoryStore()
        entry = bytes.fromhex("0e01 00000000") + b"x" * 50  # its checksum is wrong
        bucket = PulsarBucket(store, block_size_bytes_max=200 if of == "blocks" else 4000)
        await bucket.offload(ListedEntries(7, [entry] * 40), KEY.uid, names=NAMES)
        if of == "blocks":
            old: Any = store.objects[str(KEY)]
            store.objects[str(KEY)] = type(old).of(bytes(len(old)), old.metadata)
        return store

    report = verified(asyncio.run(main()))

    assert len(report.damages) == verifying.DAMAGES_MAX
    assert report.size_bytes == report.total_size_bytes


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("defect-entry-larger-than-block", "-ledger-7-index at byte 140: offset of block 1"),
        ("defect-declared-length-0", "-ledger-7-index at byte 139: offset of block 1"),
        ("v2-defect-full-block", " at byte 5141: size of the data object"),
        ("sparse-entries-2^32", "-ledger-7 at byte 648: last entry of a block"),
    ],
)
def test_a_defect_of_pulsars_writer_is_found(name: str, damage: str) -> None:
    [found] = damages(asyncio.run(store_of(name)))

    assert f"{SETS[name]['uuid']}{damage}" in found


def changed(name: str, change: Callable[[str, bytearray], None]) -> MemoryStore:
    """Return a store with a sound ledger beside a set, whose two objects were changed."""

    async def main() -> MemoryStore:
        store = await store_of("messages")
        for row, data in objects_of(name):
            raw = bytearray(data)
            change("index" if row["key"].endswith("-index") else "data", raw)
            await store.put(row["key"], Body.of(bytes(raw), metadata=row["user_metadata"]))
        return store

    return asyncio.run(main())


def overwritten(role: str, at: int, to: str) -> Callable[[str, bytearray], None]:
    def change(of: str, raw: bytearray) -> None:
        if of == role:
            raw[at : at + len(to) // 2] = bytes.fromhex(to)

    return change


def cut_to(role: str, size: int) -> Callable[[str, bytearray], None]:
    def change(of: str, raw: bytearray) -> None:
        if of == role:
            del raw[size:]

    return change


BLOCKS = 188 - 4 * 20
"""Where the table of blocks begins in the index of `exact-fit`."""


@pytest.mark.parametrize(
    ("change", "damage"),
    [
        (overwritten("index", 0, "00"), "-index at byte 0: magic of the index"),
        (overwritten("index", 4, "ffffffff"), "-index at byte 4: index_size_bytes"),
        (overwritten("index", 24, "ffffffff"), "-index at byte 32: size of the index: expected at least"),
        (overwritten("index", 28, "ffffffff"), "-index at byte 32: size of the index: expected at least"),
        (overwritten("index", 8, "7fffffffffffffff"), " at byte 2752: size of the data object"),
        (overwritten("index", 32, "0a00"), "-index at byte 32: message bookkeeper.LedgerMetadata"),
        (overwritten("index", 32, "08ff"), "-index at byte 32: message bookkeeper.LedgerMetadata"),
        (overwritten("index", BLOCKS + 20 + 12, "0000000000000000"), f"-index at byte {BLOCKS + 32}: offset"),
        (overwritten("index", BLOCKS + 40 + 12, "0000000000000001"), f"-index at byte {BLOCKS + 52}: offset"),
        (overwritten("index", BLOCKS + 40 + 12, "ffffffffffffffff"), f"-index at byte {BLOCKS + 52}: offset"),
        (overwritten("index", BLOCKS + 40, "0000000000000000"), f"-index at byte {BLOCKS + 40}: first_entry"),
        (overwritten("data", 0, "00"), " at byte 0: magic of a block"),
        (overwritten("data", 12, "0000000000000000"), " at byte 12: block_size_bytes"),
        (overwritten("data", 12, "7fffffffffffffff"), " at byte 12: block_size_bytes"),
        (overwritten("data", 20, "0000000000000001"), " at byte 20: first_entry_id"),
        (overwritten("data", 128, "7fffffff"), " at byte 128: size of an entry"),
        (overwritten("data", 132, "0000000000000009"), " at byte 132: id of an entry"),
        (cut_to("index", 31), "-index at byte 0: size of the index"),
        (cut_to("index", 100), "-index at byte 4: index_size_bytes"),
        (cut_to("data", 1000), " at byte 1000: size of the data object"),
    ],
)
def test_a_changed_object_is_one_line_and_the_other_ledgers_go_on(
    change: Callable[[str, bytearray], None], damage: str
) -> None:
    report = verified(changed("exact-fit", change))

    [found] = report.damages
    assert f"{KEY}{damage}" in str(found)
    assert "\n" not in str(found)
    assert report.checked_entries == 123


def test_each_damaged_block_is_named_and_the_others_are_read() -> None:
    size = SETS["exact-fit"]["max_block_size"]

    def change(role: str, raw: bytearray) -> None:
        if role == "data":
            raw[0] = raw[2 * size] = 0

    report = verified(changed("exact-fit", change))

    assert [each.position for each in report.damages] == [0, 2 * size]


@given(number=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_no_flipped_bit_outside_of_payloads_goes_unnoticed(number: int, bit: int) -> None:
    entries = [b"\xaa" * size for size in (3, 0, 12, 50)]
    store = written(entries, block=200)
    raw = bytearray(store.objects[str(KEY)])
    payloads = np.zeros(len(raw), bool)
    at = 0
    for entry in entries:
        at = raw.index(entry, at) if entry else at
        payloads[at : at + len(entry)] = True
    places = (~payloads).nonzero()[0]
    place = int(places[number % len(places)])
    raw[place] ^= 1 << bit
    asyncio.run(store.put(str(KEY), Body.of(bytes(raw), metadata=NAMES.metadata(KEY))))

    assert damages(store)


def written(entries: list[bytes], *, block: int) -> MemoryStore:
    store = MemoryStore()
    asyncio.run(
        PulsarBucket(store, block_size_bytes_max=block).offload(
            ListedEntries(7, entries), KEY.uid, names=NAMES
        )
    )
    return store


@pytest.mark.parametrize("window", [140, 150, 4096])
def test_windows_of_any_size_give_the_same_verdict(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = written([b"x" * size for size in (0, 1, 700, 20, 5, 300, 300, 1)], block=1024)
    monkeypatch.setattr(verifying, "WINDOW_SIZE_BYTES", window)

    report = verified(store)

    assert not report.damages
    assert report.entries == 8
    assert report.size_bytes == report.total_size_bytes


@pytest.mark.parametrize("window", [140, 150])
def test_padding_behind_a_window_is_compared_too(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = written([b"x", b"y" * 800, b"z" * 100], block=1000)
    raw = bytearray(store.objects[str(KEY)])
    raw[999] ^= 1
    asyncio.run(store.put(str(KEY), Body.of(bytes(raw), metadata=NAMES.metadata(KEY))))
    monkeypatch.setattr(verifying, "WINDOW_SIZE_BYTES", window)

    [found] = damages(store)

    assert "padding of a block" in found


def test_the_sum_of_all_sizes_is_compared() -> None:
    store = written([b"abc", b"d"], block=200)
    metadata = LedgerMetadata.of(length=5, last_entry=1)
    wrong = PulsarIndex.of_blocks(7, metadata, [0], [len(store.objects[str(KEY)])])
    asyncio.run(store.put(str(KEY.index), Body.of(wrong.encode(), metadata=NAMES.metadata(KEY.index))))

    assert damages(store) == [f"{KEY} at byte 0: length of the ledger: expected 5, found 4"]


@pytest.mark.parametrize(
    "name", ["S3ManagedLedgerOffloaderFormatVersion", "s3MANAGEDLEDGEROFFLOADERformatversion"]
)
def test_names_of_metadata_have_no_case(name: str) -> None:
    async def main() -> MemoryStore:
        store = await store_of("exact-fit")
        for row, data in objects_of("exact-fit"):
            await store.put(row["key"], Body.of(data, metadata={name: "1"}))
        return store

    assert not damages(asyncio.run(main()))


@pytest.mark.parametrize("version", [None, "2", "1.0"])
@pytest.mark.parametrize("role", ["data", "index"])
def test_a_foreign_version_is_damage(role: str, version: str | None) -> None:
    async def main() -> MemoryStore:
        store = await store_of("exact-fit")
        for row, data in objects_of("exact-fit"):
            metadata = dict(row["user_metadata"])
            if metadata["role"] == role:
                del metadata["s3managedledgeroffloaderformatversion"]
                if version is not None:
                    metadata["s3managedledgeroffloaderformatversion"] = version
            await store.put(row["key"], Body.of(data, metadata=metadata))
        return store

    [found] = damages(asyncio.run(main()))
    assert "metadata s3managedledgeroffloaderformatversion: expected 1" in found


def test_a_million_unknown_fields_take_little_memory() -> None:
    unknown = b"\xa8\x06\x01" * 10**6
    message = LedgerMetadata.of(length=1, last_entry=0).raw + unknown
    count, size = (1).to_bytes(4, "big"), len(message).to_bytes(4, "big")
    block = bytes(8) + (1).to_bytes(4, "big") + bytes(8)
    head = (32 + len(message) + 20).to_bytes(4, "big") + (141).to_bytes(8, "big") + (128).to_bytes(8, "big")
    raw = bytes.fromhex("de47de47") + head + count + size + message + block

    store = written([b"x"], block=200)
    asyncio.run(store.put(str(KEY.index), Body.of(raw, metadata=NAMES.metadata(KEY.index))))

    tracemalloc.start()
    [found] = damages(store)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert "size of bookkeeper.LedgerMetadata: expected at most 1048576" in found
    assert peak < 32 * 2**20


def test_an_object_that_is_deleted_meanwhile_is_no_damage() -> None:
    class Deleting(MemoryStore):
        async def get(self, key: str, span: Any = None) -> Any:
            if str(KEY) in key:
                await self.delete((str(KEY), str(KEY.index)))
            return await super().get(key, span)

    async def main() -> BucketReport:
        store = Deleting()
        for name in ("exact-fit", "messages"):
            for row, data in objects_of(name):
                await store.put(row["key"], Body.of(data, metadata=row["user_metadata"]))
        report = BucketReport(keeps_metadata=True)
        await verify_bucket(store, report)
        return report

    report = asyncio.run(main())

    assert not report.damages
    assert (report.gone, report.attempts) == (1, 1)


class TestCommand:
    """`offload pulsar verify` on a folder."""

    def folder(self, path: Path, *names: str) -> Path:
        path.mkdir(exist_ok=True)
        for name in names:
            for row, data in objects_of(name):
                (path / row["key"]).write_bytes(data)
        return path

    def verify(self, folder: Path, *options: str) -> Ran:
        return offload("pulsar", "verify", f"pulsar+file://{folder}", *options)

    def test_a_sound_bucket_ends_with_what_was_not_proved(self, tmp_path: Path) -> None:
        ran = self.verify(self.folder(tmp_path / "b", *SOUND))

        assert ran.code == 0
        assert "offload it again" not in ran.stderr
        assert "all of them sound" in ran.lines[-2]
        assert ran.lines[-1].startswith("not proved: Pulsar's format has no checksums. 123 entries have")
        assert "keeps no metadata: no version was compared" in ran.stderr

    def test_an_object_without_the_beginning_of_a_ledger_is_sound_and_named(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path / "b", "v2-three-ledgers")

        ran, document = self.verify(folder), json.loads(self.verify(folder, "--json").text)

        has = f"{uid_of('v2-three-ledgers')} has ledger 7 from entry 40 on"
        assert ran.code == 0
        assert (
            f"note: {has}: the rest is not there, so `offload ls` and `sync` refuse the ledger" in ran.stderr
        )
        assert document["without_beginning"] == [has]

    def test_damage_garbage_and_strangers_are_told_apart(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path / "b", "messages", "exact-fit", "padding-1", "v2-one-ledger")
        (folder / str(KEY)).unlink()
        (folder / f"{uid_of('padding-1')}-ledger-7-index").unlink()
        for name in ("readme.txt", f"{KEY}-Index", f"{KEY}0 ", f"{str(KEY).upper()}", f"x{KEY}"):
            (folder / name).write_bytes(b"stranger")

        ran = self.verify(folder)

        assert ran.code == 1
        assert f"DAMAGE {KEY} at byte 0: data object: expected present, found absent" in ran.lines
        assert f"GARBAGE {uid_of('padding-1')}-ledger-7: data without index, 2.5 KiB" in ran.lines
        assert ran.stderr.count("not an object of Pulsar's") == 5
        assert "2 ledgers, 144 entries" in ran.text
        assert "offload it again if BookKeeper has the ledger" in ran.stderr

    def test_a_flood_of_strangers_is_counted(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path / "b", "one-entry")
        for number in range(50):
            (folder / f"stranger-{number}").touch()

        ran = self.verify(folder)

        assert ran.code == 0
        assert ran.stderr.count("not an object of Pulsar's") == verifying.STRANGERS_MAX
        assert "30 more objects of others" in ran.stderr

    def test_json_is_one_document(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path / "b", "messages", "defect-declared-length-0")

        ran = self.verify(folder, "--json")

        document = json.loads(ran.text)
        assert ran.code == 1
        assert document["entries_with_checksum"] == 123
        assert document["entries_without_checksum"] == 1
        assert not document["versions_checked"]
        assert [each["byte"] for each in document["damages"]] == [139]

    def test_a_place_without_objects_of_pulsars_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("a stranger")

        ran = self.verify(tmp_path)

        assert ran.code == 1
        assert "has no ledger of Pulsar's: is it the right place?" in ran.stderr

    def test_a_place_without_backend_is_a_wrong_argument(self) -> None:
        ran = offload("pulsar", "verify", "pulsar+nowhere://bucket")

        assert ran.code == 2
        assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(("ledger_id", "is_found"), [(7, False), (8, True)])
def test_a_stated_length_is_compared_if_the_object_has_the_whole_ledger(
    ledger_id: int, is_found: bool
) -> None:
    """Ledger 7 begins at entry 40 of this object, so its length is not that of what is here."""

    def change(role: str, raw: bytearray) -> None:
        if role == "index":
            index = PulsarIndex.decode(bytes(raw), ledger_id=None, where="")
            raw[:] = replace(index, groups=tuple(map(longer, index.groups))).encode()

    def longer(group: LedgerGroup) -> LedgerGroup:
        if group.ledger_id != ledger_id:
            return group
        entries = group.last_entry + 1
        stated = LedgerInfo.of(ledger_id=ledger_id, entries=entries, length=10_000, closed_ms=0)
        return replace(group, metadata=stated)

    found = verified(changed("v2-three-ledgers", change)).damages

    assert [each.what for each in found] == (["length of the ledger"] if is_found else [])


def test_the_messages_of_a_wrong_type_are_refused() -> None:
    text = message_class("messages.EntryMetadata")(producer_name=b"x", sequence_id=1, publish_time=1)

    def change(role: str, raw: bytearray) -> None:
        if role == "index":
            raw[32 : 32 + text.ByteSize()] = text.SerializeToString()

    [found] = verified(changed("exact-fit", change)).damages
    assert "message bookkeeper.LedgerMetadata" in str(found)
