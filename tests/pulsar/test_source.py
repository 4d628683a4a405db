"""Tests of Pulsar's bucket as a source: what is copied, under which offsets, and what is left out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from offload_pulsar import PulsarKey
from offload_pulsar import ledger as ledger_module
from offload_pulsar.ledger import PulsarLedger
from offload_pulsar.ledger_metadata import message_class
from offload_pulsar.source import PulsarSource, open_url
from pulsar_sets import DATA, ORDERS, PulsarBrokers, store_of

from offload import (
    Env,
    Misuse,
    NotOffloaded,
    ObjectStoreOffloader,
    Retention,
    StreamReader,
    StreamReport,
    TierOptions,
    sync,
    trim,
)
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Span
from offload.ground.errors import Corrupt, Denied, Diverged, TryAgain
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore

OTHER = "public/default/persistent/other"
BLOCK_SIZE_BYTES = 300


def entries_of(ledger_id: int, count: int = 10) -> list[bytes]:
    return [b"%d-%d|" % (ledger_id, number) + b"x" * (number * 13 % 40) for number in range(count)]


class World(PulsarBrokers):
    """A bucket that Pulsar fills and trims, and a tier."""

    def __init__(self, *, keeps_metadata: bool = True) -> None:
        super().__init__(MemoryStore() if keeps_metadata else NoMetadata())
        self.tier = ObjectStoreOffloader(MemoryStore(), options=TierOptions(fragment_size_bytes=400))
        self.source = self.new_source()

    def new_source(self, **options: Any) -> PulsarSource:
        return PulsarSource(self.store, "pulsar+memory://bucket", env=self.clock.env(), **options)

    async def offload(
        self, ledger_id: int, entries: Sequence[bytes] | None = None, *, name: str = ORDERS, block: int = 300
    ) -> PulsarKey:
        entries = entries_of(ledger_id) if entries is None else entries
        return await super().offload(ledger_id, entries, name=name, block=block)

    async def sync(self) -> dict[str, StreamReport]:
        """Copy what is new, as a run of the command does."""
        self.clock.now += 60
        return {report.stream: report async for report in sync(self.source, self.tier)}

    async def read(self, stream: str = ORDERS) -> list[tuple[int, bytes]]:
        reader = await StreamReader.open(self.tier, stream)
        return [
            (batch.offset + row, bytes(body))
            async for batch in reader.messages(reader.manifest.first_offset)
            for row, body in enumerate(batch.bodies)
        ]


class NoMetadata(MemoryStore):
    """A store as a folder is: objects have no metadata."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, metadata_size_bytes_max=0)


class Deleting(FaultyStore):
    """A store of which an object is deleted before anybody asks for its metadata."""

    def __init__(self, inner: MemoryStore, key: str) -> None:
        super().__init__(inner)
        self.key = key

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        if key == self.key:
            await self.delete([key])
        return await super().metadata_of(key)


def rewrite(store: MemoryStore, key: object, data: bytes | None = None, **metadata: str) -> None:
    """Give an object other bytes, or more metadata, than any of our writers would."""
    old: Any = store.objects[str(key)]
    store.objects[str(key)] = type(old).of(old if data is None else data, {**old.metadata, **metadata})


def run(act: Callable[[World], Awaitable[None]], **options: bool) -> None:
    asyncio.run(act(World(**options)))


def numbered(*ledgers: list[bytes], begin: int = 0) -> list[tuple[int, bytes]]:
    return [*enumerate([entry for ledger in ledgers for entry in ledger], begin)]


def test_a_stream_is_the_managed_ledger_and_a_record_is_an_entry() -> None:
    async def act(world: World) -> None:
        for ledger_id in (12, 3):
            await world.offload(ledger_id)
        await world.offload(5, name=OTHER)

        reports = await world.sync()

        assert [*reports] == [ORDERS, OTHER]
        assert not any(report.error for report in reports.values())
        assert await world.read() == numbered(entries_of(3), entries_of(12))
        assert await world.read(OTHER) == numbered(entries_of(5))
        assert not world.source.notes

    run(act)


def test_offsets_stay_while_pulsar_deletes_its_oldest_ledgers() -> None:
    """Also if everything that was there is gone."""

    async def act(world: World) -> None:
        await world.offload(3)
        await world.offload(7)
        await world.sync()
        await world.delete(3)
        await world.offload(9)
        world.source = world.new_source()  # another process
        assert (await world.sync())[ORDERS].error is None
        for ledger_id in (7, 9):
            await world.delete(ledger_id)
        await world.offload(11)

        assert (await world.sync())[ORDERS].error is None

        assert await world.read() == numbered(*map(entries_of, (3, 7, 9, 11)))

    run(act)


def test_offsets_stay_after_a_trim_of_the_tier_too() -> None:
    """The manifest alone does not show where the ledger begins then: the source asks the tier."""

    async def act(world: World) -> None:
        large = [bytes([number]) * 100_000 for number in range(30)]  # three chunks
        await world.offload(3, large, block=2**23)
        await world.sync()
        await trim(world.tier, ORDERS, Retention(size_bytes_max=1_500_000))
        await world.offload(4)
        world.source = world.new_source()

        assert (await world.sync())[ORDERS].error is None

        found = await world.read()
        assert 15 < len(found) < 30
        assert found == numbered(large, entries_of(4))[-len(found) :]

    run(act)


def test_a_first_sync_may_begin_at_any_offset() -> None:
    async def act(world: World) -> None:
        await world.offload(3)
        world.source = world.new_source(first_offset=1000)
        await world.sync()
        await world.offload(4)
        await world.sync()
        assert await world.read() == numbered(entries_of(3), entries_of(4), begin=1000)

    run(act)


def test_another_first_offset_than_that_of_the_tier_is_refused() -> None:
    """It may be below: a trim of the tier raises its first offset, and the option stays."""

    async def act(world: World) -> None:
        await world.offload(3)
        world.source = world.new_source(first_offset=1000)
        await world.sync()
        await world.offload(4)

        world.source = world.new_source(first_offset=2000)
        error = (await world.sync())[ORDERS].error
        assert isinstance(error, Misuse)
        assert "begins at offset 1000 on the tier, and cannot begin at 2000" in str(error)

        world.source = world.new_source(first_offset=1000)
        assert (await world.sync())[ORDERS].error is None
        await trim(world.tier, ORDERS, Retention(before_offset=1010))
        await world.offload(5)
        assert (await world.sync())[ORDERS].error is None
        assert await world.read() == numbered(entries_of(4), entries_of(5), begin=1010)

    run(act)


def test_a_ledger_that_went_before_the_next_run_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing on the tier shows whether an interrupted run lacked its last entries.

    A stream object that saw the ledger has counted its entries, and needs no note.
    """

    async def act(world: World) -> None:
        await world.offload(3)
        [kept] = await world.source.streams()
        await kept.snapshot()
        await world.sync()
        await world.delete(3)
        await world.offload(4)

        await world.source.streams()
        await kept.snapshot(await world.tier.load_manifest(ORDERS))
        assert not world.source.notes

        for newest in (4, 5):
            assert (await world.sync())[ORDERS].error is None
            is_named = any("ledger 3, the newest on the tier" in note for note in world.source.notes)
            is_logged = "ledger 3, the newest on the tier" in caplog.text
            assert (is_named, is_logged) == (newest == 4, newest == 4)
            caplog.clear()
            await world.offload(newest + 1)

    run(act)


def test_a_committed_ledger_that_is_lost_between_others_is_named() -> None:
    async def act(world: World) -> None:
        for ledger_id in (3, 5, 7):
            await world.offload(ledger_id)
        await world.sync()
        await world.delete(5)
        await world.offload(8)

        for source in (world.source, world.new_source()):
            world.source = source
            error = (await world.sync())[ORDERS].error
            assert isinstance(error, Diverged | Corrupt)
            assert "missing" in str(error) or "ledger 5" in str(error)
        assert await world.read() == numbered(*map(entries_of, (3, 5, 7)))

    run(act)


@pytest.mark.parametrize(("before", "late", "deleted"), [((3, 7), 5, (3,)), ((7,), 3, ())])
def test_a_ledger_that_is_offloaded_behind_a_newer_one_is_named(
    before: Sequence[int], late: int, deleted: Sequence[int]
) -> None:
    """Pulsar goes on with the next ledger when one fails, and tries the failed one again later."""

    async def act(world: World) -> None:
        for ledger_id in before:
            await world.offload(ledger_id)
        await world.sync()
        for ledger_id in deleted:
            await world.delete(ledger_id)
        for ledger_id in (late, 9):
            await world.offload(ledger_id)

        for source in (world.source, world.new_source()):
            world.source = source
            error = (await world.sync())[ORDERS].error
            assert isinstance(error, Diverged)
            assert f"ledger {late} is older than ledger 7" in str(error)
        assert await world.read() == numbered(*map(entries_of, before))

    run(act)


def test_a_ledger_whose_offsets_were_trimmed_on_the_tier_is_no_late_one() -> None:
    async def act(world: World) -> None:
        for ledger_id in (3, 5, 7):
            await world.offload(ledger_id)
        await world.sync()
        await trim(world.tier, ORDERS, Retention(size_bytes_max=1))
        await world.offload(9)

        assert (await world.sync())[ORDERS].error is None

        found = await world.read()
        assert len(found) < 40
        assert found == numbered(*map(entries_of, (3, 5, 7, 9)))[-len(found) :]

    run(act)


def test_the_objects_of_an_attempt_belong_together_whatever_lies_between_them() -> None:
    """A copy of the data may sort before the index, and a store or a tool may change the case of names."""

    async def act(world: World) -> None:
        key = await world.offload(3)
        strangers = [f"{key}-backup", f"{key} copy", f"{key}.bak"]
        for stranger in strangers:
            await world.store.put(stranger, Body.of(b"?"))
        for each in (key, key.index):
            old: Any = world.store.objects[str(each)]
            shouted = {name.upper(): value for name, value in old.metadata.items()}
            world.store.objects[str(each)] = type(old).of(old, shouted)

        assert (await world.sync())[ORDERS].error is None

        assert await world.read() == numbered(entries_of(3))
        (note,) = world.source.notes
        assert "garbage" not in note
        assert all(repr(stranger) in note for stranger in strangers)

    run(act)


@pytest.mark.parametrize(("begin", "later"), [(0, 0), (1000, 1000), (1000, 0)])
def test_a_first_sync_that_failed_before_its_first_commit_is_repeated(begin: int, later: int) -> None:
    """The root is there, and has no fragment. Its offset stays, whatever the option says later."""

    async def act(world: World) -> None:
        await world.offload(3)
        denied = Rule(Fault.DENY, "put", "*.fragment")
        inner = MemoryStore()
        world.tier = ObjectStoreOffloader(FaultyStore(inner, rules=[denied]))
        world.source = world.new_source(first_offset=begin)
        assert isinstance((await world.sync())[ORDERS].error, Denied)
        world.tier = ObjectStoreOffloader(inner, options=TierOptions(fragment_size_bytes=400))
        world.source = world.new_source(first_offset=later)

        for ledgers in ([3], [3, 4]):
            assert (await world.sync())[ORDERS].error is None
            assert await world.read() == numbered(*map(entries_of, ledgers), begin=begin)
            await world.offload(4)

    run(act)


def test_a_tier_that_was_trimmed_to_nothing_goes_on() -> None:
    async def act(world: World) -> None:
        for ledger_id in (3, 5):
            await world.offload(ledger_id)
        await world.sync()
        await world.delete(3)
        await world.delete(5)
        await trim(world.tier, ORDERS, Retention(before_offset=20))
        await world.offload(9)
        world.source = world.new_source()

        assert (await world.sync())[ORDERS].error is None

        assert (await world.read())[-10:] == numbered(entries_of(9), begin=20)

    run(act)


def test_a_ledger_that_is_deleted_during_a_listing_is_no_stream_of_its_own() -> None:
    async def act(world: World) -> None:
        await world.offload(3)
        await world.offload(5)
        store = Deleting(world.store, str(PulsarKey(world.uids[3], 3)))
        world.source = PulsarSource(store, "pulsar+memory://bucket")

        assert [stream.name for stream in await world.source.streams()] == [ORDERS]

        assert len(await world.source.ledgers_of(ORDERS)) == 1
        assert not world.source.notes

    run(act)


def test_an_index_of_several_ledgers_without_data_is_noted() -> None:
    """It is of no stream: its ledgers are known only with the data."""

    async def act(world: World) -> None:
        world.store = await store_of("v2-three-ledgers")
        data = next(key for key in world.store.objects if not key.endswith("index"))
        del world.store.objects[data]

        with pytest.raises(NotOffloaded, match=f"{data}.*expected present, found absent"):
            await world.new_source().streams()

    run(act)


def test_the_ledgers_of_a_snapshot_hold_few_windows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot may have any number of ledgers, and they are open until it is closed."""
    monkeypatch.setattr(ledger_module, "WINDOWS_SIZE_BYTES_MAX", 3000)
    monkeypatch.setattr(ledger_module, "LEDGERS_WITH_WINDOWS_MAX", 3)

    async def act(world: World) -> None:
        for ledger_id in range(20):
            await world.offload(ledger_id, [b"x" * 200] * (5 if ledger_id < 10 else 1), block=2000)
        async with await (await world.source.stream(ORDERS)).snapshot() as snapshot:
            for handle in snapshot.ledgers:
                await handle.read((await handle.table())[:1])
                kept = [
                    ledger._windows
                    for opened in world.source._opened.values()
                    for ledger in opened
                    if ledger._windows
                ]
                assert 0 < len(kept) <= 3
                assert sum(len(window) for each in kept for window in each.values()) <= 3000 + 1200
        assert not any(each._windows for opened in world.source._opened.values() for each in opened)

    run(act)


def test_two_attempts_with_the_same_entries_are_one_ledger() -> None:
    """Their blocks may be cut differently. An attempt that did not end does not count."""

    async def act(world: World) -> None:
        await world.offload(3)
        await world.offload(3, block=1000)
        unfinished = await world.offload(3, [b"other"])
        await world.store.delete([str(unfinished.index)])

        assert (await world.sync())[ORDERS].error is None

        assert await world.read() == numbered(entries_of(3))
        assert [note for note in world.source.notes if str(unfinished) in note and "garbage" in note]

    run(act)


@pytest.mark.parametrize("other", [[*entries_of(4)[:-1], b"?" * len(entries_of(4)[-1])], entries_of(4)[:-1]])
def test_two_attempts_with_different_entries_are_both_named(other: list[bytes]) -> None:
    """The ledgers before them are copied."""

    async def act(world: World) -> None:
        await world.offload(3)
        keys = [await world.offload(4), await world.offload(4, other)]

        error = (await world.sync())[ORDERS].error

        assert isinstance(error, Diverged)
        assert all(str(key) in str(error) for key in keys)
        assert str(error).startswith(f"stream {ORDERS!r}: ledger 4 was offloaded twice, to ")
        assert "`offload pulsar scan --metadata FILE` shows which attempt" in str(error)
        assert await world.read() == numbered(entries_of(3))

    run(act)


@pytest.mark.parametrize("what", ["no data", "a cut index", "a foreign version"])
def test_damage_ends_its_own_stream_and_no_other(what: str) -> None:
    """The ledgers before it are copied, and those behind it as soon as it is repaired."""

    async def act(world: World) -> None:
        await world.offload(2)
        key = await world.offload(3)
        await world.offload(4)
        await world.offload(5, name=OTHER)
        objects = dict(world.store.objects)
        match what:
            case "no data":
                del world.store.objects[str(key)]
            case "a cut index":
                rewrite(world.store, key.index, objects[str(key.index)][:-3])
            case _:
                rewrite(world.store, key, s3managedledgeroffloaderformatversion="2")

        reports = await world.sync()

        error = reports[ORDERS].error
        assert isinstance(error, Corrupt)
        assert str(key) in str(error)
        assert reports[OTHER].error is None
        assert await world.read() == numbered(entries_of(2))
        world.store.objects.update(objects)
        assert (await world.sync())[ORDERS].error is None
        assert await world.read() == numbered(*map(entries_of, (2, 3, 4)))

    run(act)


def test_a_ledger_that_is_lost_for_good_can_be_moved_out_of_the_way() -> None:
    """In the same process too: it was never listed as whole."""

    async def act(world: World) -> None:
        for ledger_id in (2, 3, 4):
            key = await world.offload(ledger_id)
            if ledger_id == 3:
                rewrite(world.store, key.index, b"none")
        assert isinstance((await world.sync())[ORDERS].error, Corrupt)
        await world.delete(3)

        assert (await world.sync())[ORDERS].error is None

        assert await world.read() == numbered(*map(entries_of, (2, 4)))

    run(act)


def test_a_flipped_bit_of_a_block_header_is_named_by_object_and_byte() -> None:
    async def act(world: World) -> None:
        key = await world.offload(3)
        data = bytearray(world.store.objects[str(key)])
        data[BLOCK_SIZE_BYTES + 3] ^= 1  # in the magic of the second block
        rewrite(world.store, key, bytes(data))

        error = (await world.sync())[ORDERS].error

        assert isinstance(error, Corrupt)
        assert f"{key} at byte {BLOCK_SIZE_BYTES}" in str(error)
        assert "`offload pulsar verify` names all damage" in world.source.notes[-1]

    run(act)


def test_what_was_found_in_one_ledger_is_said_although_the_bucket_was_listed_again() -> None:
    """A sync of many streams takes longer than a listing is trusted."""

    async def act(world: World) -> None:
        key = await world.offload(3)
        await world.offload(4, name=OTHER)
        rewrite(world.store, key.index, b"none")
        await world.source.streams()
        await world.source.ledgers_of(ORDERS)
        world.clock.now += 60
        await world.source.ledgers_of(OTHER)
        assert "`offload pulsar verify` names all damage" in world.source.notes[-1]

        rewrite(world.store, key.index, b"none")
        await world.offload(3, name=OTHER)
        await world.source.streams()

        assert not world.source.notes

    run(act)


class Replaced(PulsarSource):
    """A source whose objects of V2 were replaced after they were listed."""

    async def _open(self, key: PulsarKey) -> Sequence[PulsarLedger]:
        return [each for each in await super()._open(key) if each.ledger_id != 8 or not self._found]


def test_an_object_that_lost_a_ledger_since_it_was_listed_is_looked_at_again() -> None:
    async def act(world: World) -> None:
        source = Replaced(await store_of("v2-three-ledgers"), "pulsar+memory://bucket")
        assert "ledger-8" in {stream.name for stream in await source.streams()}

        with pytest.raises(TryAgain, match="ledger 8 was deleted while it was opened"):
            await source.ledgers_of("ledger-8")

    run(act)


def test_a_store_without_metadata_has_a_stream_for_each_ledger_and_says_so() -> None:
    async def act(world: World) -> None:
        for ledger_id in (3, 2**40):
            await world.offload(ledger_id)

        reports = await world.sync()

        assert [*reports] == ["ledger-1099511627776", "ledger-3"]
        assert await world.read("ledger-3") == numbered(entries_of(3))
        assert "2 ledgers have no name" in world.source.notes[0]
        await world.delete(3)
        await world.source.streams()
        assert "1 ledger has no name" in world.source.notes[0]

    run(act, keeps_metadata=False)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/", "ledger-x", "ü\n\x1b[31m", "x" * 500])
def test_a_managed_ledger_may_have_any_name_that_a_stream_can_have(name: str) -> None:
    async def act(world: World) -> None:
        key = await world.offload(3)
        for each in (key, key.index):
            rewrite(world.store, each, managedledgername=name)

        assert (await world.sync())[name].error is None

        assert await world.read(name) == numbered(entries_of(3))

    run(act)


def test_strangers_and_names_that_no_stream_can_have_are_left_out_by_name() -> None:
    async def act(world: World) -> None:
        key = await world.offload(3)
        strangers = ["README", f"{key.uid}-ledger-03", f"{key.uid}-ledger-3-index2", "a/" + str(key)]
        for stranger in [*strangers, *(f"z{number}" for number in range(100))]:
            await world.store.put(stranger, Body.of(b"?"))
        nameless, taken = await world.offload(4), await world.offload(5)
        rewrite(world.store, nameless, managedledgername="\udcff")
        rewrite(world.store, taken, managedledgername="ledger-3")  # as that of a ledger without a name

        await world.sync()

        note, other = sorted(world.source.notes)
        assert str(nameless) in other
        assert str(taken) in other
        assert "whose name no stream can have" in other
        assert all(repr(stranger) in note for stranger in strangers)
        assert note.endswith(" and 99 more")
        assert await world.read() == numbered(entries_of(3))

    run(act)


def test_a_bucket_without_ledgers_is_an_error_that_says_what_it_has() -> None:
    async def act(world: World) -> None:
        with pytest.raises(NotOffloaded, match="no ledger of Pulsar's: is it the right place"):
            await world.source.streams()
        await world.store.put("README", Body.of(b"?"))
        with pytest.raises(NotOffloaded, match="not Pulsar's: 'README'"):
            await world.source.streams()

    run(act)


def test_real_messages_have_the_times_at_which_they_were_published() -> None:
    """A chunk has the time of its newest message."""

    async def act(world: World) -> None:
        rows = [json.loads(line) for line in (DATA / "messages" / "expected.jsonl").read_text().splitlines()]
        world.store = await store_of("messages")
        world.source = world.new_source()

        (name,) = await world.sync()

        reader = await StreamReader.open(world.tier, name)
        times = {batch.timestamp_ms async for batch in reader.messages(reader.manifest.first_offset)}
        assert max(times) == max(row["publish_time"] for row in rows)
        assert len(await world.read(name)) == len({row["entry"] for row in rows})

    run(act)


def test_a_time_beyond_64_bits_is_not_taken() -> None:
    async def act(world: World) -> None:
        message = message_class("messages.EntryMetadata")(
            producer_name=b"p", sequence_id=1, publish_time=2**63
        ).SerializeToString()
        await world.offload(3, [len(message).to_bytes(4, "big") + message])

        assert (await world.sync())[ORDERS].error is None

        reader = await StreamReader.open(world.tier, ORDERS)
        assert {batch.timestamp_ms async for batch in reader.messages(0)} == {0}

    run(act)


def test_an_object_that_lacks_the_beginning_of_a_ledger_is_damage() -> None:
    async def act(world: World) -> None:
        world.store = await store_of("v2-three-ledgers")
        found = await world.new_source().ledgers_of("ledger-7")
        assert [(each.what, each.found) for each in found if isinstance(each, Corrupt)] == [
            ("first entry of ledger 7", 40)
        ]

    run(act)


def test_an_entry_with_a_wrong_checksum_is_not_copied() -> None:
    async def act(world: World) -> None:
        world.store = await store_of("messages")
        world.source = world.new_source()
        key = next(key for key in world.store.objects if not key.endswith("index"))
        data = bytearray(world.store.objects[key])
        data[data.index(b"\x0e\x01") + 12] ^= 1
        rewrite(world.store, key, bytes(data))

        (report,) = (await world.sync()).values()

        assert isinstance(report.error, Corrupt)
        assert "checksum of the entry" in str(report.error)
        assert key in str(report.error)

    run(act)


def test_the_streams_of_a_bucket_share_a_look_and_each_index_is_read_once() -> None:
    async def act(world: World) -> None:
        for ledger_id in range(5):
            await world.offload(ledger_id, name=f"{ORDERS}-{ledger_id}")
        counted = FaultyStore(world.store)
        world.source = PulsarSource(counted, "pulsar+memory://bucket", env=world.clock.env())
        await world.sync()
        counted.calls.clear()
        for stream in await world.source.streams():
            await stream.mark()
            await stream.mark()

        assert [call.operation for call in counted.calls] == ["list"]

    run(act)


def test_a_source_changes_nothing() -> None:
    async def act(world: World) -> None:
        await world.offload(3)
        with pytest.raises(Misuse, match="never changed"):
            await world.source._bucket.delete(3, world.uids[3])
        assert await world.store.get(str(PulsarKey(world.uids[3], 3)), Span(0, 1))

    run(act)


@pytest.mark.parametrize("value", ["-1", "x", "1.5", str(2**63)])
def test_a_first_offset_is_a_number(value: str) -> None:
    context: Any = SimpleNamespace(env=Env(), store_options={}, open_store=lambda *_: MemoryStore())
    with pytest.raises(Misuse, match="'first-offset' takes an offset"):
        open_url("pulsar+s3://bucket", options={"first-offset": value}, context=context)
