"""The options `by` and `terms`: the rows with a term, by indexes and by a scan of what they do not cover."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import osiris_data
import pytest
from command_line import offload
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_conformance import MemoryLedger
from offload_rabbitmq.decoder import AmqpDecoder
from offload_spark.bounds import ScanBounds
from offload_spark.columns import Columns, schema_of
from offload_spark.finding import TermFilter, plan_found
from offload_spark.java_plans import COUNT, JavaPlanReader, reason_of_place
from offload_spark.jobs.index import index as index_by_spark
from offload_spark.planning import PlannedPart
from offload_spark.source import StreamingReader
from spark.in_process import PLUGINS, Tier, tier

from offload import Blocking, StreamPart, build_chunk
from offload.formats.records import RecordRun
from offload.ground.errors import Corrupt, Denied, Misuse
from offload.index.build import build_range
from offload.index.find import PartLookup
from offload.index.job import index
from offload.index.terms import Spec
from offload.native.layout_check import native
from offload.read.reader import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BY = "amqp:body.id"
COLUMNS = {"columns": "part,offset,value"}
Place = tuple[int, int]


def ledger(offset: int, ids: str, *, records: int = 3) -> MemoryLedger:
    """Return a ledger of JSON records with these ids, in chunks of some records, which ends a fragment."""
    bodies = [json.dumps({"id": each, "at": offset + at}).encode() for at, each in enumerate(ids)]
    return MemoryLedger(
        [
            build_chunk(bodies[at : at + records], offset=offset + at, timestamp_ms=offset + at, epoch=1)
            for at in range(0, len(ids), records)
        ]
    )


def write(made: Tier, ids: Sequence[str], *, stream: str = "orders", offset: int = 0) -> None:
    """Write a fragment for each text of ids."""
    for each in ids:
        made.write(stream, [ledger(offset, each)])
        offset += len(each)


def indexed(made: Tier, ranges: Sequence[Place] | None = None, *, stream: str = "orders") -> None:
    """Index these ranges of offsets, each as one object; None for all of the stream."""

    async def main() -> None:
        objects = native(made.blocking.offloader, to="index")
        if ranges is None:
            async with aclosing(index(objects, stream, Spec.parse(BY), AmqpDecoder())) as reports:
                assert [each async for each in reports]
        reader = await StreamReader.open(objects, stream)
        for begin, end in ranges or ():
            built = build_range(
                objects.store,
                reader,
                Spec.parse(BY),
                AmqpDecoder(),
                begin=begin,
                end=end,
                env=made.clock.env(),
            )
            async with aclosing(built):
                assert [each async for each in built]

    made.blocking.run(main())


def planned(
    made: Tier, *terms: str, bounds: ScanBounds | None = None, **given: str
) -> list[list[PlannedPart]]:
    options = made.read_options(by=BY, terms=json.dumps(terms), **given)
    return made.blocking.run(plan_found(made.blocking.catalogue, options, bounds or ScanBounds()))


def rows(made: Tier, *terms: str, bounds: ScanBounds | None = None, **given: str) -> list[Place]:
    """Return part and offset of each row that a read finds, in order. Each has one of the terms."""
    given = {"stream": "orders"} | given
    found = list[Place]()
    for parts in planned(made, *terms, bounds=bounds, **given):
        for batch in made.read(parts, by=BY, terms=json.dumps(terms), **(COLUMNS | given)):
            assert all(json.loads(value)["id"] in terms for value in batch.column("value").to_pylist())
            found += zip(batch.column("part").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    return sorted(found)


@settings(max_examples=30)
@given(
    ids=st.lists(st.text("aaab", min_size=1, max_size=9), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_read_finds_each_row_once_whatever_is_indexed(ids: list[str], data: st.DataObject) -> None:
    everything = "".join(ids)
    places = st.integers(0, len(everything))
    ranges = data.draw(st.lists(st.tuples(places, places).map(sorted).map(tuple), max_size=4), "indexed")
    begin, end = sorted(data.draw(st.tuples(places, places), "read"))
    size = data.draw(st.sampled_from(["1", "60", "67108864"]), "partition")
    with tier() as made:
        write(made, ids)
        indexed(made, [(first, stop) for first, stop in ranges if first < stop])

        found = rows(
            made,
            "a",
            startingOffsets=json.dumps({"orders": begin}),
            endingOffsets=json.dumps({"orders": end}),
            maxPartitionBytes=size,
        )

        assert found == [(1, at) for at, each in enumerate(everything) if each == "a" and begin <= at < end]


@pytest.fixture
def made() -> Iterator[Tier]:
    """Three fragments, of which the first two are indexed, and a further part that is not."""
    with tier() as found:
        write(found, ["abcabc", "bbbccc"])
        indexed(found)
        write(found, ["abab"], offset=12)
        yield found


def test_each_fragment_with_named_records_is_a_partition_and_its_task_fetches_their_chunks_alone(
    made: Tier,
) -> None:
    named, scanned = planned(made, "a", stream="orders")
    made.store.asked.clear()

    assert rows(made, "a") == [(1, 0), (1, 3), (1, 12), (1, 14)]

    assert [(part.first, part.until, part.places is None) for part in named + scanned] == [
        (0, 6, False),
        (12, 16, True),
    ]
    keys = {key for key, _ in made.store.asked}
    assert len(keys) == 2  # nothing of the fragment that has no such term
    assert rows(made, "c", "z") == [(1, at) for at in (2, 5, 9, 10, 11)]
    assert len(planned(made, "c", stream="orders")) == 3


def test_parts_and_filters_narrow_a_read_as_any_other(made: Tier) -> None:
    before = made.blocking.load_manifest("orders")
    part = StreamPart("orders", 2)
    made.blocking.run(made.blocking.offloader.begin_part(part, before=before))
    write(made, ["aab"], stream=part.name, offset=14)

    assert rows(made, "a") == [(1, 0), (1, 3), (1, 12), (1, 14), (2, 14), (2, 15)]
    assert rows(made, "a", bounds=ScanBounds().and_offsets(3, 15)) == [(1, 3), (1, 12), (1, 14), (2, 14)]
    early = ScanBounds().and_times(0, 2)
    assert rows(made, "a", bounds=early) == [(1, 0)]
    assert len(planned(made, "b", stream="orders", bounds=early)) == 1
    assert rows(made, "a", startingOffsets='{"orders": 13}') == [(1, 14), (2, 14), (2, 15)]
    assert rows(made, "a", stream=part.name) == [(1, 14), (1, 15)]


def test_damage_at_a_named_record_is_an_error_or_left_out(made: Tier) -> None:
    [key, *_] = sorted(key for key in made.objects if key.endswith(".fragment"))
    made.flip(key, made.objects[key].index(b'"at": 3'))

    with pytest.raises(Corrupt, match=r"offsets \[3, 6\)"):
        rows(made, "a")
    assert rows(made, "a", onDamage="skip") == [(1, 0), (1, 12), (1, 14)]


@pytest.mark.parametrize(
    ("ids", "ranges"),
    [
        (["aaaa", "aaaa"], [(3, 5)]),  # two ranges to scan end and begin at the border of two fragments
        (["aaaa"], [(0, 1), (2, 3)]),  # an offset between two named ones, in their chunk, is scanned
        (["aaaa"], [(0, 3), (1, 4)]),  # two objects name the same records
    ],
)
def test_rows_beside_the_border_of_an_index_come_once(ids: list[str], ranges: list[Place]) -> None:
    with tier() as made:
        write(made, ids)
        indexed(made, ranges)

        assert rows(made, "a") == [(1, at) for at in range(len("".join(ids)))]


def test_an_index_that_names_what_it_does_not_cover_repeats_no_row(
    made: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lying(catalogue: Any, stream: str, *args: Any, **how: Any) -> Any:
        reader = await StreamReader.open(catalogue, stream)
        yield PartLookup(reader, np.array([0, 3, 12], np.uint64), [range(3, 16)])

    monkeypatch.setattr("offload_spark.finding.look_up", lying)

    assert rows(made, "a") == [(1, 0), (1, 3), (1, 12), (1, 14)]


def test_places_in_several_groups_are_all_planned(made: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view yields the fragments of each group by themselves."""
    view_of = made.blocking.catalogue.view_of

    class OneByOne:
        def __init__(self, committed: Any) -> None:
            self._view = view_of(committed)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._view, name)

        async def walk(self, offset: int) -> Any:
            async for run in self._view.walk(offset):
                for row in range(len(run)):
                    yield run[row : row + 1]

    monkeypatch.setattr(type(made.blocking.catalogue), "view_of", lambda self, committed: OneByOne(committed))
    named = planned(made, "b", stream="orders")

    monkeypatch.undo()
    places = [part.places for [part] in named if part.places is not None]
    assert [each.tolist() for each in places] == [[1, 4], [6, 7, 8]]


def test_a_task_looks_into_the_chunks_with_named_records_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[int]()
    among = TermFilter.among

    def counted(self: TermFilter, run: RecordRun, part: PlannedPart) -> RecordRun:
        looked.extend(run.offsets.tolist())
        return among(self, run, part)

    monkeypatch.setattr(TermFilter, "among", counted)
    with tier() as made:
        write(made, ["abbbbbbbbabb"])
        indexed(made)

        assert rows(made, "a", columns="part,offset,value") == [(1, 0), (1, 9)]
    assert {*looked} <= {0, 1, 2, 9, 10, 11}


def test_columns_of_the_indexes_alone_are_those_of_the_found_records(made: Tier) -> None:
    given = {"by": BY, "terms": '["a"]', "columns": "offset", "stream": "orders"}

    found = [batch for parts in planned(made, "a", stream="orders") for batch in made.read(parts, **given)]

    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == [0, 3, 12, 14]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"by": BY}, "by and terms belong together"),
        ({"terms": '["a"]'}, "by and terms belong together"),
        ({"by": "amqp", "terms": '["a"]'}, "the option by takes a SPEC"),
        ({"by": BY, "terms": "a"}, "the option terms takes a JSON list"),
        ({"by": BY, "terms": "[]"}, "the option terms takes a JSON list"),
        ({"by": BY, "terms": '["a", ""]'}, "the option terms takes a JSON list"),
        ({"by": BY, "terms": '["a"]', "table": "damage"}, "takes neither"),
        ({"by": BY, "terms": '["a"]', "filter": "a"}, "takes neither"),
        ({"by": "amqp:tags", "terms": '["a"]'}, "has no 'tags'"),
    ],
)
def test_wrong_options_are_refused(made: Tier, options: dict[str, str], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        TermFilter.of(made.read_options(**options), PLUGINS)


def test_neither_java_nor_a_streaming_query_takes_terms(made: Tier) -> None:
    options = made.read_options(by=BY, terms='["a"]')
    columns = Columns.of(schema_of(options, PLUGINS), options, PLUGINS)
    reader = JavaPlanReader(options, columns, wanted=COUNT)
    reader._open = lambda: made.blocking  # type: ignore[method-assign]

    with pytest.raises(Misuse, match="cannot count with the option by"):
        reader.partitions()
    with pytest.raises(Misuse, match="remove by and terms"):
        StreamingReader(options, columns)
    assert reason_of_place(made.blocking, options) == "the option by is given"


def ids_of(spark: SparkSession, url: str, **options: Any) -> list[tuple[str, int]]:
    reader = spark.read.format("offload").options(**{"path": url, "columns": "stream,offset"} | options)
    return sorted((row.stream, row.offset) for row in reader.load().collect())


def test_spark_indexes_a_tier_in_parallel_and_finds_a_message_by_its_id(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, by = str(tmp_path / "tier"), "amqp:properties.message_id"
    with Blocking(url) as opened:
        opened.run(opened.offloader.open(create=True))
        assert [each.error for each in opened.sync(f"rabbitmq://{osiris_data.DATA}/tiny")] == [None]
        versions = opened.load_manifest("tiny").version

    [report] = index_by_spark(spark, url, by, task_size_bytes=100)
    again = offload("spark", "index", url, "--by", by, "--stream", "tiny")

    assert (report.stream, report.built, report.next_offset, report.damages) == ("tiny", 0, 10, [])
    assert again.lines[-1].startswith("tiny: 0 records indexed, 0 terms; ")
    assert ids_of(spark, url, by=by, terms='["m7"]') == [("tiny", 7)]
    assert offload("find", url, "tiny", "--by", by, "--term", "m7", "--indexed-only").code == 0
    with Blocking(url) as opened:
        assert opened.load_manifest("tiny").version == versions


def test_an_encrypted_stream_is_reported_by_spark_and_the_others_are_indexed(
    spark: SparkSession, tmp_path: Path
) -> None:
    url, folder = str(tmp_path / "tier"), tmp_path / "keys"
    folder.mkdir(mode=0o700)
    (folder / "main").touch(mode=0o600)
    (folder / "main").write_bytes(base64.b64encode(bytes(32)))
    keys = f"keyfile:{folder}"
    made = offload("sync", f"rabbitmq://{osiris_data.DATA}/batches", url, "--keys", keys, "--encrypt", "main")
    assert made.code == 0
    assert offload("sync", f"rabbitmq://{osiris_data.DATA}/tiny", url).code == 0

    every, named = (
        offload("spark", "index", url, "--by", BY, *each) for each in ([], ["--stream", "batches"])
    )

    assert (every.code, named.code) == (1, 1)
    assert [line.partition(":")[0] for line in every.lines] == ["tiny"]
    assert all("stream 'batches' is encrypted" in each.error for each in (every, named))
    with pytest.raises(Denied, match="is encrypted"):
        index_by_spark(spark, url, BY, streams=["batches"])
