"""Tests of Pulsar's bucket as a tier that can only be read."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from command_line import offload
from offload_pulsar import BrokerNames, PulsarBucket, PulsarCatalogue, PulsarKey
from offload_pulsar.blocks import ENTRY_HEADER
from offload_pulsar.index import PulsarIndex
from offload_pulsar.ledger_metadata import LedgerMetadata, message_class
from offload_pulsar.source import PulsarSource
from offload_spark.bounds import ScanBounds
from pulsar_sets import DATA, ORDERS, ListedEntries, PulsarBrokers, store_of, uid_of
from spark.in_process import Tier

from offload import NotOffloaded, Retention, StreamDeleted, StreamReader, VerifyReport, trim
from offload.cache.block_cache import BlockCache
from offload.contracts.store import Body
from offload.ground.errors import Absent, Corrupt, Misuse, OffloadError
from offload.model.entry import entries_of_rows
from offload.model.position import AtTime
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.verify.tier import verify

ENTRIES = [b"%d|" % number + b"x" * (number * 13 % 40) for number in range(30)]


class World(PulsarBrokers):
    """A bucket of Pulsar's, and the tier that it is."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        super().__init__(store)
        self.tier = PulsarCatalogue(PulsarSource(self.store, "pulsar+memory://b", env=self.clock.env()))

    async def offload(
        self, ledger_id: int, entries: Sequence[bytes] = ENTRIES, *, name: str = ORDERS, block: int = 300
    ) -> PulsarKey:
        return await super().offload(ledger_id, entries, name=name, block=block)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger that was offloaded, and let the listing of the bucket grow old."""
        await super().delete(ledger_id)
        self.clock.now += 60

    async def read(self, start: int = 0, stream: str = ORDERS) -> list[bytes]:
        reader = await StreamReader.open(self.tier, stream)
        return [bytes(body) async for batch in reader.messages(start) for body in batch.bodies]


def test_a_fragment_is_a_block_and_each_offset_is_read_from_its_own() -> None:
    async def main() -> None:
        world = World()
        await world.offload(3)
        await world.offload(9, ENTRIES[:7])
        view = await world.tier.view(ORDERS)
        entries = entries_of_rows(view.committed.entries)

        assert (view.committed.first_offset, view.committed.next_offset) == (0, 37)
        assert len(entries) > 5
        assert {entry.ledger_id for entry in entries} == {3, 9}
        whole = [*ENTRIES, *ENTRIES[:7]]
        for start in range(0, 37, 3):
            assert await world.read(start) == whole[start:]
            found = await view.find(start)
            assert found is not None
            assert found.first_offset <= start < found.next_offset

    asyncio.run(main())


def test_offsets_count_from_the_oldest_ledger_and_a_reader_learns_that_they_moved() -> None:
    async def main() -> None:
        world = World()
        await world.offload(3)
        await world.offload(9, ENTRIES[:7])
        reader = await StreamReader.open(world.tier, ORDERS)
        batches = reader.messages(0)
        await anext(batches)
        await world.delete(3)

        with pytest.raises(StreamDeleted, match="deleted while it was read"):
            async for _ in batches:
                pass

        assert await world.read() == ENTRIES[:7]
        assert "offsets count from the oldest ledger" in world.tier.notes[0]

    asyncio.run(main())


def test_a_deletion_since_the_last_look_at_the_bucket_is_no_damage() -> None:
    """The listing is shared for some seconds. It is not trusted against an object that is gone."""

    async def main() -> None:
        for is_cached in (True, False):
            world = World()
            await world.offload(3)
            await world.offload(9, ENTRIES[:7])
            reader = await StreamReader.open(world.tier, ORDERS)
            batches = reader.messages(0)
            if is_cached:
                await anext(batches)
            else:
                world.tier._source._opened.clear()
            await PulsarBucket(world.store).delete(3, world.uids[3])

            with pytest.raises(StreamDeleted, match="deleted while it was read"):
                async for _ in batches:
                    pass

    asyncio.run(main())


def test_a_process_that_opened_one_ledger_of_an_object_finds_the_others() -> None:
    async def main() -> None:
        store = await store_of("v2-three-ledgers")
        names = await World(store).tier.streams()
        assert len(names) == 3
        view = await World(store).tier.view(names[0])
        (entry, *_) = entries_of_rows(view.committed.entries)
        other = World(store).tier
        async with await other.view_of(view.committed).open(entry) as handle:
            assert (await handle.table())["records"].sum() == entry.records
        assert await other.streams() == names

    asyncio.run(main())


@pytest.mark.parametrize("last", [2**62, 2**63 - 1])
def test_a_number_of_entries_beyond_all_offsets_is_damage(last: int) -> None:
    async def main() -> None:
        world = World()
        for ledger_id in (3, 4):
            key = str((await world.offload(ledger_id, [b"a"])).index)
            old: Any = world.store.objects[key]
            index = PulsarIndex.decode(old, ledger_id=ledger_id, where=key)
            (group,) = index.groups
            message = message_class("bookkeeper.LedgerMetadata").FromString(group.metadata.raw)
            message.lastEntryId = last
            metadata = LedgerMetadata.decode(message.SerializeToString(), where=key)
            index = replace(index, groups=(replace(group, metadata=metadata),))
            world.store.objects[key] = type(old).of(index.encode(), old.metadata)

        with pytest.raises(Corrupt, match="number of entries of ledger"):
            await world.tier.view(ORDERS)

    asyncio.run(main())


def test_a_follower_learns_that_a_ledger_was_added_behind_a_newer_one() -> None:
    """Pulsar goes on with the next ledger when one fails, and tries the failed one again later."""

    async def main() -> None:
        world = World()
        await world.offload(3)
        await world.offload(7)
        view = await world.tier.view(ORDERS)
        await world.offload(5)
        await world.offload(9)
        world.clock.now += 60

        with pytest.raises(StreamDeleted, match="moved while it was read"):
            await world.tier.newer_view(view.committed)

    asyncio.run(main())


def test_a_view_stays_while_ledgers_are_added() -> None:
    async def main() -> None:
        world = World()
        await world.offload(3)
        view = await world.tier.view(ORDERS)
        await world.offload(9)
        world.clock.now += 60
        assert view.committed.next_offset == 30
        newer = await world.tier.newer_view(view.committed)
        assert newer is not None
        assert newer.committed.next_offset == 60
        assert await world.tier.newer_view(newer.committed) is None

    asyncio.run(main())


def message(publish_ms: int) -> bytes:
    """Return an entry of one message."""
    metadata = message_class("messages.EntryMetadata")(
        producer_name=b"p", sequence_id=1, publish_time=publish_ms
    ).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata + b"hello"


def test_a_time_is_found_in_the_block_that_has_it() -> None:
    """Times go back within blocks, and rise from one to the next."""

    async def main() -> None:
        world = World()
        await world.offload(3, [message(1000 + 10 * number + number * 7 % 5 * 3) for number in range(40)])
        await world.offload(5, [message(2000 + number) for number in range(3)])
        view = await world.tier.view(ORDERS)
        blocks, greatest = entries_of_rows(view.committed.entries), list[int]()
        for block in blocks:
            async with await view.open(block) as handle:
                greatest.append(int((await handle.table())["timestamp_ms"].max()))

        assert len(blocks) > 5
        assert await view.last_timestamp_ms() == greatest[-1] == 2002
        for timestamp_ms in sorted({0, 2003, *greatest, *(ms + 1 for ms in greatest)}):
            expected = next(
                (block for block, ms in zip(blocks, greatest, strict=True) if ms >= timestamp_ms), None
            )
            assert await view.first_since(timestamp_ms) == expected
        reader = await StreamReader.open(world.tier, ORDERS)
        assert (await reader.place_of(AtTime(2003))).offset == view.committed.next_offset

    asyncio.run(main())


def test_the_first_of_several_blocks_of_one_time_is_found() -> None:
    async def main() -> None:
        world = World()
        await world.offload(3, [message(1000 if number < 12 else 2000) for number in range(40)])
        view = await world.tier.view(ORDERS)
        blocks = entries_of_rows(view.committed.entries)
        first = next(block for block in blocks if block.next_offset > 12)

        assert sum(block.first_offset >= 12 for block in blocks) > 2
        assert await view.first_since(1000) == blocks[0]
        assert await view.first_since(1001) == await view.first_since(2000) == first

    asyncio.run(main())


def test_a_number_of_blocks_that_changed_since_the_view_is_damage() -> None:
    async def main() -> None:
        world = World()
        key = await world.offload(3)
        view = await world.tier.view(ORDERS)
        blocks = entries_of_rows(view.committed.entries)
        other = World(world.store)
        other.uids = {3: key.uid}
        await other.delete(3)
        names = BrokerNames(managed_ledger=ORDERS)
        await PulsarBucket(world.store).offload(ListedEntries(3, ENTRIES), key.uid, names=names)

        for block in blocks[1:]:
            with pytest.raises(Corrupt, match=r"number of blocks: expected above \d+, found 1"):
                await other.tier.view_of(view.committed).open(block)

    asyncio.run(main())


def test_a_ledger_that_is_gone_is_absent_and_damage_names_its_byte() -> None:
    async def main() -> None:
        world = World()
        key = await world.offload(3)
        view = await world.tier.view(ORDERS)
        entry = entries_of_rows(view.committed.entries)[1]
        handle = await view.open(entry)
        data = bytearray(world.store.objects[str(key)])
        data[300 + 3] ^= 1  # in the magic of the second block
        await world.store.put(str(key), Body.of(bytes(data)))
        with pytest.raises(Corrupt, match=f"{key} at byte 300"):
            await handle.table()
        await world.store.delete([str(key)])
        with pytest.raises(Absent):
            await (await World(world.store).tier.view_of(view.committed).open(entry)).table()
        await world.delete(3)
        with pytest.raises(Absent):
            await (await World(world.store).tier.view_of(view.committed).open(entry)).table()
        with pytest.raises(NotOffloaded):
            await world.tier.view(ORDERS)

    asyncio.run(main())


def test_verify_reads_every_block_and_names_the_damaged_one() -> None:
    async def main() -> None:
        world = World()
        await world.offload(3)
        key = await world.offload(9)
        for is_damaged in (False, True):
            if is_damaged:
                old = world.store.objects[str(key)]
                data = bytearray(old)
                data[600 + 1] ^= 1
                world.store.objects[str(key)] = type(old).of(bytes(data), old.metadata)  # type: ignore[attr-defined]
            report = VerifyReport()
            await verify(World(world.store).tier, report=report)
            assert [damage.position for damage in report.damages] == [600] * is_damaged
            assert report.objects == len((await world.tier.view(ORDERS)).committed.entries)

    asyncio.run(main())


@pytest.mark.parametrize("ledger_id", [3, 9, 12])
@pytest.mark.parametrize("what", ["no data", "a cut index"])
def test_a_stream_with_a_ledger_that_cannot_be_read_is_damage_and_never_a_shorter_stream(
    ledger_id: int, what: str
) -> None:
    """A view that ended before it would look whole: `verify` would find nothing, and Spark count less."""

    async def main() -> None:
        world = World()
        keys = {each: await world.offload(each) for each in (3, 9, 12)}
        key = keys[ledger_id]
        if what == "no data":
            await world.store.delete([str(key)])
        else:
            whole = world.store.objects[str(key.index)]
            world.store.objects[str(key.index)] = type(whole).of(bytes(whole)[:-3], whole.metadata)

        with pytest.raises(Corrupt, match=str(key)):
            await world.tier.view(ORDERS)
        [damage] = (await verify(world.tier)).damages
        assert (damage.stream, str(key) in damage.where) == (ORDERS, True)

    asyncio.run(main())


def test_two_attempts_that_state_different_entries_have_no_view() -> None:
    async def main() -> None:
        world = World()
        keys = [await world.offload(3), await world.offload(3, ENTRIES[:-1])]
        with pytest.raises(Corrupt, match="twice") as raised:
            await world.tier.view(ORDERS)
        assert all(str(key) in str(raised.value) for key in keys)

    asyncio.run(main())


def test_ls_names_a_damaged_stream_and_lists_the_others(folder: str) -> None:
    place = Path(folder.removeprefix("pulsar+file://"))
    for path in [*place.iterdir()]:  # no index says of which ledger it is
        (place / path.name.replace("-ledger-7", "-ledger-8")).write_bytes(path.read_bytes())
    [index] = place.glob("*-ledger-7-index")
    index.write_bytes(b"\0" + index.read_bytes()[1:])

    ran = offload("ls", folder, "--json")

    assert ran.code == 1
    assert index.name in ran.stderr
    assert [row["stream"] for row in ran.objects] == ["ledger-8"]


def test_nothing_that_changes_a_tier_takes_it() -> None:
    async def main() -> None:
        world = World()
        await world.offload(3)
        with pytest.raises((Misuse, AttributeError, OffloadError)):
            await trim(world.tier, ORDERS, Retention(size_bytes_max=1))  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The URL of a folder with a set of real messages."""
    for path in (DATA / "messages").iterdir():
        if "-ledger-" in path.name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return f"pulsar+file://{tmp_path}"


def test_the_commands_that_read_work_on_it(folder: str) -> None:
    ran = [
        offload("ls", folder, "--json"),
        offload("inspect", folder, "ledger-7", "--json", "--verbose"),
        offload("verify", folder, "--json"),
        offload("read", folder, "ledger-7", "--decode", "pulsar"),
    ]

    assert [each.code for each in ran] == [0, 0, 0, 0], [each.stderr for each in ran]
    listed, inspected, verified, read = ran
    assert [row["messages"] for row in listed.objects] == [124]
    assert {(each["first_timestamp"], each["crc32c"]) for each in inspected.document["fragments"]} == {
        (None, None)
    }
    assert verified.document["damages"] == []
    expected = [json.loads(line) for line in (DATA / "messages" / "expected.jsonl").read_text().splitlines()]
    assert len(read.lines) == len(expected)
    assert all("offsets count from the oldest ledger" in each.stderr for each in ran)


def test_readers_at_the_same_time_share_the_requests_of_one() -> None:
    """Through one cache. Without it, four readers send more than twice the requests of one."""

    async def requests_of(world: World, readers: int) -> int:
        store = FaultyStore(world.store)
        tier = PulsarCatalogue(PulsarSource(store, "pulsar+memory://b"))
        async with aclosing(BlockCache(2**26)) as cache:

            async def read() -> int:
                reader = await StreamReader.open(tier, ORDERS, cache=cache)
                return sum([len(batch.bodies) async for batch in reader.messages(0)])

            found = await asyncio.gather(*(read() for _ in range(readers)))
        assert found == [8000] * readers
        return sum(call.operation == "get" for call in store.calls)

    async def main() -> None:
        world, names = World(), BrokerNames(managed_ledger=ORDERS)
        entries = [b"%07d" % number * 146 for number in range(8000)]
        bucket = PulsarBucket(world.store, block_size_bytes_max=2**21)
        await bucket.offload(ListedEntries(7, entries), uuid4(), names=names)

        assert await requests_of(world, 4) <= 1.2 * await requests_of(world, 1)

    asyncio.run(main())


def test_a_cut_object_is_noted_and_read_up_to_the_cut(folder: str, tmp_path: Path) -> None:
    [data] = [path for path in tmp_path.iterdir() if path.name.endswith("-ledger-7")]
    data.write_bytes(data.read_bytes()[:-10_000])

    listed, read = offload("ls", folder), offload("read", folder, "ledger-7", "--limit", "1")

    assert f"damaged: {data.name} has {data.stat().st_size} bytes, and its index states" in listed.stderr
    assert listed.stderr.count("`offload pulsar verify` names all damage") == 1
    assert (read.code, len(read.lines)) == (0, 1)


def test_damage_of_a_read_names_the_command_that_shows_all_of_it(folder: str, tmp_path: Path) -> None:
    [data] = [path for path in tmp_path.iterdir() if path.name.endswith("-ledger-7")]
    raw = bytearray(data.read_bytes())
    raw[139] ^= 1  # in the header of the first entry
    data.write_bytes(bytes(raw))

    ran = offload("read", folder, "ledger-7")

    assert ran.code == 1
    note, error = ran.stderr.splitlines()[-2:]
    assert note == "note: a ledger is damaged; `offload pulsar verify` names all damage"
    assert f"{data.name} at byte 132: id of an entry" in error


@pytest.mark.parametrize("is_cached", [False, True])
def test_damage_behind_the_end_of_a_read_is_no_error(is_cached: bool) -> None:
    async def main() -> None:
        world = World()
        key = str(await world.offload(3))
        raw = bytearray(world.store.objects[key])
        raw[raw.index(ENTRY_HEADER.pack(size_bytes=len(ENTRIES[10]), entry_id=10)) + 11] ^= 1
        await world.store.put(key, Body.of(bytes(raw), metadata=world.store.objects[key].metadata))
        cache = BlockCache(2**20) if is_cached else None
        reader = await StreamReader.open(world.tier, ORDERS, cache=cache)

        found = Counter[int]()

        async def read(until: int, start: int = 0) -> None:
            async with aclosing(reader.windows(start, until=until)) as windows:
                async for window in windows:
                    found[until] += int(window.rows["records"].sum())

        for until in (5, 10):
            await read(until)
            assert found[until] >= until
        with pytest.raises(Corrupt, match="id of an entry: expected 10, found 11"):
            await read(11)
        assert found[11] == 10
        with pytest.raises(Corrupt, match="id of an entry: expected 10, found 11"):
            await read(13, start=11)
        assert found[13] == 0
        if cache is not None:
            await cache.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["header", "checksum"])
@pytest.mark.parametrize("damaged", [0, 1, 50, 123])
def test_the_entries_before_a_damaged_one_are_read(
    where: str, damaged: int, folder: str, tmp_path: Path
) -> None:
    """They are those of one block, which is read whole for its sizes. Some entries have a checksum."""

    async def entry_of(number: int) -> bytes:
        ledger = await PulsarBucket(await store_of("messages")).open(7, uid_of("messages"))
        run = await ledger.entries(number, number, size_bytes=1)
        return bytes(run.data[run.starts[0] : run.ends[0]])

    [data] = [path for path in tmp_path.iterdir() if path.name.endswith("-ledger-7")]
    raw, entry = bytearray(data.read_bytes()), asyncio.run(entry_of(damaged))
    header = ENTRY_HEADER.pack(size_bytes=len(entry), entry_id=damaged)
    at = raw.index(header)
    # An entry without a checksum can have any bytes.
    is_payload = where == "checksum" and entry.startswith(b"\x0e\x01")
    raw[at + len(header) + 20 if is_payload else at + len(header) - 1] ^= 1
    data.write_bytes(bytes(raw))

    ran = offload("read", folder, "ledger-7", "--from", "0")

    assert (ran.code, len(ran.lines)) == (1, damaged)
    assert data.name in ran.stderr
    if damaged:
        assert offload("read", folder, "ledger-7", "--to", str(damaged)).code == 0
    behind = offload("read", folder, "ledger-7", "--from", str(damaged))
    assert (behind.code, behind.lines) == (1, [])


def test_a_time_behind_the_end_says_what_it_does_not_know(folder: str) -> None:
    ran = offload("read", folder, "ledger-7", "--from", "2030-01-01")

    assert "This tier keeps no times: earlier messages may have later ones, and `--from 0`" in ran.stderr


@pytest.mark.parametrize("command", [("ls", "{}"), ("sync", "{}", "{}-copy")])
def test_a_misspelt_option_of_the_bucket_is_named(folder: str, command: Sequence[str]) -> None:
    flag = "--source-option" if command[0] == "sync" else "-o"
    words = [word.format(folder) for word in command]

    ran = offload(*words, flag, "first-ofset=3")

    assert ran.code == 2
    assert ("did you mean 'first-offset', an option of 'pulsar'?" in ran.stderr) == (command[0] == "sync")


@pytest.mark.parametrize(
    "command",
    ["trim {} ledger-7 --max-age 1d", "sweep {}", "delete {} ledger-7 --yes", "compact {}", "sync {} {}"],
)
def test_the_commands_that_write_refuse_it_in_one_sentence(folder: str, command: str) -> None:
    ran = offload(*command.replace("{}", folder).split())

    assert ran.code in (1, 2)
    assert "is read-only" in ran.error


def test_spark_plans_and_scans_every_entry_once_and_filters_by_the_times_of_messages() -> None:
    """Entries know no times, so a filter on time may leave out chunks, and never a block unread."""
    world = World()

    async def fill() -> None:
        for ledger_id, publish_ms in ((3, 1000), (9, 2000)):
            await world.offload(ledger_id, [message(publish_ms + number) for number in range(30)])

    asyncio.run(fill())
    tier = Tier(make=lambda: PulsarCatalogue(PulsarSource(world.store, "pulsar+memory://b")))
    with tier.blocking:
        rows = tier.rows(tier.plan(minpartitions="5"))
        late = tier.rows(tier.plan(bounds=ScanBounds(first_timestamp_ms=2000)))

    assert [row[2] for row in rows] == [*range(60)]
    assert [row[4] for row in rows] == [
        message(publish_ms + number) for publish_ms in (1000, 2000) for number in range(30)
    ]
    assert {row[2] for row in late} >= {*range(30, 60)}
    assert len(late) < 60
