"""What the user says is taken as it is meant, or refused by name."""

from __future__ import annotations

import pytest
from offload_spark.options import EARLIEST, LATEST, Edge, ReadOptions, StreamChoice

from offload.errors import Misuse


def options(**given: str) -> ReadOptions:
    return ReadOptions.of({"path": "s3://bucket/tier"} | given)


def test_defaults_read_everything() -> None:
    found = options()

    assert found.streams.of(["a", "b"]) == ["a", "b"]
    assert (found.start.offset("a"), found.end.offset("a")) == (EARLIEST, LATEST)
    assert found.fail_on_data_loss
    assert not found.pushdown


def test_names_are_folded_as_spark_folds_them() -> None:
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
def test_streams_are_one_a_list_or_a_pattern(given: dict[str, str], chosen: list[str]) -> None:
    """A pattern is for whole names; a single name may have commas in it."""
    assert options(**given).streams.of(["orders-1", "my-orders-2"]) == chosen


def test_offsets_are_said_for_some_streams() -> None:
    found = options(startingOffsets='{"a": 23, "b": -1}').start

    assert [found.offset(stream) for stream in "abc"] == [23, LATEST, EARLIEST]


def test_a_time_is_before_offsets() -> None:
    assert options(startingTimestamp="1700", startingOffsets="latest").start == Edge(timestamp_ms=1700)


def test_storage_options_come_as_json_and_one_by_one() -> None:
    found = options(**{"storageOptions": '{"Key": "a", "n": 3}', "storage.secret": "b"})

    assert found.storage_options == {"Key": "a", "n": 3, "secret": "b"}


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
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(Misuse, match=message.replace("[", r"\[")):
        options(**given)


def test_a_folder_is_named_by_its_whole_path(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may run elsewhere."""
    monkeypatch.chdir(str(tmp_path))

    assert ReadOptions.of({"path": "tier"}).url == f"{tmp_path}/tier"
    assert ReadOptions.of({"path": "file:///tier"}).url == "file:///tier"


def test_a_choice_by_name_is_not_looked_up() -> None:
    assert StreamChoice(names=("gone",)).of(["a"]) == ["gone"]
