"""General behaviour of an offloader: opening and closing, its URL, and calls beside other calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import NotOffloaded
from offload.model.chunk_table import ChunkTable
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import ledger_of
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, stored
from offload_conformance.offloader.doors import doors
from offload_conformance.opened import Open
from offload_conformance.same import assert_same
from offload_conformance.watch import has_credentials, longest_stall

STALL_SECONDS: Final = 0.2
CLIENTS: Final = 4
ANSWER_SECONDS: Final = 30
"""A call that waits for a lock of another one is never answered."""


class OffloaderMannerClauses(OffloaderClauses):
    """The clauses on opening, closing, URLs, and the event loop that offloaders share."""

    def test_closing_is_idempotent(self, run: Run, opened: Open) -> None:
        """An offloader may be closed twice, whether it was used or not."""
        offloader = opened()
        run(offloader.open(create=True))

        run(offloader.aclose())
        run(offloader.aclose())

    def test_opening_is_idempotent(
        self, run: Run, opened: Open, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A tier may be opened and created any number of times by anyone, and nothing in it changes.

        What is uploaded and not committed yet is there too, and can be committed afterwards.
        """
        run(offloader.open(create=True))
        ledger, more = ledger_of(3), ledger_of(3, first_offset=3)
        writer = run(StreamWriter.claim(offloader, "orders"))
        attempt = run(committed(writer, ledger))
        [uncommitted, running] = run(writer.prepare([3, 6]))
        receipt = run(stored(writer, more, uncommitted))
        before = run(other.load_manifest("orders"))

        for client in (other, offloader, opened()):
            for create in (True, False, True):
                run(client.open(create=create))

        assert_same(run(other.load_manifest("orders")), before)
        run(writer.append([receipt]))
        assert run(chunks_of(other, attempt)) == [*ledger.chunks]
        assert run(chunks_of(other, uncommitted)) == [*more.chunks]
        last = ledger_of(3, first_offset=6)
        run(writer.append([run(stored(writer, last, running))]))
        assert run(chunks_of(other, running)) == [*last.chunks]

    def test_opening_makes_nothing_unasked(self, run: Run, opened: Open) -> None:
        """Opening a place that is no tier without `create` raises `NotOffloaded` and does not make it one."""
        for _ in range(2):
            curious = opened()
            for _ in range(2):
                with pytest.raises(NotOffloaded):
                    run(curious.open())
            with pytest.raises(NotOffloaded):
                run(curious.streams())

        run(curious.open(create=True))
        assert run(opened().streams()) == []

    def test_openings_may_come_at_once(self, run: Run, opened: Open) -> None:
        """Clients that create a tier at the same time all succeed, and get the same tier."""
        clients = [opened() for _ in range(CLIENTS)]
        names = [f"stream-{n}" for n in range(CLIENTS)]

        async def begun(client: LedgerOffloader, name: str) -> None:
            await client.open(create=True)
            await StreamWriter.claim(client, name)

        async def scenario() -> None:
            await asyncio.gather(*map(begun, clients, names))

        run(scenario())

        assert [run(client.streams()) for client in clients] == [names] * CLIENTS

    def test_closing_leaves_others_alone(self, run: Run, offloader: LedgerOffloader, opened: Open) -> None:
        """Closing one offloader of a place does not affect the others."""
        ledger = ledger_of(3)
        attempt = run(committed(run(StreamWriter.claim(offloader, "orders")), ledger))
        passing = opened()
        assert run(passing.streams()) == ["orders"]

        run(passing.aclose())

        assert run(chunks_of(offloader, attempt)) == [*ledger.chunks]
        run(StreamWriter.claim(offloader, "bills"))

    def test_the_url_carries_no_credentials(self, offloader: LedgerOffloader) -> None:
        """A URL contains no password, key or token, because it is shown in messages."""
        assert "://" in offloader.url
        assert not has_credentials(offloader.url)

    def test_calls_may_come_while_others_wait(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, writer: StreamWriter
    ) -> None:
        """While an offload waits for its source, every other call of the same offloader is answered.

        The source may be a fragment of the same tier, as for a copy.
        """
        attempt = run(committed(writer, ledger_of(3)))
        [dropped, waiting] = run(writer.prepare([3, 3]))
        calls: Mapping[str, Callable[[], Awaitable[object]]] = {
            "open": lambda: offloader.open(create=True),
            "streams": lambda: offloader.streams(),
            "load_manifest": lambda: offloader.load_manifest("orders"),
            "view": lambda: offloader.view("orders"),
            "newer_view": lambda: offloader.newer_view(writer.manifest),
            "parts": lambda: offloader.parts("orders"),
            "leftovers": lambda: offloader.leftovers(writer.manifest),
            "read": lambda: chunks_of(offloader, attempt),
            "commit_manifest": lambda: StreamWriter.claim(offloader, "bills"),
            "delete_offloaded": lambda: offloader.delete_offloaded(dropped),
        }
        ledger = ledger_of(2, first_offset=3)
        asked = False

        async def ask_all(rows: ChunkTable) -> None:
            nonlocal asked
            if asked:
                return
            asked = True
            for name, call in calls.items():
                with answered(f"{name}, while an offload reads its source"):
                    await asyncio.wait_for(call(), ANSWER_SECONDS)

        async def scenario() -> None:
            ledger.before_read = ask_all
            receipt = await stored(writer, ledger, waiting)
            assert asked, "expected that the offload reads its source"
            await writer.append([receipt])
            bills = await StreamWriter.claim(offloader, "bills")
            for n, openings in enumerate((await doors(offloader, attempt)).values()):
                [copy] = await bills.prepare([0])
                async with await openings[0]() as source:
                    with answered("an offload of a fragment of the same tier"):
                        uploading = stored(bills, source, copy)
                        receipt = await asyncio.wait_for(uploading, ANSWER_SECONDS)
                if n == 0:
                    await bills.append([receipt])
                    assert await chunks_of(other, copy) == [*ledger_of(3).chunks]

        run(scenario())

    def test_calls_do_not_hold_up_the_loop(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """While a call waits for its store, other tasks of the event loop run."""
        writer = run(StreamWriter.claim(offloader, "orders"))
        attempt = run(committed(writer, ledger_of(3)))
        calls: Mapping[str, Callable[[], Awaitable[object]]] = {
            "load_manifest": lambda: other.load_manifest("orders"),
            "commit_manifest": lambda: writer.prepare([3]),
            "read_offloaded": lambda: chunks_of(other, attempt),
            "streams": lambda: other.streams(),
            "delete_offloaded": lambda: deleted_after_storing(writer),
        }

        for name, call in calls.items():
            stall_seconds = run(longest_stall(call, enough_seconds=STALL_SECONDS))
            assert stall_seconds < STALL_SECONDS, f"{name} blocked the event loop, at every try"


@contextmanager
def answered(what: str) -> Iterator[None]:
    """Fail if a call is not answered in time."""
    try:
        yield
    except TimeoutError:
        pytest.fail(f"{what}: expected an answer within {ANSWER_SECONDS} s")


async def deleted_after_storing(writer: StreamWriter) -> None:
    """Store an attempt and delete it."""
    [attempt] = await writer.prepare([3])
    await stored(writer, ledger_of(3, first_offset=3), attempt)
    await writer.offloader.delete_offloaded(attempt)
    writer.manifest = await writer.offloader.load_manifest(attempt.stream)
