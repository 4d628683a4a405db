"""Indexing and finding, beyond the walk of `test_machine`: parts, damage of data, retries, other layouts."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from foreign_tier import LinesCatalogue
from index_world import BY, KEYS, IndexWorld, Keyed, make_small, run
from kit.world import STREAM

from offload import Corrupt, Denied, MemoryHandle, Misuse, StreamDeleted, StreamWriter, build_chunk
from offload.formats.index_object import IndexShape, IndexWriter
from offload.formats.keys import IndexName, StreamKeys
from offload.index import rules
from offload.index.find import FindReport, find
from offload.index.rules import WhyUnused, judged, merges, uncovered
from offload.index.terms import Spec
from offload.model.part import StreamPart
from offload.model.position import AtOffset, AtTime, PartOffset
from offload.store.faults import Fault, Rule
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.retention import delete_stream
from offload.upkeep.verify.report import VerifyLevel
from offload.upkeep.verify.tier import verify


@pytest.fixture
def world() -> IndexWorld:
    return IndexWorld()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def test_all_parts_of_a_stream_are_indexed_and_searched(world: IndexWorld) -> None:
    async def main() -> None:
        await world.append([["a"], ["b"]])
        part = StreamPart(STREAM, 2)
        tier = world.others()
        await tier.begin_part(part, before=None)
        writer = await StreamWriter.claim(tier, part.name, first_offset=10)
        chunk = build_chunk([b'{"k":["a"]}'], offset=10, timestamp_ms=1, epoch=1)
        await writer.offload([MemoryHandle([chunk])])

        reports = await world.index()
        report = FindReport()

        assert [(each.stream, each.next_offset) for each in reports] == [(STREAM, 2), (part.name, 11)]
        assert [at for at, _ in await world.find("a", report=report)] == [0, 10]
        assert (report.objects, report.scanned) == (2, 0)

    run(main())


def test_a_search_of_a_later_part_ends_at_the_offset_of_that_part(world: IndexWorld) -> None:
    """Both parts have offset 1. A read that begins in part 2 ends in part 2, too."""

    async def main() -> None:
        await world.append([["a"], ["a"], ["a"]])
        part, tier = StreamPart(STREAM, 2), world.others()
        await tier.begin_part(part, before=None)
        writer = await StreamWriter.claim(tier, part.name)
        records = [b'{"k":["a"],"n":%d}' % number for number in range(3)]
        await writer.offload([MemoryHandle([build_chunk(records, offset=0, timestamp_ms=9, epoch=1)])])

        found = await world.find("a", start=PartOffset(2, 0), until=AtOffset(1))

        assert found == [(0, records[0])]
        assert await world.find("a", start=PartOffset(3, 0), until=AtOffset(1)) == []

    run(main())


def test_a_search_ends_at_a_time_that_is_met_behind_its_beginning(world: IndexWorld) -> None:
    """Times step back: chunks before the beginning have the time too, and end nothing."""

    async def main() -> None:
        tier = world.others()
        await tier.open(create=True)
        writer = await StreamWriter.claim(tier, STREAM)
        times_ms = [9, 1, 2, 8, 9]
        chunks = [
            build_chunk([b'{"k":["a"]}'], offset=at, timestamp_ms=each, epoch=1)
            for at, each in enumerate(times_ms)
        ]
        for each in (chunks[:2], chunks[2:]):
            await writer.offload([MemoryHandle(each)])

        for start, time_ms, offsets in ((0, 5, []), (1, 5, [1, 2]), (2, 9, [2, 3]), (1, 10, [1, 2, 3, 4])):
            found = await world.find("a", start=AtOffset(start), until=AtTime(time_ms))
            assert [at for at, _ in found] == offsets

    run(main())


def test_an_index_ends_before_damage_and_goes_on_when_it_is_repaired(world: IndexWorld) -> None:
    async def main() -> None:
        await world.append([["a"]])
        await world.append([["b"]])
        key = world.data[1]
        sound = world.objects[key]
        world.flip(key, 70)

        with pytest.raises(Corrupt):
            await world.index()
        assert [name[1:3] for name in world.names] == [(0, 1)]
        world.objects[key] = sound

        assert await world.find("b") == await world.having("b")
        await world.index()
        assert await world.find("b", indexed_only=True) == await world.having("b")

    run(main())


def test_a_merge_that_is_tried_again_writes_the_same_bytes(world: IndexWorld, small: None) -> None:
    """A store that lost the reply of a put is asked once more."""

    async def main() -> None:
        for _ in range(3):
            await world.append([["a", "b"]])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("offload.index.job.merges", lambda used: [])
                await world.index()
        written = list[bytes]()
        inner = world.store.inner.put

        async def twice(key: str, body: object) -> None:
            for _ in range(2):
                written.append(b"".join([bytes(window) async for window in body.windows()]))  # type: ignore[attr-defined]
            await inner(key, body)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(world.store.inner), "put", lambda self, key, body: twice(key, body))
            await world.index()
        assert len(written) == 2
        assert written[0] == written[1]

    run(main())


@pytest.mark.parametrize(
    "rows",
    [
        ([7, 3], [0, 1]),  # not in order
        ([7, 7], [1, 1]),  # one row twice
        ([3, 7], [0, 2]),  # an offset that the object does not cover
    ],
)
def test_sound_checksums_of_a_stranger_prove_no_order(
    world: IndexWorld, rows: tuple[list[int], list[int]]
) -> None:
    """A term that is in the object by chance alone shows that it is read and refused."""

    async def main() -> None:
        await world.append([["a"], ["b"]])
        manifest = await world.tier().load_manifest(STREAM)
        name = IndexName(KEYS.index_folder(str(BY), 1), 0, 2, 1, manifest.incarnation, world.uuid())
        writer = IndexWriter(STREAM, name, 2)
        hashes, offsets = rows
        raw = writer.rows(np.array(hashes, np.uint64), np.array(offsets, np.uint32)) + writer.end()
        world.objects[KEYS.index(name)] = raw

        report = FindReport()
        assert await world.find("a", report=report) == await world.having("a")
        assert (len(report.damages), report.scanned) == (1, 2)
        assert [each.what for each in (await verify(world.others())).damages] == ["index rows"]

    run(main())


@pytest.mark.parametrize("at", ["header", "directory", "size", "rows"])
@pytest.mark.usefixtures("small")
def test_a_run_indexes_again_what_a_damaged_object_covers(world: IndexWorld, at: str) -> None:
    """Damaged rows are met by the merge of this run. Nothing else of an index reads all of them."""

    async def main() -> None:
        records = [["a"], ["b"], ["a"], ["c"]]
        await world.append(records)
        await world.index()
        [key] = world.indexes
        if at == "rows":
            await world.append(records)
            await world.index()
            await world.append(records)
        shape = IndexShape.of_size(len(world.objects[key]), where=key)
        if at == "size":
            world.objects[key] = world.objects[key][:-1]
        else:
            world.flip(key, {"header": shape.size_bytes, "directory": shape.header_start, "rows": 1}[at] - 1)

        [report] = await world.index()

        [damage] = report.damages
        assert (damage.where, key in world.objects) == (key, False)
        read = FindReport()
        assert await world.find("a", report=read) == await world.having("a")
        assert (read.scanned, read.damages) == (0, [])

    run(main())


def test_a_tier_of_another_layout_is_scanned(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "0.1000.lines").write_text('{"k":["a"]}\n{"k":["b"]}\n')

    async def main() -> list[list[int]]:
        work = find(LinesCatalogue(tmp_path), "orders", [b"b"], by=BY, decoder=Keyed())
        return [each.run.offsets.tolist() async for each in work]

    assert run(main()) == [[1]]


def test_what_cannot_be_looked_for_is_refused(world: IndexWorld) -> None:
    run(world.append([["a"]]))

    for terms in ([], [""], ["a", ""]):
        with pytest.raises(Misuse):
            run(world.find(*terms))
    with pytest.raises(Misuse, match="has no 'nosuch'"):
        run(world.index(by=Spec.parse("keyed:nosuch")))


def test_a_stream_that_was_begun_again_ends_a_find(world: IndexWorld) -> None:
    """The index object is gone, and so is the stream in which the find began."""

    async def main() -> None:
        await world.append([["a"]])
        await world.index()

        async def before(operation: str, key: str) -> None:
            if operation == "get" and "/index/" in key:
                world.store.before = _nothing
                world.objects.pop(key)
                await delete_stream(world.others(), STREAM)
                await world.append([["a"]])

        world.store.before = before
        with pytest.raises(StreamDeleted):
            await world.find("a")

    run(main())


async def _nothing(operation: str, key: str) -> None:
    """Do nothing."""


def test_credentials_that_may_not_write_end_an_index_run(world: IndexWorld) -> None:
    run(world.append([["a"]]))
    world.store.rules = [Rule(Fault.DENY, "put", "*/index/*")]

    with pytest.raises(Denied):
        run(world.index())
    assert run(world.find("a")) == run(world.having("a"))


def test_a_verify_reads_each_index_object_and_explains_the_unused_ones(world: IndexWorld) -> None:
    async def main() -> None:
        await world.append([["a"]])
        await world.index()
        [old] = world.names
        raw = world.objects[KEYS.index(old)]
        await delete_stream(world.others(), STREAM)
        await world.append([["b"]])
        await world.index()
        [new] = world.names
        world.objects[KEYS.index(old)] = raw

        report = await verify(world.others())
        assert report.damages == []
        reasons = {each.key: each.reason for each in report.unreferenced}
        assert reasons[KEYS.index(old)] == f"{WhyUnused.OLD.value}; a sweep deletes it"
        assert KEYS.index(new) not in reasons

        world.flip(KEYS.index(new), 5)  # in a row: the header is sound
        assert (await verify(world.others(), level=VerifyLevel.MANIFEST)).damages == []
        assert [each.where for each in (await verify(world.others())).damages] == [KEYS.index(new)]

    run(main())


def test_a_rebuild_goes_above_the_numbers_of_index_objects(world: IndexWorld) -> None:
    async def main() -> None:
        await world.append([["a"]])
        manifest = await world.tier().load_manifest(STREAM)
        number = manifest.version + 500
        name = IndexName(KEYS.index_folder(str(BY), 1), 0, 1, number, manifest.incarnation, world.uuid())
        world.objects[KEYS.index(name)] = b"whatever"
        del world.objects[KEYS.root(manifest.version)]

        report = await rebuild(world.others(), STREAM, env=world.env())

        assert report.manifest is not None
        assert report.manifest.version >= number + rules.JUMP

    run(main())


def test_a_find_of_few_records_in_many_fragments_reads_few_objects(world: IndexWorld) -> None:
    async def main() -> None:
        for number in range(40):
            await world.append([[f"m{number}"]])
        await world.index()
        world.store.calls.clear()
        assert [at for at, _ in await world.find("m7")] == [7]
        assert len(world.fragments_read()) <= 2

    run(main())


@pytest.mark.usefixtures("small")
def test_a_merge_reads_all_of_its_inputs_at_once_and_ahead(world: IndexWorld) -> None:
    reads, now = Counter[str](), Counter[str]()

    async def slow(operation: str, key: str) -> None:
        if operation == "get" and "/index/" in key:
            now[key] += 1
            await asyncio.sleep(0.01)
            reads[f"{len(+now)} at once"] += 1
            now[key] -= 1

    async def main() -> None:
        for number in range(3):
            await world.append([[f"{number}{each}"] for each in range(12)])
            await world.index() if number < 2 else None
        world.store.before = slow
        await world.index()
        assert world.reports[0].merged == 1
        assert await world.find("10") == await world.having("10")

    run(main())

    assert reads["3 at once"] >= 3


class TestMerges:
    """Which objects become one, by their offsets alone."""

    @staticmethod
    def names(*edges: int) -> list[IndexName]:
        return [
            IndexName("f", first, following, 1, UUID(int=1), UUID(int=first + 1))
            for first, following in pairwise(edges)
        ]

    def test_eight_of_a_class_become_one_and_seven_stay(self) -> None:
        size = 2**16
        assert merges(self.names(*range(0, 8 * size, size))) == []
        eight = self.names(*range(0, 9 * size, size))
        assert merges(eight) == [eight]

    def test_smaller_ones_between_them_go_along(self) -> None:
        edges = [0]
        for _ in range(8):
            edges += [edges[-1] + 2**19, edges[-1] + 2**19 + 100]
        found = self.names(*edges)
        # The last small one is behind the eighth large one, and stays.
        assert merges(found) == [found[:-1]]

    def test_a_hole_is_never_covered(self) -> None:
        found = self.names(*range(0, 17 * 2**16, 2**16))
        del found[7]
        assert merges(found) == [found[7:15]]

    def test_none_covers_more_than_a_row_can_say(self) -> None:
        found = self.names(*range(0, 9 * (2**31 - 1), 2**31 - 1))
        [group] = merges(found)
        assert len(group) == 2
        assert merges(self.names(*range(0, 9 * 2**31, 2**31))) == []

    def test_a_row_is_written_about_six_times_in_the_life_of_the_largest_index(self) -> None:
        """A fragment of 65,536 records comes after the other, and each is indexed by itself."""
        used, written, count = list[IndexName](), 0, 8**4
        for number in range(count):
            used += self.names(number * 2**16, (number + 1) * 2**16)
            written += 1
            while groups := merges(used):
                for group in groups:
                    at = used.index(group[0])
                    used[at : at + len(group)] = self.names(group[0].first_offset, group[-1].next_offset)
                    written += sum(name.records for name in group) // 2**16
        assert len(used) == 1
        assert written / count == 5  # one build, and a merge for each class up to 2^28


def test_uncovered_offsets_are_those_between_the_objects() -> None:
    found = TestMerges.names(0, 10, 20)
    assert uncovered(found, 0, 20) == []
    assert uncovered(found[1:], 0, 30) == [range(10), range(20, 30)]
    assert uncovered(found, 5, 8) == []
    assert uncovered([], 5, 5) == []


def test_streams_with_odd_names_have_indexes(world: IndexWorld) -> None:
    name = "a/b c." + "x" * 300
    run(world.append([["a"]], stream=name))
    run(world.index(stream=name))

    assert [at for at, _ in run(world.find("a", stream=name, indexed_only=True))] == [0]
    assert StreamKeys(name).parse_index(world.indexes[0]) is not None
    assert judged([], run(world.tier().load_manifest(name))).used == []
