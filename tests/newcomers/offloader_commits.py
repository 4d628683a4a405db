"""Mistakes in commits: fences, repetitions, concurrency."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from uuid import UUID, uuid4

from newcomers.ledgers import (
    copied,
    entries_of,
    ledger,
    raises,
    trimmed,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload.commit.guest import Abort, Trim
from offload.commit.writer import Append, Prepare
from offload.contracts.change import Change
from offload.formats.root import encode_root
from offload.ground.errors import Conflict, OutcomeUnknown, StreamDeleted
from offload.model.manifest import Manifest
from offload.upkeep.retention import delete_stream


async def _repeated(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    _, receipt = await uploaded(tier, writer, ledger(3))
    change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))
    await tier.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
    newer = await tier.commit_manifest(
        "s", Prepare(writer=writer.writer, attempts=[(uuid4(), 9)]), base=None, committer=writer.writer
    )
    for client in (tier, open_()):
        again = await client.commit_manifest("s", change, base=writer.manifest, committer=writer.writer)
        assert again.version == newer.version


@bug(_repeated)
class OnlyTheSameClientMayRepeat(Table):
    """The client remembers its own changes; to another client the same change is new, and does not fit.

    Breaks "Commits are idempotent": a process that restarts after a lost reply gets a conflict.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.mine: list[Change] = []

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        return change in self.mine and await super().is_in(change, newest)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        manifest = await super().commit_manifest(stream, change, base=base, committer=committer)
        self.mine.append(change)
        return manifest


async def _repeated_after_a_trim(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), first=0)
    _, receipt = await uploaded(tier, writer, ledger(3, ledger_id=2))
    change = Append(writer=writer.writer, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))
    base = writer.manifest
    writer.manifest = await tier.commit_manifest("s", change, base=base, committer=writer.writer)
    await writer.offload([ledger(6, ledger_id=3)])
    await trimmed(tier, "s", 6)
    with suppress(OutcomeUnknown):
        await tier.commit_manifest("s", change, base=base, committer=writer.writer)


@bug(_repeated_after_a_trim)
class WhatIsTrimmedWasNeverIn(Table):
    """A change that the manifest no longer shows counts as one that was not committed.

    Breaks "raises `OutcomeUnknown` if what it named was trimmed": `Conflict` means that it never will be in.
    """

    async def is_in(self, change: Change, newest: Manifest) -> bool:
        try:
            return await super().is_in(change, newest)
        except OutcomeUnknown:
            return False


async def _deleted_under_a_writer(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    await delete_stream(open_(), "s")
    await raises(StreamDeleted, writer.prepare([7]))
    await raises(StreamDeleted, tier.load_manifest("s"))


@bug(_deleted_under_a_writer)
class TombstonesAreConflicts(Table):
    """A commit on a deleted stream raises `Conflict`, like a change that does not fit.

    Breaks "`StreamDeleted` if it was deleted": the writer loads and tries again, for ever.
    """

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        try:
            return await super().commit_manifest(stream, change, base=base, committer=committer)
        except StreamDeleted as exc:
            raise Conflict(str(exc)) from exc


async def _guest_does_not_take(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, ledger_id=1), ledger(3, ledger_id=2), first=0)
    await trimmed(open_(), "s", 3)
    await writer.prepare([7])


@bug(_guest_does_not_take)
class GuestsTakeTheStream(Table):
    """Every committer becomes the writer, even a guest that trims.

    Breaks "`Fenced` if another writer holds the stream": none does, and yet a trim stops the writer.
    """

    async def changed(self, change: Change, base: Manifest | None, committer: UUID) -> Manifest:
        manifest = await super().changed(change, base, committer)
        return replace(manifest, writer=committer) if isinstance(change, Trim | Abort) else manifest


async def _read_while_committed(open_: Open) -> None:
    one, two = open_(), open_()
    writer = await copied(one, "s", ledger(0), first=0)

    async def write() -> None:
        for number in range(1, 8):
            await writer.offload([ledger(number * 3)])

    writing = asyncio.create_task(write())
    while not writing.done():
        await entries_of(two, await two.load_manifest("s"))
        await asyncio.sleep(0)
    await writing


@bug(_read_while_committed)
class CommitsAreTwoUpdates(Table):
    """The totals and the entries of a manifest are two tables, updated one after the other.

    Breaks "A change is in the manifest entire or not at all": a reader in between finds wrong totals.
    """

    async def set(self, manifest: Manifest) -> bool:
        before = self.db.newest(manifest.stream)
        if (
            before is not None
            and before.commit_id == manifest.parent_commit_id
            and len(before.entries) != len(manifest.entries)
        ):
            raw = encode_root(before)
            self.db.roots[manifest.stream] = encode_root(replace(manifest, entries=before.entries))
            await asyncio.sleep(0.002)
            self.db.roots[manifest.stream] = raw
            return self.db.replace(manifest)
        return await super().set(manifest)
