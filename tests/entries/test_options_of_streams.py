"""Tests of the options of `EntryLedgerStream`: the size of chunks, and how many ledgers are open together."""

from __future__ import annotations

import asyncio

import pytest
from entry_store import EntryStore, Ledger, Listed, bodies, synced

from offload import Misuse, ObjectStoreOffloader, StreamReader
from offload.contracts.entries import EntryRun
from offload.entries.ledger import EntryLedgerStream
from offload.store.memory import MemoryStore

RECORDS = [bytes([number]) * (number % 50) for number in range(250)]


def test_chunks_have_at_most_the_given_size_or_one_larger_record() -> None:
    async def main() -> None:
        store = EntryStore([Ledger(7).add(*RECORDS).add(b"x" * 500)], how={"chunk_size_bytes": 200})
        tier = ObjectStoreOffloader(MemoryStore())
        assert (await synced(store, tier)).error is None

        reader, sizes = await StreamReader.open(tier, "orders"), list[tuple[int, int]]()
        async for chunk in reader.chunks(0):
            sizes.append((chunk.records, len(chunk.data)))
        assert all(size <= 200 or records == 1 for records, size in sizes)
        assert sizes[-1] == (1, 504)
        assert min(size for _, size in sizes[:-2]) > 200 - 4 - 50
        assert await bodies(tier) == [*RECORDS, b"x" * 500]

    asyncio.run(main())


class Counted(Listed):
    """A ledger that is open from its first run to its close."""

    opened = set[int]()
    most = 0

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        Counted.opened.add(self.ledger_id)
        Counted.most = max(Counted.most, len(Counted.opened))
        return await super().entries(first, last, size_bytes=size_bytes)

    async def aclose(self) -> None:
        Counted.opened.discard(self.ledger_id)


@pytest.mark.parametrize("ledgers_at_once", [1, 2, 5, None])
def test_a_copy_opens_no_more_ledgers_together_than_stated(ledgers_at_once: int | None) -> None:
    async def main() -> None:
        Counted.opened, Counted.most = set(), 0
        ledgers = [Ledger(number, is_sealed=True).add(b"a", b"b") for number in range(6)]
        store = EntryStore(ledgers, how={"ledgers_at_once": ledgers_at_once})
        store.list_ledgers = lambda: _listed(ledgers)  # type: ignore[method-assign]
        store.restart()
        tier = ObjectStoreOffloader(MemoryStore())
        assert (await synced(store, tier)).error is None

        assert Counted.most == (ledgers_at_once or 6)
        assert len(await bodies(tier)) == 12

    asyncio.run(main())


async def _listed(ledgers: list[Ledger]) -> list[Listed]:
    return [Counted(ledger) for ledger in ledgers]


def test_a_ledger_may_state_no_length() -> None:
    """Sizes are then compared between the two reads alone."""

    async def main() -> None:
        store = EntryStore([Ledger(7).add(b"a", b"bc")], lies={7: {"length": None}})
        tier = ObjectStoreOffloader(MemoryStore())
        assert (await synced(store, tier)).error is None
        store.ledgers[0].add(b"def")
        assert (await synced(store, tier)).error is None
        assert await bodies(tier) == [b"a", b"bc", b"def"]

        def longer(run: EntryRun) -> EntryRun:
            return EntryRun.of([b"x" * len(store.listed[-1].reads)], first=run.first, timestamps_ms=1)

        store = EntryStore([Ledger(7).add(b"x")], lies={7: {"length": None, "run": longer}})
        report = await synced(store, ObjectStoreOffloader(MemoryStore()))
        assert "second read of entries 0 to 0" in str(report.error)

    asyncio.run(main())


@pytest.mark.parametrize("wrong", [{"chunk_size_bytes": 0}, {"ledgers_at_once": 0}])
def test_sizes_and_numbers_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(Misuse, match="1 or more"):
        EntryLedgerStream("orders", lambda: _listed([]), **wrong)  # type: ignore[arg-type]
