"""Tests of indexes of ranges: they are right about every record, and what they lack is scanned."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import ClassVar

import pytest
from index_world import IndexWorld, Keyed, body, keys_of, make_small, run
from kit.world import STREAM

from offload import MemoryHandle, Misuse, Retention, StreamReader, StreamWriter, build_chunk, trim
from offload.index.find import FindReport, find
from offload.index.job import IndexReport, index
from offload.index.ranges import PartRanges, build_ranges, look_up_ranges
from offload.index.terms import Spec
from offload.upkeep.sweep.tier import sweep

BY = Spec.parse("ranges=keyed:body.k")


class Ordered(Keyed):
    """A decoder whose keys are the terms, reversed. So the order of ledgers is no order of terms."""

    has_range_keys: ClassVar[bool] = True

    def range_keys(self, terms: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        return b"%d terms" % len(terms), [term[::-1] for term in terms]


class RangeWorld(IndexWorld):
    """A tier with one stream of ledgers."""

    async def ledger(self, keys: Sequence[str], *, epoch: int | None = None) -> None:
        """Commit a ledger with records of these keys, an empty key for a record without one."""
        tier = self.others()
        await tier.open(create=True)
        writer = await StreamWriter.claim(tier, STREAM)
        begin, chunks = writer.manifest.next_offset, list[bytes]()
        for at in range(0, len(keys), self.chunk_records):
            bodies = [body([key] if key else []) for key in keys[at : at + self.chunk_records]]
            offset, number = begin + at, begin if epoch is None else epoch
            chunks.append(build_chunk(bodies, offset=offset, timestamp_ms=1000, epoch=number))
        await writer.offload([MemoryHandle(chunks)])

    async def index(self, *, stream: str = STREAM, by: Spec = BY) -> list[IndexReport]:
        async with aclosing(index(self.tier(), stream, by, Ordered(), env=self.env())) as reports:
            self.reports = [each async for each in reports]
        return self.reports

    async def ranges(self, report: FindReport | None = None) -> PartRanges:
        """Look up, check what every range says, and return it."""
        found = look_up_ranges(self.tier(), STREAM, by=BY, report=report, emit=self.events.append)
        async with aclosing(found) as parts:
            (part,) = [each async for each in parts]
        records = dict(await self.records(STREAM))
        seen = list[int]()
        for ledger in part.ledgers:
            starts = ledger.offsets.tolist()
            for row, (first, stop) in enumerate(zip(starts, [*starts[1:], ledger.next_offset], strict=True)):
                for offset in range(first, stop):
                    key = "".join(keys_of(records[offset])).encode()[::-1]
                    assert ledger.keys[row] <= key <= ledger.keys[row + 1]
                    seen.append(offset)
        seen += [offset for offsets in part.to_scan for offset in offsets]
        assert sorted(seen) == sorted(records), "each offset is in one range, or is scanned"
        return part


@pytest.fixture
def world(tmp_path: Path) -> RangeWorld:
    return RangeWorld()


def ordered(*keys: str) -> list[str]:
    """Return keys in the order of ledgers."""
    return sorted(keys, key=lambda key: key[::-1])


LEDGERS = [
    ordered(*(random.Random(seed).choice("abcd") + str(number) for number in range(20 + seed)), "", "")
    for seed in range(4)
]


def test_each_record_lies_in_the_keys_of_its_range(world: RangeWorld) -> None:
    async def main() -> None:
        for keys in LEDGERS:
            await world.ledger(keys)
        await world.ledger(["same"] * 10)
        await world.index()

        part = await world.ranges()
        assert part.to_scan == []
        assert [ledger.about for ledger in part.ledgers] == [
            *(b"%d terms" % (len(keys) - 1) for keys in LEDGERS),  # both without a term are neighbours
            b"1 terms",
        ]
        assert [len(ledger.offsets) for ledger in part.ledgers] == [8, 8, 8, 9, 4]

    run(main())


def test_a_ledger_in_another_order_is_scanned_and_the_others_are_not(world: RangeWorld) -> None:
    async def main() -> None:
        await world.ledger(LEDGERS[0])
        await world.ledger([*LEDGERS[1][:-2], "zz", "ab"])
        await world.ledger(LEDGERS[2])
        (report,) = await world.index()

        assert (await world.ranges()).to_scan == [range(22, 45)]
        assert report.next_offset == 22

    run(main())


def test_what_was_trimmed_damaged_or_lost_changes_no_answer(world: RangeWorld) -> None:
    async def main() -> None:
        for keys in LEDGERS:
            await world.ledger(keys)
        await world.index()
        assert len(world.indexes) == 4
        await trim(world.others(), STREAM, Retention(before_offset=25), env=world.env())
        assert (await world.ranges()).to_scan == []

        report = FindReport()
        world.flip(world.indexes[2], 20)
        assert (await world.ranges(report)).to_scan == [range(45, 69)]
        assert len(report.damages) == 1
        del world.objects[world.indexes[3]]
        assert (await world.ranges()).to_scan == [range(45, 94)]
        world.flip(world.indexes[2], 20)

        await world.index()
        assert (await world.ranges()).to_scan == []
        assert len(world.indexes) == 3, "that of trimmed data is deleted"
        for key in world.indexes:
            del world.objects[key]
        await world.index()
        assert (await world.ranges()).to_scan == []

    run(main())


def test_neighbours_become_one_object_with_the_same_ranges(
    world: RangeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch)

    async def main() -> None:
        for keys in LEDGERS[:3]:
            await world.ledger(keys)
        monkeypatch.setattr("offload.index.job.MERGED_RANGES_SIZE_BYTES_MAX", 100)
        await world.index()
        before = [(each.about, each.offsets.tolist(), each.keys) for each in (await world.ranges()).ledgers]
        assert len(world.indexes) == 3, "larger objects are not merged in memory"

        monkeypatch.undo()
        make_small(monkeypatch)
        (report,) = await world.index()
        after = [(each.about, each.offsets.tolist(), each.keys) for each in (await world.ranges()).ledgers]
        assert (len(world.indexes), report.merged) == (1, 1)
        assert after == before

    run(main())


def test_objects_that_overlap_say_each_offset_once(
    world: RangeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger may be indexed from any offset on, such as the first that an earlier index does not cover."""

    async def build(begin: int, end: int) -> None:
        tier = world.tier()
        reader = await StreamReader.open(tier, STREAM)
        work = build_ranges(tier.store, reader, BY, Ordered(), begin=begin, end=end, env=world.env())
        async with aclosing(work) as built:
            assert [each.name[1:3] async for each in built] == [(begin, end)]

    async def main() -> None:
        await world.ledger(list("abcdefghijkl"))
        for begin, end in ((0, 5), (2, 8), (4, 12)):
            await build(begin, end)
        part = await world.ranges()
        assert [each.first_offset for each in part.ledgers] == [0, 5, 8]
        assert part.to_scan == []

        make_small(monkeypatch)
        monkeypatch.setattr("offload.index.rules._SMALLEST_CLASS_BITS", 0)
        monkeypatch.setattr("offload.index.rules._CLASS_BITS", 9)
        await world.index()
        assert len(world.indexes) == 1
        assert [each.first_offset for each in (await world.ranges()).ledgers] == [0, 5, 8]

    run(main())


def test_a_sweep_deletes_ranges_of_an_earlier_life_and_keeps_others(world: RangeWorld) -> None:
    async def main() -> None:
        await world.ledger(LEDGERS[0])
        await world.index()
        (key,) = world.indexes
        other = key.replace(
            f".{(await world.tier().load_manifest(STREAM)).incarnation}.", f".{world.uuid()}."
        )
        world.objects[other] = world.objects[key]
        await sweep(world.store.inner, grace_seconds=0, env=world.env())

        assert world.indexes == [key]

    run(main())


def test_a_spec_of_ranges_finds_no_terms_and_needs_a_decoder_with_keys(world: RangeWorld) -> None:
    async def main() -> None:
        await world.ledger(LEDGERS[0])
        with pytest.raises(Misuse, match="finds no terms"):
            async with aclosing(find(world.tier(), STREAM, [b"a"], by=BY, decoder=Ordered())) as runs:
                await anext(runs)
        with pytest.raises(Misuse, match="has no keys of ranges"):
            BY.check(Keyed())

    run(main())
    assert str(Spec.parse("ranges=mqtt:body.a,b")) == "ranges=mqtt:body.a,b"
    assert Spec.parse("ranges=mqtt:body.a,b").paths == ("body.a,b",)
