"""Managed ledgers whose tiers commit to a metadata service: processes that own one stream, or are killed."""

from __future__ import annotations

import asyncio
import shutil
from copy import deepcopy
from pathlib import Path

import pytest
from campaign import campaign
from records.in_memory import MemoryRecords, plugins
from records.owner import STREAM, owner
from servers.metadata import MetadataServer

from offload import (
    ManagedLedger,
    ObjectStoreOffloader,
    RecordStore,
    Session,
    StreamReader,
    TierPlan,
    verify,
)
from offload.ground.errors import Fenced
from offload.log.memory_log import MemoryDisk, MemoryLog
from offload.store.memory import MemoryStore

REASON = (
    "`make test` fences an owner with its roots in memory, and kills writers with theirs in both services"
)


def on_tier(tier: Path, commit_url: str) -> list[str]:
    """Return the records on a tier, as a process reads them that has no log. The tier is sound."""

    async def main() -> list[str]:
        async with Session(plugins=plugins()) as session:
            opened = session.tier(str(tier), plan=TierPlan(commit_store=commit_url))
            reader = await StreamReader.open(opened, STREAM)
            assert (await verify(opened)).damages == []
            return [body.decode() async for batch in reader.messages(0) for body in batch.bodies]

    return asyncio.run(main())


def test_two_owners_with_their_roots_in_one_service_are_told_apart_by_it() -> None:
    """The service is in memory, and so are the logs."""
    rows, data, disk = dict[bytes, bytes](), dict[str, bytes](), MemoryDisk()

    def tier() -> ObjectStoreOffloader:
        return ObjectStoreOffloader(
            MemoryStore(objects=data),
            plan=TierPlan(commit_store="memory-records://here"),
            open_store=lambda url: RecordStore(MemoryRecords(rows)),
        )

    async def main() -> None:
        first = await ManagedLedger.open(MemoryLog(STREAM, disk=disk), tier())
        await first.append([b"0", b"1"])
        await first.roll()
        assert await first.offload_prefix(2) == 2
        second = await ManagedLedger.open(MemoryLog(STREAM, disk=deepcopy(disk)), tier())
        await second.append([b"2"])
        await second.roll()
        assert await second.offload_prefix(3) == 3
        await first.append([b"lost"])
        await first.roll()

        with pytest.raises(Fenced):
            await first.offload_prefix(3)

        assert [body async for batch in second.read(0) for body in batch.bodies] == [b"0", b"1", b"2"]
        for ledger in (first, second):
            await ledger.close()

    asyncio.run(main())

    assert any(b"root." in key for key in rows)
    assert not any("root." in key for key in data)


@campaign(REASON)
def test_the_process_that_offloads_last_owns_the_stream(
    metadata_server: MetadataServer, tmp_path: Path
) -> None:
    """The other one has a copy of its disk, and has been fenced when it hears of it."""
    url, tier = metadata_server.url("fenced-ledger"), tmp_path / "tier"
    with owner(tmp_path / "first", tier, url) as first:
        assert (first.do("append 10"), first.do("offload")) == (0, 10)
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        with owner(tmp_path / "second", tier, url) as second:
            assert (second.do("append 5"), second.do("offload")) == (10, 15)

            first.do("append 3")  # it has asked the tier before
            assert first.do("offload") == "Fenced"
            assert first.do("append 1") == "Fenced"
            assert first.do("read") == "Fenced"

            assert (second.do("append 5"), second.do("offload")) == (15, 20)
            assert second.do("read") == [str(offset) for offset in range(20)]

    assert on_tier(tier, url) == [str(offset) for offset in range(20)]
    assert not list(tier.rglob("*.manifest"))
    assert any("root." in key for key in metadata_server.records("fenced-ledger"))


@campaign(REASON)
def test_a_process_that_is_killed_in_the_middle_loses_no_acknowledged_record(
    metadata_server: MetadataServer, tmp_path: Path
) -> None:
    """It appends, offloads and deletes local copies when SIGKILL comes, three times."""
    url, tier = metadata_server.url("killed-ledger"), tmp_path / "tier"
    acknowledged = 0
    for records in (7, 12, 4):
        with owner(tmp_path / "log", tier, url) as killed:
            killed.begin("run")
            for _ in range(records):
                acknowledged = killed.answer() + 1
            killed.process.kill()
            while (offset := killed.answer()) is not None:
                acknowledged = offset + 1

    with owner(tmp_path / "log", tier, url) as last:
        found = last.do("read")
        assert found == [str(offset) for offset in range(len(found))]
        assert len(found) >= acknowledged >= 23
        assert last.do("offload") == len(found)

    assert on_tier(tier, url) == found
