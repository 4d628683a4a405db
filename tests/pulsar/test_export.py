"""Tests of `offload pulsar export`: ledgers of a tier become Pulsar's objects and records of its metadata."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import Ran, offload, sync
from hypothesis import given
from hypothesis import strategies as st
from offload_pulsar import LedgerInfo, PulsarBucket, managed_ledger_info
from offload_pulsar.exporting import StreamLedger, TierLedger
from osiris_data import DATA as RABBITMQ
from pulsar_sets import DATA, SETS, entries_of, objects_of

from offload import (
    MemoryHandle,
    ObjectStoreOffloader,
    Session,
    StreamReader,
    StreamWriter,
    build_chunk,
    open_tier,
)
from offload.ground.errors import Corrupt
from offload.store.memory import MemoryStore

Ledgers = dict[int, list[bytes]]
LEDGERS: Ledgers = {
    3: [b"alpha", b"", b"gamma" * 100],
    9: [b"%d" % number * (number % 50) for number in range(300)],
    2**40: [b"last"],
}
MESSAGES = [*map(json.loads, (DATA / "messages" / "expected.jsonl").read_bytes().splitlines())]


async def write(tier: Any, ledgers: Ledgers, *, first_offset: int = 0, in_chunk: int = 7) -> None:
    """Write the ledgers as one stream, in chunks of a few records."""
    writer = await StreamWriter.claim(tier, "orders", first_offset=first_offset)
    offset = first_offset
    for ledger_id, entries in ledgers.items():
        chunks = []
        for at in range(0, len(entries), in_chunk):
            some = entries[at : at + in_chunk]
            chunks.append(build_chunk(some, offset=offset, timestamp_ms=1000 + offset, epoch=1))
            offset += len(some)
        await writer.offload([MemoryHandle(chunks, ledger_id=ledger_id)])


def tier_of(folder: Path, ledgers: Ledgers, *, first_offset: int = 0) -> Path:
    async def main() -> None:
        async with open_tier(str(folder)) as tier:
            await write(tier, ledgers, first_offset=first_offset)

    asyncio.run(main())
    return folder


TO = ("--driver", "aws-s3", "--bucket", "b")
"""The place from which Pulsar is to read what was exported to a folder."""


def export(tier: Path, bucket: Path, *options: object) -> Ran:
    return offload("pulsar", "export", tier, "orders", f"pulsar+file://{bucket}", *TO, *options)


def entries_in(bucket: Path, record: LedgerInfo) -> list[bytes]:
    async def main() -> list[bytes]:
        async with Session() as session:
            assert record.offloaded is not None
            ledger = await PulsarBucket(session.store(str(bucket))).open(
                record.ledger_id, record.offloaded.uid
            )
            run = await ledger.entries(0, ledger.last_entry, size_bytes=2**30)
            return [
                bytes(run.data[start:end])
                for start, end in zip(run.starts.tolist(), run.ends.tolist(), strict=True)
            ]

    return asyncio.run(main())


def records_of(ran: Ran) -> list[LedgerInfo]:
    return [
        LedgerInfo.decode(base64.b64decode(each["ledger_info"]), where="output")
        for each in json.loads(ran.text)["ledgers"]
    ]


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return tier_of(tmp_path / "tier", LEDGERS)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


def test_each_ledger_becomes_a_pair_of_objects_with_its_records(tier: Path, bucket: Path) -> None:
    ran = export(tier, bucket, "--newest", "--block-size", "650", "--json")

    found = records_of(ran)
    assert ran.code == 0
    assert {each.ledger_id: entries_in(bucket, each) for each in found} == LEDGERS
    assert [each.entries for each in found] == [3, 300, 1]
    assert [each.length for each in found] == [sum(map(len, entries)) for entries in LEDGERS.values()]
    assert [each.closed_ms for each in found] == [1000, 1297, 1303]
    assert offload("pulsar", "verify", bucket).code == 0


def test_the_records_name_the_attempts_of_the_bucket(tier: Path, bucket: Path, tmp_path: Path) -> None:
    file = tmp_path / "ledgers.bin"

    ran = export(tier, bucket, "--newest", "--records", file, "--json")
    compared = offload("pulsar", "scan", bucket, "--metadata", file, "--json")

    assert list(managed_ledger_info(file.read_bytes(), where="file")) == records_of(ran)
    assert compared.code == 0
    assert [each["metadata"] for each in json.loads(compared.text)["attempts"]] == [""] * 3


def test_a_record_is_that_of_a_complete_offload(tier: Path, bucket: Path) -> None:
    options = ("--driver", "aws-s3", "--region", "us-east-1", "--endpoint", "http://minio")
    [first, *_] = records_of(export(tier, bucket, *options, "--json"))

    context = first.offloaded
    assert context is not None
    assert (context.is_complete, context.is_deleted_from_bookkeeper, context.driver) == (True, True, "aws-s3")
    assert context.timestamp_ms > 0
    assert dict(context.properties) == {
        "bucket": "b",
        "managedLedgerOffloadDriver": "AWS_S3",
        "region": "us-east-1",
        "serviceEndpoint": "http://minio",
    }


def test_a_ledger_that_bookkeeper_has_too_is_recorded_so(tier: Path, bucket: Path) -> None:
    [first, *_] = records_of(export(tier, bucket, "--in-bookkeeper", "--json"))

    assert first.offloaded is not None
    assert not first.offloaded.is_deleted_from_bookkeeper


def test_the_newest_ledger_is_left_out_unless_it_is_asked_for(tier: Path, bucket: Path) -> None:
    ran = export(tier, bucket, "--json")

    assert ran.code == 0
    assert [each.ledger_id for each in records_of(ran)] == [3, 9]
    assert f"ledger {2**40} is left out: it is the newest" in ran.stderr


@pytest.mark.parametrize("first_offset", [1, 100])
def test_the_oldest_ledger_of_a_trimmed_stream_is_left_out(
    first_offset: int, tmp_path: Path, bucket: Path
) -> None:
    tier = tier_of(tmp_path / "tier", LEDGERS, first_offset=first_offset)

    some, all_ = export(tier, bucket, "--json"), export(tier, bucket, "--oldest", "--json")

    assert "ledger 3 is left out: it is the oldest" in some.stderr
    assert [each.ledger_id for each in records_of(some)] == [9]
    assert [each.ledger_id for each in records_of(all_)] == [3, 9]


def test_an_export_can_be_repeated(tier: Path, bucket: Path) -> None:
    first = export(tier, bucket, "--json")
    objects = {path.name: path.stat().st_mtime_ns for path in bucket.iterdir()}

    again = export(tier, bucket, "--json")

    assert {path.name: path.stat().st_mtime_ns for path in bucket.iterdir()} == objects
    assert [each["was_there"] for each in json.loads(first.text)["ledgers"]] == [False, False]
    assert [each["was_there"] for each in json.loads(again.text)["ledgers"]] == [True, True]
    assert [each["attempt"] for each in json.loads(first.text)["ledgers"]] == [
        each["attempt"] for each in json.loads(again.text)["ledgers"]
    ]


def test_an_attempt_without_index_is_written_again(tier: Path, bucket: Path) -> None:
    export(tier, bucket)
    for path in bucket.glob("*-ledger-3-index"):
        path.unlink()

    again = export(tier, bucket, "--json")

    assert again.code == 0
    assert [each["was_there"] for each in json.loads(again.text)["ledgers"]] == [False, True]
    assert entries_in(bucket, records_of(again)[0]) == LEDGERS[3]


def test_a_ledger_has_the_newest_of_times_that_go_back(tmp_path: Path, bucket: Path) -> None:
    async def main() -> None:
        async with open_tier(str(tmp_path / "tier")) as tier:
            writer = await StreamWriter.claim(tier, "orders", first_offset=0)
            chunks = [
                build_chunk([b"x" * size], offset=offset, timestamp_ms=timestamp_ms, epoch=1)
                for offset, (size, timestamp_ms) in enumerate([(2**22, 5), (9, 8000), (2**22, 7), (9, 6)])
            ]
            await writer.offload([MemoryHandle(chunks, ledger_id=3)])

    asyncio.run(main())

    (record,) = records_of(export(tmp_path / "tier", bucket, "--newest", "--json"))

    assert record.closed_ms == 8000


def test_another_ledger_of_the_same_id_stops_the_export(tier: Path, bucket: Path, tmp_path: Path) -> None:
    export(tier, bucket)
    other = tier_of(tmp_path / "other", {3: [b"another"], 9: [b"x"]})

    ran = export(other, bucket)

    assert ran.code == 1
    assert "export it to another bucket" in ran.stderr


def test_a_ledger_of_the_same_size_with_other_bytes_stops_the_export(
    tier: Path, bucket: Path, tmp_path: Path
) -> None:
    export(tier, bucket)
    changed = {**LEDGERS, 9: [*LEDGERS[9][:299], LEDGERS[9][299][:-1] + b"?"]}

    ran = export(tier_of(tmp_path / "other", changed), bucket)

    assert ran.code == 1
    assert "differ in entries" in ran.stderr
    assert "to 299: export it to another bucket" in ran.stderr


def test_a_folder_needs_the_bucket_that_its_objects_are_for(tier: Path, bucket: Path) -> None:
    ran = offload("pulsar", "export", tier, "orders", bucket, "--driver", "aws-s3")

    assert (ran.code, ran.stderr.count("\n")) == (2, 1)
    assert "name the --driver and --bucket to which you copy the objects" in ran.stderr
    assert not bucket.exists()


def test_an_export_of_nothing_is_no_success(tmp_path: Path, bucket: Path) -> None:
    ran = export(tier_of(tmp_path / "tier", {3: [b"one"]}), bucket)

    assert ran.code == 1
    assert "use --newest if nothing will be added" in ran.stderr


def test_records_that_are_no_messages_are_refused(tmp_path: Path, bucket: Path) -> None:
    sync(RABBITMQ, tmp_path / "tier")

    tiny, tracking = (
        offload("pulsar", "export", tmp_path / "tier", stream, bucket, "--newest", *TO)
        for stream in ("tiny", "batches")
    )

    assert (tiny.code, tracking.code) == (0, 1)
    assert "of its records are no messages" in tracking.stderr
    assert "no ledger was exported" in tracking.stderr


def test_an_entry_that_fits_no_block_stops_the_export_and_leaves_nothing(tier: Path, bucket: Path) -> None:
    ran = export(tier, bucket, "--block-size", "200")

    assert ran.code == 1
    assert "choose larger blocks" in ran.stderr
    assert ran.stderr.count("\n") <= 3
    assert not [path for path in bucket.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--driver", "hdfs"), "Pulsar has no driver 'hdfs'"),
        (("--managed-ledger", "orders"), "'orders' is not TENANT/NAMESPACE/persistent/TOPIC"),
        (("--block-size", "many"), "--block-size"),
        (("--block-size", "140"), "takes no entry"),
    ],
)
def test_wrong_options_are_refused(options: Sequence[str], says: str, tier: Path, bucket: Path) -> None:
    ran = export(tier, bucket, *options)

    assert ran.code in (1, 2)
    assert says in ran.stderr
    assert not bucket.exists() or not list(bucket.iterdir())


def test_a_table_has_a_row_for_each_ledger(tier: Path, bucket: Path) -> None:
    [head, *rows] = export(tier, bucket).lines

    assert head.split("\t") == ["ledger", "entries", "bytes", "attempt", "LedgerInfo (base64)"]
    assert [row.split("\t")[:3] for row in rows] == [
        ["3", "3", "505"],
        ["9", "300", str(sum(map(len, LEDGERS[9])))],
    ]


class TestLedger:
    """A ledger of a tier as an `EntryLedger`."""

    @given(
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=60),
        in_chunk=st.integers(1, 20),
        first=st.integers(0, 59),
        step=st.integers(1, 60),
        size=st.integers(1, 1000),
    )
    def test_any_walk_gives_back_the_records(
        self, sizes: list[int], in_chunk: int, first: int, step: int, size: int
    ) -> None:
        entries = [bytes([number % 256]) * each for number, each in enumerate(sizes)]

        async def main() -> list[bytes]:
            tier = ObjectStoreOffloader(MemoryStore())
            await tier.open(create=True)
            await write(tier, {7: entries}, in_chunk=in_chunk)
            reader = await StreamReader.open(tier, "orders")
            planned = StreamLedger(
                ledger_id=7,
                first_offset=0,
                next_offset=len(entries),
                messages=len(entries),
            )
            ledger = TierLedger(reader, planned, sum(sizes), 0, lambda entries, size: None)
            found, at = list[bytes](), min(first, len(entries) - 1)
            while at < len(entries):
                last = min(at + step - 1, len(entries) - 1)
                run = await ledger.entries(at, last, size_bytes=size)
                assert run.first == at
                got = [
                    bytes(run.data[start:end])
                    for start, end in zip(run.starts.tolist(), run.ends.tolist(), strict=True)
                ]
                assert len(got) == last - at + 1 or sum(map(len, got)) >= size
                found += got
                at += len(got)
            await ledger.aclose()
            return found

        assert asyncio.run(main()) == entries[min(first, len(entries) - 1) :]

    def test_a_hole_in_the_stream_is_damage(self) -> None:
        async def main() -> None:
            tier = ObjectStoreOffloader(MemoryStore())
            await tier.open(create=True)
            await write(tier, {7: [b"x"]})
            reader = await StreamReader.open(tier, "orders")
            planned = StreamLedger(ledger_id=7, first_offset=0, next_offset=5, messages=5)
            with pytest.raises(Corrupt, match="expected offset 1, found the end"):
                await TierLedger.measured(reader, planned, lambda entries, size: None)

        asyncio.run(main())


def test_a_bucket_of_pulsar_can_be_exported_itself(tmp_path: Path, bucket: Path) -> None:
    (folder := tmp_path / "theirs").mkdir()
    for row, data in objects_of("messages"):
        (folder / row["key"]).write_bytes(data)

    options = ("--newest", "--block-size", SETS["messages"]["max_block_size"], "--json")
    ran = offload("pulsar", "export", f"pulsar+file://{folder}", "ledger-7", bucket, *TO, *options)

    [record] = records_of(ran)
    assert record.offloaded is not None
    assert (bucket / f"{record.offloaded.uid}-ledger-7").read_bytes() == next(objects_of("messages"))[1]
    assert record.closed_ms in {row["publish_time"] for row in MESSAGES}


def test_a_ledger_that_came_from_pulsar_goes_back_byte_for_byte(tmp_path: Path, bucket: Path) -> None:
    row = SETS["exact-fit"]
    entries = entries_of(row["entries"])

    async def main() -> None:
        async with open_tier(str(tmp_path / "tier")) as tier:
            await write(tier, {row["ledger"]: entries})

    asyncio.run(main())
    [record] = records_of(
        export(tmp_path / "tier", bucket, "--newest", "--block-size", row["max_block_size"], "--json")
    )

    assert record.offloaded is not None
    data = (bucket / f"{record.offloaded.uid}-ledger-{row['ledger']}").read_bytes()
    theirs = Path(__file__).parent.parent / "data" / "pulsar" / "exact-fit"
    assert data == (theirs / row["objects"][0]["key"]).read_bytes()
