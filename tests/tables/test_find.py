"""Tests of `ArrowStream.find`: a table of the rows with a term, as the stream was when it was opened."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from offload_conformance import MemoryLedger
from offload_rabbitmq.decoder import AmqpDecoder
from tables.tier_in_memory import World, rows_of, world

from offload import NotOffloaded, PartOffset, StreamPart, build_chunk
from offload.ground.errors import Misuse
from offload.index.job import index
from offload.index.terms import Spec
from offload.upkeep.retention import Retention, trim

BY = "amqp:body.id"


def ledger(offset: int, ids: Sequence[str]) -> MemoryLedger:
    """Return a ledger of JSON records with these ids, in chunks of two."""
    bodies = [json.dumps({"id": each, "at": offset + at}).encode() for at, each in enumerate(ids)]
    starts = range(0, len(ids), 2)
    return MemoryLedger(
        [build_chunk(bodies[at : at + 2], offset=offset + at, timestamp_ms=at, epoch=1) for at in starts]
    )


def indexed(made: World) -> None:
    async def main() -> None:
        tier = made.blocking.offloader
        async with aclosing(index(tier, "orders", Spec.parse(BY), AmqpDecoder())) as reports:
            assert [report.damages async for report in reports]

    made.blocking.run(main())


@pytest.fixture
def made() -> Iterator[World]:
    """A stream of two parts, of which the first is indexed."""
    with world() as found:
        found.write("orders", [ledger(0, "abcabc")])
        indexed(found)
        found.begin_part(2, [ledger(4, "caab")])
        yield found


def test_a_find_has_the_rows_that_a_scan_of_all_parts_has(
    made: World, caplog: pytest.LogCaptureFixture
) -> None:
    stream = made.tables["orders"]
    caplog.set_level(logging.INFO, "offload")

    found = {terms: rows_of(stream.find(terms, by=BY)) for terms in ("a", "b", "z")}
    both = stream.find(["c", b"b"], by=Spec.parse(BY))

    expected = made.expected()
    assert found == {key: [row for row in expected if json.loads(row[3])["id"] == key] for key in found}
    assert rows_of(both) == [row for row in expected if json.loads(row[3])["id"] in ("b", "c")]
    assert len(found["a"]) == 4
    assert "stream 'orders': 1 index objects" in caplog.text
    assert "2 records read by them, 4 scanned" in caplog.text


@pytest.mark.parametrize(
    "between", [(1, None), (None, 3), (3, 6), (6, 6), (3, PartOffset(2, 6)), ("last", None)]
)
def test_a_find_keeps_to_its_range_and_its_columns(made: World, between: tuple[Any, Any]) -> None:
    stream, (start, end) = made.tables["orders"], between
    columns = ["part", "offset", "body"]
    expected = stream.to_arrow(start, end, columns, decode="amqp").to_pylist()

    table = stream.find("a", by=BY, start=start, end=end, columns=columns, decode="amqp")

    assert table.schema.names == columns
    assert table.to_pylist() == [row for row in expected if json.loads(row["body"])["id"] == "a"]


def test_a_find_sees_the_stream_as_it_was_opened(made: World) -> None:
    stream = made.tables["orders"]
    before = stream.find("a", by=BY)
    made.write(StreamPart("orders", 2).name, [ledger(8, "aa")])
    indexed(made)

    assert stream.find("a", by=BY).equals(before)
    assert len(made.tables["orders"].find("a", by=BY)) == len(before) + 2


@pytest.mark.parametrize("lost", ["trimmed", "deleted"])
def test_a_find_that_would_lack_rows_raises(made: World, lost: str) -> None:
    stream, tier = made.tables["orders"], made.blocking.offloader
    if lost == "trimmed":
        made.blocking.run(trim(tier, "orders", Retention(before_offset=6)))
    else:
        made.blocking.delete("orders")

    with pytest.raises(
        NotOffloaded, match=r"offsets from 0 on of part 1 were trimmed or deleted .* open the"
    ):
        stream.find("a", by=BY)
    assert len(stream.find("a", by=BY, start=PartOffset(2, 4))) == 2


@pytest.mark.parametrize(
    ("terms", "by", "said"),
    [
        ([], BY, "one term or more"),
        ([""], BY, "none is empty"),
        ("a", "amqp", "is no SPEC"),
        ("a", "amqp:tags", "has no 'tags'"),
        ("a", "nobody:key", "'nobody'"),
    ],
)
def test_a_find_of_nothing_or_by_nothing_is_refused(made: World, terms: Any, by: str, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        made.tables["orders"].find(terms, by=by)
