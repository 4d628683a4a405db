"""Tests of `offload pulsar` on the servers of each protocol, by the URLs that an operator gives."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from cloud.tiers import CloudTier
from command_line import Ran, offload, read
from offload_pulsar import PulsarKey
from pulsar.test_export import LEDGERS, tier_of
from pulsar_sets import DATA, SETS, objects_of, uid_of
from servers import Running
from servers.selection import servers

from offload import Session
from offload.contracts.store import Body

SETS_HERE = ("messages", "exact-fit", "v2-three-ledgers")
TOPIC = "public/default/persistent/peer-partition-0"
KEY = str(PulsarKey(uid_of("exact-fit"), 7))


@pytest.fixture
def bucket(running_server: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a new bucket, to which the environment leads."""
    return CloudTier(running_server.place(), monkeypatch).place.url


def put(bucket: str, change: dict[str, bytes] | None = None, *, names: tuple[str, ...] = SETS_HERE) -> None:
    """Put sets with their metadata, and in place of some objects others."""

    async def main() -> None:
        async with Session() as session:
            store = session.store(bucket)
            for name in names:
                for row, data in objects_of(name):
                    body = (change or {}).get(row["key"], data)
                    await store.put(row["key"], Body.of(body, metadata=row["user_metadata"]))

    asyncio.run(main())


def pulsar(command: str, bucket: str, *options: object) -> Ran:
    return offload("pulsar", command, f"pulsar+{bucket}", *options)


@pytest.mark.parametrize("running_server", servers(), indirect=True)
def test_a_bucket_is_scanned_and_verified(bucket: str) -> None:
    put(bucket)

    scanned, verified = pulsar("scan", bucket), pulsar("verify", bucket)

    rows = {row[2]: (row[0], row[1], row[5]) for row in (line.split("\t") for line in scanned.lines[1:])}
    assert scanned.code == verified.code == 0, scanned.stderr + verified.stderr
    assert rows == {
        SETS["messages"]["uuid"]: (TOPIC, "7", "whole"),
        SETS["exact-fit"]["uuid"]: (TOPIC, "7", "whole"),
        SETS["v2-three-ledgers"]["uuid"]: ("-", "V2: any", "whole"),
    }
    assert "5 ledgers, " in verified.text
    assert "all of them sound" in verified.text
    assert "no version was compared" not in verified.stderr


@pytest.mark.parametrize("running_server", servers(), indirect=True)
def test_a_flipped_bit_and_a_cut_object_are_named_by_object_and_byte(bucket: str) -> None:
    stored = {row["key"]: data for row, data in objects_of("exact-fit")}
    flipped = bytearray(stored[KEY])
    flipped[135] ^= 1

    put(bucket, {KEY: bytes(flipped)})
    first = pulsar("verify", bucket)
    put(bucket, {KEY: stored[KEY][:1000]})
    second = pulsar("verify", bucket)

    assert (first.code, second.code) == (1, 1)
    assert f"DAMAGE {KEY} at byte 132: id of an entry: expected 0, found 4294967296" in first.text
    assert f"DAMAGE {KEY} at byte 1000: size of the data object: expected 2752, found 1000" in second.text


@pytest.mark.parametrize("running_server", servers(), indirect=True)
def test_a_bucket_is_copied_and_read_in_place(bucket: str, tmp_path: Path) -> None:
    """Both give the messages that Pulsar's own classes wrote."""
    put(bucket, names=("messages",))
    source, tier = f"pulsar+{bucket}", str(tmp_path / "tier")

    synced = [offload("sync", source, tier, "--json") for _ in range(2)]

    expected = [json.loads(line) for line in (DATA / "messages" / "expected.jsonl").read_text().splitlines()]
    assert [ran.code for ran in synced] == [0, 0], [ran.stderr for ran in synced]
    assert [ran.objects[0]["uploaded_bytes"] > 0 for ran in synced] == [True, False]
    in_place, copied = (
        offload("read", place, TOPIC, "--decode", "pulsar").objects for place in (source, tier)
    )
    assert len(in_place) == len(expected)
    # The time is that of the chunk, and in place chunks are cut at blocks.
    assert [{**row, "timestamp": 0} for row in in_place] == [{**row, "timestamp": 0} for row in copied]
    listed = offload("ls", source, "--json").objects
    assert [(row["stream"], row["messages"]) for row in listed] == [(TOPIC, 124)]


@pytest.mark.parametrize("running_server", servers(), indirect=True)
def test_an_exported_stream_is_whole_and_its_records_agree(bucket: str, tmp_path: Path) -> None:
    tier, file = tier_of(tmp_path / "tier", LEDGERS), tmp_path / "orders.bin"

    exported = offload("pulsar", "export", tier, "orders", bucket, "--newest", "--records", file)

    scanned = pulsar("scan", bucket, "--metadata", file)
    assert exported.code == scanned.code == 0, exported.stderr + scanned.stderr
    assert [line.split("\t")[0] for line in exported.lines[1:]] == [str(each) for each in LEDGERS]
    assert {line.split("\t")[6] for line in scanned.lines[1:]} == {"agrees"}
    assert {line.split("\t")[0] for line in scanned.lines[1:]} == {"public/default/persistent/orders"}
    assert pulsar("verify", bucket).code == 0
    assert len(read(tier, "orders", "--decode", "pulsar", "--limit", 3).objects) == 3
