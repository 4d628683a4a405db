"""Claims of Pulsar's own suites that no other test here makes. docs/pulsar-bucket-claims.md lists all."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from uuid import UUID

import pytest
from cloud.tiers import CloudTier
from offload_pulsar import BrokerNames, PulsarBucket, PulsarKey, PulsarLedger
from pulsar_sets import ListedEntries
from servers import Running, servers_of

from offload import Session
from offload.contracts.store import Body
from offload.ground.errors import Corrupt, Misuse, OffloadError, TryAgain
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore

UID = UUID("01234567-89ab-4cde-8f01-23456789abcd")
NAMES = BrokerNames(managed_ledger="public/default/persistent/orders")
ENTRIES = [b"%d" % number * (number % 9) for number in range(100)]
PAGE = Path(__file__).parent.parent.parent / "docs" / "pulsar-bucket-claims.md"


async def opened(store: MemoryStore) -> PulsarLedger:
    bucket = PulsarBucket(store, block_size_bytes_max=200)
    await bucket.offload(ListedEntries(7, ENTRIES), UID, names=NAMES)
    return await bucket.open(7, UID)


async def read(ledger: PulsarLedger, first: int, last: int) -> list[bytes]:
    run = await ledger.entries(first, last, size_bytes=2**30)
    return [
        bytes(run.data[start:end]) for start, end in zip(run.starts.tolist(), run.ends.tolist(), strict=True)
    ]


@pytest.mark.parametrize(("first", "last"), [(-1, -1), (0, 100), (100, 100), (5, 4)])
def test_entries_that_a_ledger_lacks_are_refused(first: int, last: int) -> None:
    """testOffloadReadInvalidEntryIds, testInvalidEntryIds."""

    async def main() -> None:
        ledger = await opened(MemoryStore())
        with pytest.raises(Misuse, match="has the entries 0 to 99"):
            await ledger.entries(first, last, size_bytes=1)

    asyncio.run(main())


def test_the_first_entry_can_be_read_behind_the_last() -> None:
    """testReadEOFException."""

    async def main() -> None:
        ledger = await opened(MemoryStore())

        assert await read(ledger, 0, 99) == ENTRIES
        assert await read(ledger, 0, 0) == ENTRIES[:1]

    asyncio.run(main())


def test_data_that_is_deleted_behind_an_open_ledger_is_damage() -> None:
    """testReadNotExistLedger."""

    async def main() -> None:
        store = MemoryStore()
        ledger = await opened(store)
        await store.delete((f"{UID}-ledger-7",))

        with pytest.raises(Corrupt, match="data object: expected present, found absent"):
            await ledger.entries(0, 99, size_bytes=1)

    asyncio.run(main())


def test_a_failed_deletion_is_reported_and_leaves_both_objects() -> None:
    """testDeleteOffloadedFail."""

    async def main() -> None:
        store = MemoryStore()
        await opened(store)
        failing = FaultyStore(store, rules=[Rule(Fault.FAIL_BEFORE, "delete")])

        with pytest.raises(TryAgain, match="delete"):
            await PulsarBucket(failing).delete(7, UID)

        assert set(store.objects) == {f"{UID}-ledger-7", f"{UID}-ledger-7-index"}

    asyncio.run(main())


def test_a_scan_asks_for_several_names_at_once_and_keeps_the_order_of_keys() -> None:
    """testScanLedgers."""
    asked, most = 0, 0

    class Slow(MemoryStore):
        async def metadata_of(self, key: str) -> Mapping[str, str] | None:
            nonlocal asked, most
            asked, most = asked + 1, max(most, asked + 1)
            try:
                await asyncio.sleep(0)
            finally:
                asked -= 1
            return await super().metadata_of(key)

    async def main() -> None:
        store = Slow()
        for number in range(100):
            key = PulsarKey(UUID(int=number * 7919 % 101), number)
            await store.put(str(key), Body.of(b"", metadata=NAMES.metadata(key)))
        await store.put("8-stranger", Body.of(b""))

        found = [each.name async for each in PulsarBucket(store).scan()]
        assert found == sorted(store.objects)

        async with aclosing(PulsarBucket(store).scan()) as attempts:
            await anext(attempts)
        assert asked == 0, "no request goes on behind a scan that was closed"

    asyncio.run(main())
    assert most > 10


def test_an_entry_is_in_the_block_that_begins_at_or_before_it() -> None:
    """testGetIndexedEntryIdFloor, offloadIndexBlockImplTest."""

    async def main() -> None:
        store = MemoryStore()
        await opened(store)
        (group,) = (await PulsarBucket(store).index(next_key(store))).groups
        firsts = group.blocks["first_entry_id"].tolist()

        for entry in range(100):
            number = group.block_of(entry)
            assert firsts[number] <= entry
            assert number == len(firsts) - 1 or entry < firsts[number + 1]

    def next_key(store: MemoryStore) -> PulsarKey:
        key = PulsarKey.parse(min(store.objects))
        assert key is not None
        return key

    asyncio.run(main())


@pytest.mark.parametrize("running_server", servers_of("s3"), indirect=True)
def test_a_bucket_that_does_not_exist_is_an_error(
    running_server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """testBucketDoesNotExist."""
    CloudTier(running_server.place(), monkeypatch)

    async def main() -> None:
        async with Session() as session:
            bucket = PulsarBucket(session.store("s3://there-is-no-such-bucket"))
            with pytest.raises(OffloadError, match="there-is-no-such-bucket"):
                await bucket.offload(ListedEntries(7, ENTRIES), UID, names=NAMES)

    asyncio.run(main())


def test_every_test_that_the_page_names_exists() -> None:
    tests = {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| (`test_[^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(test_\w+)`", row)]

    assert len(rows) >= 30
    assert not {*named} - tests
