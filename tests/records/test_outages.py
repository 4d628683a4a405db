"""A metadata service that stops answering, is killed, and comes back, while a tier has its roots there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from campaign import campaign, few
from protocol_world import CHUNK_RECORDS, Ledger, source
from records.in_memory import plugins
from servers.metadata import MetadataServer

from offload import LedgerOffloader, ObjectStore, Session, StreamReader, StreamWriter, TierPlan, verify
from offload.ground.errors import AlreadyExists, OutcomeUnknown, TryAgain
from offload.opening.by_url import open_store

PLUGINS = plugins()
QUICK = {"commit.timeout": 0.5, "patience_seconds": 60}
STREAM = "orders"

Break = Callable[[MetadataServer, Awaitable[object]], Awaitable[None]]
"""Takes a service down until something else is over."""


async def frozen(server: MetadataServer, over: Awaitable[object]) -> None:
    server.freeze()
    await over
    server.thaw()


async def killed(server: MetadataServer, over: Awaitable[object]) -> None:
    server.kill()
    await over
    await asyncio.to_thread(server.start)


down = pytest.mark.parametrize("break_", [frozen, killed], ids=["frozen", "killed"])


async def offload(writer: StreamWriter) -> None:
    first = writer.manifest.next_offset
    await writer.offload([Ledger(first, first + 2 * CHUNK_RECORDS)])


async def check(tier: LedgerOffloader, end: int) -> None:
    """Assert that the stream reads as its source up to `end`."""
    reader = await StreamReader.open(tier, STREAM)
    assert reader.manifest.next_offset == end
    assert b"".join([window.data async for window in reader.windows(0)]) == source(0, end)
    assert (await verify(tier)).damages == []


async def offload_through(
    server: MetadataServer, folder: Path, break_: Break, seconds: float, options: dict[str, float]
) -> None:
    """Offload ledgers while the service is down for so long, and check that none is lost."""
    plan = TierPlan(commit_store=server.url("outage"))
    async with Session(plugins=PLUGINS) as session:
        tier = session.tier(str(folder / "tier"), storage_options=options, plan=plan)
        await tier.open(create=True)
        writer = await StreamWriter.claim(tier, STREAM)
        await offload(writer)

        breaking = asyncio.create_task(break_(server, asyncio.sleep(seconds)))
        while not breaking.done():
            await offload(writer)
            await asyncio.sleep(0.02)
        await breaking
        await offload(writer)

        await check(tier, writer.manifest.next_offset)
    assert not list((folder / "tier").rglob("*.manifest"))
    assert any("root." in key for key in server.records("outage"))


@few("kinds of outages of each service; make test has one of each service", 3)
@down
def test_a_writer_waits_for_a_service_that_comes_back(
    own_server: MetadataServer, tmp_path: Path, break_: Break
) -> None:
    asyncio.run(offload_through(own_server, tmp_path, break_, 2.0, QUICK))


@campaign("a minute in real time; make test has two seconds of it")
@down
def test_a_writer_waits_for_a_minute(own_server: MetadataServer, tmp_path: Path, break_: Break) -> None:
    """With the options that an operator gets if no other is given."""
    asyncio.run(offload_through(own_server, tmp_path, break_, 60.0, {}))


@few("kinds of outages of each service; make test has one of each service", 3)
@down
def test_an_outage_beyond_patience_is_one_error_and_loses_nothing(
    own_server: MetadataServer, tmp_path: Path, break_: Break
) -> None:
    """The service comes back after the error. So the error comes because patience ends."""
    server, plan, over = own_server, TierPlan(commit_store=own_server.url("outage")), asyncio.Event()
    options = {"commit.timeout": 1, "patience_seconds": 3}

    async def main() -> None:
        async with Session(plugins=PLUGINS) as session:
            tier = session.tier(str(tmp_path / "tier"), storage_options=options, plan=plan)
            await tier.open(create=True)
            writer = await StreamWriter.claim(tier, STREAM)
            await offload(writer)

            breaking = asyncio.create_task(break_(server, over.wait()))
            await asyncio.sleep(0)
            with pytest.raises((TryAgain, OutcomeUnknown), match=server.url("outage")):
                await offload(writer)
            over.set()
            await breaking

            patient = session.tier(str(tmp_path / "tier"), storage_options=QUICK, plan=plan)
            again = await StreamWriter.claim(patient, STREAM)
            assert again.manifest.next_offset >= 2 * CHUNK_RECORDS
            await offload(again)
            await check(patient, again.manifest.next_offset)

    asyncio.run(main())


@asynccontextmanager
async def impatient(
    server: MetadataServer, *, before: bytes
) -> AsyncIterator[tuple[ObjectStore, ObjectStore]]:
    """Yield a connected store that waits two seconds, and one that waits longer than a busy machine needs."""
    url = server.url("lost")
    patient = open_store(url, plugins=PLUGINS, storage_options={"timeout": "60"})
    store = open_store(url, plugins=PLUGINS, storage_options={"timeout": "2"})
    try:
        await patient.create("before", before)
        connected = False
        while not connected:
            with suppress(TryAgain):
                connected = await store.get("before") == before
        yield store, patient
    finally:
        await store.aclose()
        await patient.aclose()


@few("a lost reply of PostgreSQL; make test has one of etcd", 2)
def test_a_lost_reply_of_a_create_is_an_unknown_outcome(own_server: MetadataServer) -> None:
    """The request was sent, so it may land although nobody answered."""
    server, body = own_server, b"root"

    async def main() -> None:
        async with impatient(server, before=body) as (store, patient):
            server.freeze()
            with pytest.raises(OutcomeUnknown):
                await store.create("sent", body)
            server.thaw()
            for _ in range(100):  # until it is applied, or never will be
                if "sent" in server.records("lost"):
                    break
                await asyncio.sleep(0.05)
            assert server.records("lost").items() <= {"before": body, "sent": body}.items()
            with pytest.raises(AlreadyExists):
                await patient.create("before", body)

    asyncio.run(main())


def test_a_server_that_dies_during_a_create_leaves_an_unknown_outcome(own_server: MetadataServer) -> None:
    server = own_server

    async def main() -> None:
        store = open_store(server.url("lost"), plugins=PLUGINS, storage_options={"timeout": "20"})
        try:
            await store.create("before", b"root")
            server.freeze()
            creating = asyncio.create_task(store.create("sent", b"root"))
            await asyncio.sleep(1)  # until it was sent, of which nothing tells
            server.kill()
            with pytest.raises(OutcomeUnknown):
                await creating
            for call in (store.get("before"), store.create("later", b""), store.delete(["before"])):
                with pytest.raises(TryAgain):  # nobody listens, so nothing was sent
                    await call
            await asyncio.to_thread(server.start)
            assert await store.get("before") == b"root"
        finally:
            await store.aclose()

    asyncio.run(main())


@few("a read of PostgreSQL when it hangs; make test has one of etcd", 2)
def test_a_read_of_a_service_that_hangs_may_be_repeated(own_server: MetadataServer) -> None:
    async def main() -> None:
        async with impatient(own_server, before=b"root") as (store, patient):
            own_server.freeze()
            with pytest.raises(TryAgain):
                await store.get("before")
            with pytest.raises(TryAgain):
                _ = [row async for row in store.list("")]
            own_server.thaw()
            assert await patient.get("before") == b"root"

    asyncio.run(main())
