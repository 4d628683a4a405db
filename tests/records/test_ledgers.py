"""A broker's records of its ledgers follow the manifest, and nothing on the tier depends on them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from offload_metadata.etcd import EtcdRecords
from offload_metadata.ledgers import LedgerRecord, export, read_record, repair
from offload_metadata.postgres import PostgresRecords
from protocol_world import CHUNK_RECORDS, Ledger
from records.in_memory import MemoryRecords
from servers.metadata import MetadataServer

from offload import (
    LedgerOffloader,
    ObjectStoreOffloader,
    OutcomeUnknown,
    RecordService,
    Retention,
    StreamWriter,
    delete_stream,
    open_tier,
    trim,
)
from offload.store.memory import MemoryStore

STREAM = "orders/of the day"
SIZE = 3 * CHUNK_RECORDS
ENDS = {number * SIZE: (number + 1) * SIZE for number in range(9)}
"""The ends of nine ledgers. The id of each is its first offset."""


def record_service(server: MetadataServer) -> RecordService:
    made: type[Any] = {"etcd": EtcdRecords, "postgresql": PostgresRecords}[server.name]
    service: RecordService = made(server.url(f"broker-{os.getpid()}"), {})
    return service


async def append(writer: StreamWriter, ledgers: int, service: RecordService | None) -> None:
    """Offload ledgers, and export them as a broker does."""
    since = writer.manifest.next_offset
    handles = [Ledger(first, first + SIZE) for first in range(since, since + ledgers * SIZE, SIZE)]
    await writer.offload(handles)
    if service is not None:
        await export(service, writer.offloader, writer.manifest, ends=ENDS, since=since)


async def records(service: RecordService) -> dict[int, LedgerRecord]:
    found = {}
    for row in await service.list(b"ledgers/", b"ledgers0", limit=1000):
        record = read_record(await service.get(row.key))
        assert record is not None
        found[int(row.key.rpartition(b"/")[2])] = record
    return found


async def expected(tier: LedgerOffloader) -> dict[int, tuple[tuple[str, ...], int, int]]:
    """Return the attempt and the offsets of each ledger, by the fragments that a reader opens."""
    manifest = await tier.load_manifest(STREAM)
    found: dict[int, tuple[tuple[str, ...], int, int]] = {}
    for first in range(manifest.first_offset, manifest.next_offset, SIZE):
        entry = await tier.tree(manifest).find(first)
        assert entry is not None
        found[first] = ((str(entry.attempt),), first, first + SIZE)
    return found


def bare(found: dict[int, LedgerRecord]) -> dict[int, tuple[tuple[str, ...], int, int]]:
    assert all(record.complete for record in found.values())
    return {key: (each.attempts, each.first_offset, each.next_offset) for key, each in found.items()}


CHILD = """
import asyncio, os, signal, sys
from records.test_ledgers import STREAM, append, record_service
from servers.metadata import BY_NAME
from offload import StreamWriter, open_tier

async def main(folder, server, url):
    service = record_service(type("Server", (), {"name": server, "url": lambda self, name: url})())
    async with open_tier(folder) as tier:
        await tier.open(create=True)
        writer = await StreamWriter.claim(tier, STREAM)
        await append(writer, 2, service)
        await append(writer, 3, None)
        os.kill(os.getpid(), signal.SIGKILL)  # committed, and not exported

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_broker_killed_between_append_and_export_repairs_on_open(
    metadata_server: MetadataServer, tmp_path: Path
) -> None:
    folder, service = str(tmp_path / "tier"), record_service(metadata_server)
    argv = [sys.executable, "-c", CHILD, folder, metadata_server.name, service.url]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    killed = subprocess.run(argv, env=env, timeout=60, check=False)

    assert killed.returncode == -signal.SIGKILL

    async def main() -> None:
        async with open_tier(folder) as tier:
            assert len(await records(service)) == 2
            await repair(service, tier, STREAM, ends=ENDS)
            assert bare(await records(service)) == await expected(tier)
            assert len(await records(service)) == 5
        await service.aclose()

    asyncio.run(main())


class Forgetful(MemoryRecords):
    """A service whose replies to puts are lost."""

    async def put(self, key: bytes, value: bytes) -> None:
        raise OutcomeUnknown("lost")


def test_a_lost_record_touches_nothing_on_the_tier() -> None:
    objects: dict[str, bytes] = {}

    async def main() -> None:
        tier, rows = ObjectStoreOffloader(MemoryStore(objects=objects)), dict[bytes, bytes]()
        writer = await StreamWriter.claim(tier, STREAM)
        with pytest.raises(OutcomeUnknown):
            await append(writer, 2, Forgetful(rows))
        before = dict(objects)

        await repair(MemoryRecords(rows), tier, STREAM, ends=ENDS)

        assert objects == before
        assert bare(await records(MemoryRecords(rows))) == await expected(tier)

    asyncio.run(main())


def test_records_follow_trims_and_the_end_of_the_stream() -> None:
    async def main() -> None:
        tier, service = ObjectStoreOffloader(MemoryStore()), MemoryRecords({})
        await append(await StreamWriter.claim(tier, STREAM), 4, service)
        await trim(tier, STREAM, Retention(before_offset=2 * SIZE), now_ms=0)

        await repair(service, tier, STREAM, ends=ENDS)
        assert bare(await records(service)) == await expected(tier)
        assert list(await records(service)) == [2 * SIZE, 3 * SIZE]

        await delete_stream(tier, STREAM)
        await repair(service, tier, STREAM, ends=ENDS)
        assert await records(service) == {}

    asyncio.run(main())


class Half(Ledger):
    """A half of the ledger 0, which has two chunks."""

    ledger_id = 0


def half(number: int) -> Half:
    return Half(number * CHUNK_RECORDS, (number + 1) * CHUNK_RECORDS)


def test_a_ledger_is_complete_at_its_end_alone() -> None:
    """Of an open ledger, or one that is half on the tier, the broker must keep its copy."""
    end = {0: 2 * CHUNK_RECORDS}

    async def main() -> list[bool]:
        tier, service, found = ObjectStoreOffloader(MemoryStore()), MemoryRecords({}), list[bool]()
        writer = await StreamWriter.claim(tier, STREAM)
        for number, ends in ((0, {}), (0, end), (1, {}), (1, end)):
            if writer.manifest.next_offset == number * CHUNK_RECORDS:
                await writer.offload([half(number)])
            await export(service, tier, writer.manifest, ends=ends)
            found += [record.complete for record in (await records(service)).values()]
        return found

    assert asyncio.run(main()) == [False, False, False, True]


def test_an_owner_that_slept_does_not_replace_a_newer_record() -> None:
    async def main() -> None:
        tier, service = ObjectStoreOffloader(MemoryStore()), MemoryRecords({})
        first = await StreamWriter.claim(tier, STREAM)
        await first.offload([half(0)])
        second = await StreamWriter.claim(tier, STREAM)
        await second.offload([half(1)])
        await export(service, tier, second.manifest, ends={})
        newest = await records(service)

        await export(service, tier, first.manifest, ends={})

        assert await records(service) == newest
        assert newest[0].next_offset == 2 * CHUNK_RECORDS

    asyncio.run(main())
