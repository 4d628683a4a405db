"""Options of reads are understood, or refused by name."""

from __future__ import annotations

import pytest
from offload_spark.options import EARLIEST, LATEST, Edge, ReadOptions, StreamChoice, WriteOptions

from offload.ground.errors import Misuse
from offload.model.compression import Compression


def options(**given: str) -> ReadOptions:
    return ReadOptions.of({"path": "s3://bucket/tier"} | given)


def test_defaults_read_everything() -> None:
    found = options()

    assert found.streams.of(["a", "b"]) == ["a", "b"]
    assert (found.start.offset("a"), found.end.offset("a")) == (EARLIEST, LATEST)
    assert found.fail_on_data_loss
    assert not found.pushdown


def test_names_of_options_ignore_case_as_in_spark() -> None:
    assert options(MINPARTITIONS="7").min_partitions == options(minPartitions="7").min_partitions == 7


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"stream": "a,b"}, ["a,b"]),
        ({"streams": "a, b"}, ["a", "b"]),
        ({"streams": '["a,b", "c"]'}, ["a,b", "c"]),
        ({"streamPattern": "orders-.*"}, ["orders-1"]),
        ({"streamPattern": "orders"}, []),
    ],
    ids=str,
)
def test_streams_are_chosen_by_one_name_a_list_or_a_pattern(given: dict[str, str], chosen: list[str]) -> None:
    """A pattern matches whole names. A single name may contain commas."""
    assert options(**given).streams.of(["orders-1", "my-orders-2"]) == chosen


def test_streams_without_an_offset_begin_at_the_earliest() -> None:
    found = options(startingOffsets='{"a": 23, "b": -1}').start

    assert [found.offset(stream) for stream in "abc"] == [23, LATEST, EARLIEST]


def test_a_timestamp_overrides_offsets() -> None:
    assert options(startingTimestamp="1700", startingOffsets="latest").start == Edge(timestamp_ms=1700)


def test_storage_options_are_given_as_json_and_one_by_one() -> None:
    found = options(**{"storageOptions": '{"Key": "a", "n": 3}', "storage.secret": "b"})

    assert found.tier.storage_options == {"Key": "a", "n": 3, "secret": "b"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOfsets": "earliest"}, "no option 'startingofsets'"),
        ({"minPartitions": "0"}, "whole number from 1 on"),
        ({"minPartitions": "many"}, "whole number from 1 on"),
        ({"failOnDataLoss": "yes"}, "true or false"),
        ({"startingOffsets": "yesterday"}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"a": -3}'}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"a": true}'}, "earliest, latest, or JSON"),
        ({"endingOffsets": "[1]"}, "earliest, latest, or JSON"),
        ({"startingTimestamp": "noon"}, "milliseconds since 1970"),
        ({"storageOptions": "[]"}, "a JSON object"),
        ({"streams": "[1]"}, "a JSON list"),
        ({"streamPattern": "("}, "a regular expression"),
        ({"stream": "a", "streams": "b"}, "only one of"),
        ({"path": ""}, "the option path is missing"),
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(Misuse, match=message.replace("[", r"\[")):
        options(**given)


def test_an_unknown_option_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(Misuse, match="no option 'startingofset'; did you mean 'startingoffsets'"):
        options(startingOfset="earliest")
    with pytest.raises(Misuse, match="no option 'firstofset'; did you mean 'firstoffset'"):
        WriteOptions.of({"path": "here", "stream": "orders", "firstOfset": "3"})


def test_offsets_of_a_stream_that_is_not_read_are_refused_with_the_nearest_names() -> None:
    chosen, edge = StreamChoice(), Edge(offsets={"odrers": 3})

    with pytest.raises(Misuse, match=r"startingOffsets names stream 'odrers', .*did you mean 'orders'"):
        chosen.check_offsets("startingOffsets", edge, ["orders", "events"])
    with pytest.raises(Misuse, match=r"The streams are s0, .*, s19 and 980 more"):
        chosen.check_offsets("startingOffsets", Edge(offsets={"?": 3}), [f"s{n}" for n in range(1000)])
    chosen.check_offsets("startingOffsets", Edge(offsets={"orders": 3}), ["orders", "events"])


def test_a_folder_becomes_an_absolute_path(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may run in another folder."""
    monkeypatch.chdir(str(tmp_path))

    assert ReadOptions.of({"path": "tier"}).tier.url == f"{tmp_path}/tier"
    assert ReadOptions.of({"path": "file:///tier"}).tier.url == "file:///tier"


def test_a_stream_that_is_named_need_not_exist() -> None:
    assert StreamChoice(names=("gone",)).of(["a"]) == ["gone"]


@pytest.mark.parametrize(("text", "named"), [("", None), ("zstd", "zstd:1"), ("none", "none")])
def test_a_write_names_its_compression_as_the_commands_do(text: str, named: str | None) -> None:
    found = WriteOptions.of({"path": "here", "stream": "orders", "compression": text}).tier.compression

    assert found == (None if named is None else Compression.parse(named))


def test_a_write_with_an_unknown_compression_is_refused() -> None:
    with pytest.raises(Misuse, match="compression takes zstd, zstd:1 to zstd:19, lz4 or none, not 'gzip'"):
        WriteOptions.of({"path": "here", "stream": "orders", "compression": "gzip"})
