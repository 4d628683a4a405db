"""Tests of a commit in doubt whose fragment is in a group: an unreadable group decides nothing."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from offload.commit.log import RootLog
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.store import Span, Suffix
from offload.ground.env import Env
from offload.ground.errors import OutcomeUnknown, TryAgain
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator

WRITER, ATTEMPT = UUID(int=1), UUID(int=2)


class LosesReplies(StoreDecorator):
    """A store whose creates succeed but lose their replies; then a rival commits, and groups are
    unreadable.
    """

    rival: RootLog
    base: Manifest

    async def create(self, key: str, data: bytes) -> None:
        """Create the object, let the rival commit on top, and lose the reply."""
        await self.inner.create(key, data)
        landed = await self.rival.load_newest()
        change = Prepare(writer=WRITER, attempts=[(UUID(int=3), 9)])
        await self.rival.commit(change, base=landed, committer=WRITER)
        raise OutcomeUnknown("the reply was lost")

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Raise for groups, and read all other objects."""
        if "/groups/" in key:
            raise TryAgain("not now")
        return await self.inner.get(key, span)


def entry(first_offset: int) -> Entry:
    return Entry(
        first_offset=first_offset,
        records=1,
        messages=1,
        first_timestamp_ms=0,
        last_timestamp_ms=0,
        data_size_bytes=1,
        stored_size_bytes=1,
        ledger_id=0,
        attempt=ATTEMPT,
        checksum=0,
    )


def test_an_append_that_is_in_a_group_never_raises_try_again() -> None:
    """`TryAgain` promises that nothing was committed; here something was, and nobody can see it."""

    async def main() -> int:
        store = MemoryStore()
        log = RootLog(store=store, stream="orders", env=Env(), factor=2)
        claim = Claim(stream="orders", writer=WRITER, first_offset=0)
        claimed = await log.commit(claim, base=None, committer=WRITER)
        prepare = Prepare(writer=WRITER, attempts=[(ATTEMPT, 0)])
        base = await log.commit(prepare, base=claimed, committer=WRITER)

        failing = LosesReplies(store)
        failing.rival = log
        blind = RootLog(store=failing, stream="orders", env=Env(), factor=2)
        append = Append(writer=WRITER, entries=[entry(0), entry(1)])
        with pytest.raises(OutcomeUnknown, match="could not find out"):
            await blind.commit(append, base=base, committer=WRITER)
        newest = await log.load_newest()
        assert newest is not None
        return newest.next_offset

    assert asyncio.run(main()) == 2
