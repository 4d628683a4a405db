"""Tests of reading by a filter of chunks: no chunk with a wanted value is missing, and others are skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import osiris_data
import pytest
from command_line import offload, read
from hypothesis import given
from hypothesis import strategies as st

import offload as core
from offload import (
    Blocking,
    MemoryHandle,
    Misuse,
    ObjectStoreOffloader,
    StreamReader,
    StreamWriter,
    TierOptions,
    build_chunk,
)
from offload.cache.block_cache import BlockCache
from offload.read.chunk_filter import ChunkFilter
from offload.store.memory import MemoryStore

CHUNKS = 80
"""The chunks of the real stream `filtered`, with 250 messages each."""

MESSAGES = 250


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blocking]:
    """A tier with the real stream. Tests do not change it."""
    with Blocking(tmp_path_factory.mktemp("filters") / "tier") as made:
        made.sync(f"rabbitmq://{osiris_data.DATA / 'filtered'}")
        yield made


def chunks_with(*values: str | None) -> list[int]:
    """Return the numbers of the chunks that have one of these values, by the manifest of the files."""
    wanted = {None if value is None else value.encode() for value in values}
    return [number for number in range(CHUNKS) if wanted & {*osiris_data.filter_values_of(number)}]


def chunk_times(tier: Blocking) -> list[int]:
    """Return the timestamp of each chunk of the real stream."""

    async def times() -> list[int]:
        reader = await StreamReader.open(tier.catalogue, "filtered")
        return [batch.timestamp_ms async for batch in reader.messages(0)]

    return tier.run(times())


def folder_of(tier: Blocking) -> Path:
    return Path(tier.catalogue.url.removeprefix("file://"))


CASES = [
    pytest.param(["g3"], False, id="one value"),
    pytest.param(["g3", "g7"], False, id="two values"),
    pytest.param(["g3"], True, id="and unfiltered"),
    pytest.param(["nobody"], True, id="unfiltered alone"),
    pytest.param(["nobody"], False, id="no value of the stream"),
]


@pytest.mark.parametrize(("values", "unfiltered"), CASES)
@pytest.mark.parametrize("way", ["runs", "messages", "cached", "follow"])
def test_exactly_the_chunks_with_a_value_are_read_of_a_real_stream(
    tier: Blocking, values: list[str], unfiltered: bool, way: str
) -> None:
    """No bit of the real filters that these values need is set by chance."""
    expected = chunks_with(*values, *([None] if unfiltered else []))
    chosen = ChunkFilter(values, match_unfiltered=unfiltered)

    async def offsets() -> list[int]:
        found: list[int] = []
        cache = BlockCache(2**20) if way == "cached" else None
        reader = await StreamReader.open(tier.catalogue, "filtered", cache=cache)
        if way == "runs":
            async for each in reader.runs(0, rows_of=chosen):
                found += each.run.offsets.tolist()
        elif way == "follow":
            ended = asyncio.Event()
            following = reader.follow(0, rows_of=chosen, caught_up=ended.set)
            taking = asyncio.ensure_future(anext(following))
            while not ended.is_set():
                await asyncio.wait(
                    [taking, asyncio.ensure_future(ended.wait())], return_when="FIRST_COMPLETED"
                )
                if taking.done():
                    batch = taking.result()
                    found += range(batch.offset, batch.offset + len(batch.bodies))
                    taking = asyncio.ensure_future(anext(following))
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        else:
            async for batch in reader.messages(0, rows_of=chosen):
                found += range(batch.offset, batch.offset + len(batch.bodies))
        if cache is not None:
            await cache.aclose()
        return found

    found = tier.run(offsets())

    assert found == [
        offset for number in expected for offset in range(number * MESSAGES, (number + 1) * MESSAGES)
    ]
    assert (chosen.read, chosen.skipped) == (len(expected), CHUNKS - len(expected))


VALUES = st.sampled_from([None, b"", b"red", b"green", b"blue", "grün".encode()])


@given(
    st.lists(st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=12),
    st.lists(st.sampled_from(["red", "green", "grün", "none of them"]), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_no_chunk_with_a_wanted_value_is_missing(
    chunks: list[list[bytes | None]], values: list[str], unfiltered: bool, cached: bool
) -> None:
    """A chunk may come by chance, but not one without a filter."""
    chosen = ChunkFilter(values, match_unfiltered=unfiltered)
    wanted = {value.encode() for value in values} | ({None, b""} if unfiltered else set())

    async def offsets() -> list[int]:
        async with ObjectStoreOffloader(MemoryStore(), options=TierOptions(fragment_size_bytes=400)) as tier:
            writer = await StreamWriter.claim(tier, "orders")
            built = [
                build_chunk(
                    [b"body"] * len(each), offset=10 * number, timestamp_ms=0, epoch=1, filter_values=each
                )
                for number, each in enumerate(_padded(chunks))
            ]
            await writer.offload([MemoryHandle(built)])
            cache = BlockCache(2**20) if cached else None
            reader = StreamReader(tier, writer.manifest, cache=cache)
            found = [batch.offset async for batch in reader.messages(0, rows_of=chosen)]
            if cache is not None:
                await cache.aclose()
            return found

    found = asyncio.run(offsets())

    has = {10 * number for number, each in enumerate(chunks) if wanted & {*each}}
    has_filter = {10 * number for number, each in enumerate(chunks) if any(each)}
    assert has <= {*found} <= has | has_filter
    assert found == sorted(found)
    assert chosen.read == len(found)
    assert chosen.skipped == len(chunks) - len(found)


def _padded(chunks: list[list[bytes | None]]) -> list[list[bytes | None]]:
    """Return chunks of ten messages each, so that the number of a chunk gives its offset."""
    return [
        (each * 10)[:10] if len({*each}) == 1 else each + [each[-1]] * (10 - len(each)) for each in chunks
    ]


def test_half_of_a_surrogate_pair_is_no_filter_value() -> None:
    with pytest.raises(Misuse, match="half of a surrogate pair"):
        ChunkFilter(["g3", "\ud800"])


@pytest.mark.parametrize("values", [[], [""], ["red", ""]])
def test_a_filter_without_a_value_is_refused(values: list[str]) -> None:
    with pytest.raises(Misuse, match="match_unfiltered"):
        ChunkFilter(values)


class TestCommand:
    @pytest.mark.parametrize(("values", "unfiltered"), CASES)
    def test_the_command_prints_the_chunks_and_counts_them(
        self, tier: Blocking, values: list[str], unfiltered: bool
    ) -> None:
        expected = chunks_with(*values, *([None] if unfiltered else []))
        options = [word for value in values for word in ("--filter", value)]

        ran = read(folder_of(tier), "filtered", *options, *(["--match-unfiltered"] if unfiltered else []))

        assert [line["offset"] // MESSAGES for line in ran.objects[::MESSAGES]] == expected
        chunks = "1 chunk" if len(expected) == 1 else f"{len(expected)} chunks"
        assert ran.stderr == f"note: {chunks} read, {CHUNKS - len(expected)} skipped by the filter\n"

    def test_positions_and_limits_hold_beside_it(self, tier: Blocking) -> None:
        first, second = chunks_with("g3")[1:3]

        ran = read(
            folder_of(tier), "filtered", "--filter", "g3", "--from", first * MESSAGES + 7, "--limit", MESSAGES
        )

        offsets = [line["offset"] for line in ran.objects]
        assert offsets[0] == first * MESSAGES + 7
        assert offsets[-1] == second * MESSAGES + 6

    @pytest.mark.parametrize("follow", [False, True])
    @pytest.mark.parametrize("end", ["offset", "time", "next"])
    def test_nothing_behind_the_end_is_fetched_if_nothing_there_matches(
        self, tier: Blocking, end: str, follow: bool
    ) -> None:
        """No message comes that shows that the end is reached."""
        chunks = CHUNKS if end == "next" else 3
        to = {"offset": f"{3 * MESSAGES - 7}", "time": f"@{chunk_times(tier)[3]}", "next": "next"}[end]

        ran = read(
            folder_of(tier), "filtered", "--filter", "nobody", "--to", to, *(["--follow"] if follow else [])
        )

        assert ran.stderr == f"note: 0 chunks read, {chunks} skipped by the filter\n"

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--match-unfiltered"], "--match-unfiltered needs --filter"),
            (["--filter", ""], "--filter takes a value that is not empty"),
            (["--filter", "g3", "--source", "rabbitmq:///nowhere"], "--filter reads the tier alone"),
        ],
    )
    def test_wrong_options_are_refused(self, tier: Blocking, options: list[str], text: str) -> None:
        ran = offload("read", folder_of(tier), "filtered", *options)

        assert ran.code == 2
        assert text in ran.stderr


class TestArrow:
    @pytest.mark.parametrize(("values", "unfiltered"), CASES)
    @pytest.mark.parametrize("columns", [None, ["offset"]])
    def test_a_table_has_the_messages_of_the_chunks(
        self,
        tier: Blocking,
        values: list[str],
        unfiltered: bool,
        columns: list[str] | None,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("INFO", "offload")
        expected = chunks_with(*values, *([None] if unfiltered else []))

        with core.open(folder_of(tier)) as opened:
            found = opened["filtered"].to_arrow(
                columns=columns, filter=values[0] if len(values) == 1 else values, match_unfiltered=unfiltered
            )

        assert [offset // MESSAGES for offset in found["offset"].to_pylist()[::MESSAGES]] == expected
        assert found.num_rows == MESSAGES * len(expected)
        assert f"{CHUNKS - len(expected)} skipped by the filter" in caplog.text

    def test_match_unfiltered_alone_is_refused(self, tier: Blocking) -> None:
        with core.open(folder_of(tier)) as opened, pytest.raises(Misuse, match="needs a filter"):
            opened["filtered"].to_arrow(match_unfiltered=True)
