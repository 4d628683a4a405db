"""How an offloader behaves whatever it is asked: opening, closing, and that it hinders nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from offload.offloader import LedgerOffloader
from offload.tier.stream_writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import ledger_of
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, stored
from offload_conformance.opened import Open
from offload_conformance.watch import has_credentials, longest_stall

STALL_SECONDS: Final = 0.2


class MannerClauses(OffloaderClauses):
    """Opening, closing, urls, and the event loop that an offloader shares with others."""

    def test_closing_is_idempotent(self, run: Run, opened: Open) -> None:
        """An offloader may be closed twice, used or not."""
        offloader = opened()
        run(offloader.open(create=True))

        run(offloader.aclose())
        run(offloader.aclose())

    def test_opening_is_idempotent(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """A tier may be opened, and made, any number of times by anyone, and nothing in it changes."""
        run(offloader.open(create=True))
        ledger = ledger_of(3)
        attempt = run(committed(run(StreamWriter.claim(offloader, "orders")), ledger))
        before = self.keys_in_store()

        for create in (True, False, True):
            run(other.open(create=create))
            run(offloader.open(create=create))

        assert self.keys_in_store() == before
        assert run(chunks_of(other, attempt)) == [*ledger.chunks]

    def test_closing_leaves_others_alone(self, run: Run, offloader: LedgerOffloader, opened: Open) -> None:
        """When one offloader of a place is closed, the others go on."""
        ledger = ledger_of(3)
        attempt = run(committed(run(StreamWriter.claim(offloader, "orders")), ledger))
        passing = opened()
        assert run(passing.streams()) == ["orders"]

        run(passing.aclose())

        assert run(chunks_of(offloader, attempt)) == [*ledger.chunks]
        run(StreamWriter.claim(offloader, "bills"))

    def test_the_url_carries_no_credentials(self, offloader: LedgerOffloader) -> None:
        """A url is for messages, so it has neither a password nor a key or token of the store."""
        assert "://" in offloader.url
        assert not has_credentials(offloader.url)

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
            assert stall_seconds < STALL_SECONDS, f"{name} held up the event loop, at every try"

    def test_streams_are_listed_by_name(self, run: Run, offloader: LedgerOffloader) -> None:
        """Whatever a stream is called, it is listed under that name, and is not its neighbour."""
        names = ["/", "Orders", "a b", "orders", "orders.", "orders/eu", "é", "日本"]
        for name in reversed(names):
            run(StreamWriter.claim(offloader, name))

        assert run(offloader.streams()) == sorted(names)
        assert [run(offloader.load_manifest(name)).stream for name in names] == names


async def deleted_after_storing(writer: StreamWriter) -> None:
    """Store an attempt and delete it."""
    [attempt] = await writer.prepare([3])
    await stored(writer, ledger_of(3, first_offset=3), attempt)
    await writer.offloader.delete_offloaded(attempt)
    writer.manifest = await writer.offloader.load_manifest(attempt.stream)
