"""A stream's writer: it claims the stream, settles what earlier writers left, and commits ledgers in order.

The order of steps is the protocol's (docs/commit-protocol.md), and every step is one commit:

    claim      the stream is ours, under a higher epoch; older writers are fenced
    resolve    complete fragments that a crash left are adopted; every older attempt is condemned
    prepare    our attempts are announced; only then does the first upload start
    append     fragments are named, in order; their attempts end

Invariants: the source copy of an offset may go only when `next_offset` of an accepted manifest has passed it;
a writer that was fenced does nothing more, and deletes nothing. A writer is used by one task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Final, Self
from uuid import UUID

from offload.commit.guest import Abort
from offload.commit.writer import Append, Claim, Prepare, Resolve
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import Env
from offload.ground.errors import Fenced, NotOffloaded, OffloadError
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.manifest import Manifest

__all__ = ["StreamWriter"]


Agree = Callable[[Leftover], Awaitable[bool]]
"""A check of a leftover: true unless the source still has its last chunk, with other bytes."""


COMMIT_RECEIPTS: Final = 8
COMMIT_INTERVAL_SECONDS: Final = 2.0
"""Uploaded ledgers are committed after this number of them, or after this time, whichever comes first."""

COMMIT_ENTRIES: Final = 256
"""The most fragments that one commit of a writer names. An append of more takes several commits.
docs/adr/0012-manifest-tree.md computes what this bounds."""


async def always(leftover: Leftover) -> bool:
    """Agree to every leftover. For sources that never truncate data that they once showed."""
    return True


@dataclass(kw_only=True)
class StreamWriter:
    """The holder of one stream of a tier, until somebody else claims it. `claim` makes one."""

    offloader: LedgerOffloader
    manifest: Manifest
    """The newest manifest that is known to be accepted."""

    env: Env = field(default_factory=Env)
    uploaded_size_bytes: int = 0
    """The size of all fragments that this writer uploaded completely, committed or not."""

    reached: int = field(init=False)
    """The end of the stream that the claim found, or that this writer's last append made.

    A job may append beside a writer, which keeps the fence. If `manifest` ends elsewhere, one has."""

    writer: UUID = field(init=False)
    """The identity under which this writer claimed the stream. A later manifest may name its successor."""

    _ahead: Attempt | None = field(default=None, init=False)
    """An attempt that was announced for the next ledger or part of a ledger."""

    def __post_init__(self) -> None:
        self.writer, self.reached = self.manifest.writer, self.manifest.next_offset

    @classmethod
    async def claim(
        cls,
        offloader: LedgerOffloader,
        stream: str,
        *,
        base: Manifest | None = None,
        is_new: bool = False,
        first_offset: int = 0,
        source_epoch: int = 0,
        expected_version: int | None = None,
        writer: UUID | None = None,
        agree: Agree = always,
        env: Env | None = None,
    ) -> Self:
        """Take the stream and settle what earlier writers left.

        `base` is the newest manifest that the caller knows. Without it, the newest is loaded first. A caller
        that has just found no stream passes `is_new`, and nothing is loaded. The commit finds out if a stream
        was begun since.
        `first_offset` is the stream's first offset if it is new. `writer` is a UUID that was never used; by
        default it is random. Raises `Fenced` if `source_epoch` is below the recorded one, and `Conflict` if
        `expected_version` is given and the newest root has another.
        """
        env = env or Env()
        # An old base is harmless. The commit applies the claim to the newest manifest, whether the stream was
        # born, deleted or claimed by a rival since.
        if base is None and not is_new:
            with suppress(NotOffloaded):
                base = await offloader.load_manifest(stream)
        change = Claim(
            stream=stream,
            writer=writer or env.uuid(),
            first_offset=first_offset,
            source_epoch=source_epoch,
            expected_version=expected_version,
        )
        manifest = await offloader.commit_manifest(stream, change, base=base, committer=change.writer)
        # Resolve before the first own commit. An append of ours would take the offset that complete fragments
        # of a crashed writer continue, and all their data would have to be uploaded again.
        claimed = cls(offloader=offloader, manifest=manifest, env=env)
        await claimed._resolve(agree)
        claimed.reached = claimed.manifest.next_offset
        return claimed

    async def prepare(self, ledger_ids: Sequence[int]) -> list[Attempt]:
        """Announce one fresh attempt per ledger, in one commit, and return the attempts."""
        attempts = [self._attempt(ledger_id) for ledger_id in ledger_ids]
        await self._commit(Prepare(writer=self.writer, attempts=[(a.uid, a.ledger_id) for a in attempts]))
        return attempts

    async def append(
        self, receipts: Sequence[Receipt], *, dropped: Sequence[Attempt] = (), ahead: int | None = None
    ) -> None:
        """Name the uploaded fragments of these attempts, and end the attempts, and those that are `dropped`.

        `ahead` is the ledger of an attempt to announce for the next call of `offload`.

        Up to `COMMIT_ENTRIES` fragments take one commit, and all of them are in or none is. More fragments
        take several commits, the oldest first, and the attempts end with the last commit. After a failure in
        between, the fragments that were not named yet are adopted or dropped as after any crash.
        """
        entries = [entry for receipt in receipts for entry in receipt.entries]
        finished = frozenset(each.uid for each in (*(receipt.attempt for receipt in receipts), *dropped))
        # The attempts run until the last commit. If the first commit ended them, a crash after it would
        # condemn the fragments that were not named yet.
        while len(entries) > COMMIT_ENTRIES:
            await self._append(Append(writer=self.writer, entries=entries[:COMMIT_ENTRIES]))
            entries = entries[COMMIT_ENTRIES:]
        following = None if ahead is None else self._attempt(ahead)
        announced = [] if following is None else [(following.uid, following.ledger_id)]
        await self._append(
            Append(writer=self.writer, entries=entries, finished=finished, announced=announced)
        )
        self._ahead = following

    async def abort(self, attempts: Sequence[Attempt]) -> None:
        """Drop attempts. Their objects are garbage from then on, and the sweep deletes them."""
        if attempts:
            await self._commit(Abort(attempts=frozenset(attempt.uid for attempt in attempts)))

    async def release(self) -> None:
        """Drop the attempt that was announced ahead. The stream's root then shows that no writer is at work.

        The writer may be used afterwards. Without this call, the next claim drops the attempt.
        """
        if self._ahead is not None:
            await self.abort([self._ahead])
            self._ahead = None

    async def offload(
        self,
        handles: Sequence[ReadHandle],
        *,
        extra_metadata: Mapping[str, str] | None = None,
        ahead: bool = False,
    ) -> None:
        """Copy these ledgers, which follow each other from `next_offset` on, and commit them in order.

        With `ahead`, the last commit also announces an attempt for what follows in the last ledger. If the
        next call begins there, it takes one commit instead of two.

        They are uploaded at the same time, within the offloader's limits, and each is committed as soon as
        all before it are. Raises the first error in order of offsets. Ledgers before the error are committed
        then, and the attempts behind it are dropped.
        """
        if not handles:
            return
        # Announce first: a sweep deletes fragments of attempts that no root announces, also while they are
        # being uploaded.
        attempts, unused = await self._announced(handles)
        tasks = [
            asyncio.ensure_future(self._upload(handle, attempt, extra_metadata or {}))
            for handle, attempt in zip(handles, attempts, strict=True)
        ]
        committed = 0
        try:
            async with aclosing(self._debounced(tasks)) as runs:
                async for receipts in runs:
                    is_last = committed + len(receipts) == len(tasks)
                    await self.append(
                        receipts,
                        dropped=unused if is_last else (),
                        ahead=handles[-1].ledger_id if ahead and is_last else None,
                    )
                    committed += len(receipts)
            # `_debounced` stops before the first upload that failed. Its result raises the error.
            for task in tasks[committed : committed + 1]:
                task.result()
        except Fenced:
            # Another writer holds the stream. It may have adopted our fragments, so even our own attempts are
            # not ours to drop any more.
            raise
        except OffloadError:
            # Uploads end before the abort, so that as little garbage as possible is made after it. If the
            # abort fails, the attempts keep running, and the next claim settles them.
            await _cancelled(tasks)
            with suppress(OffloadError):
                await self.abort([*attempts[committed:], *unused])
            raise
        finally:
            await _cancelled(tasks)

    async def _announced(self, handles: Sequence[ReadHandle]) -> tuple[list[Attempt], list[Attempt]]:
        """Return an announced attempt for each handle, and those that were announced ahead in vain."""
        ahead = self._ahead
        ledger_ids = [handle.ledger_id for handle in handles]
        is_used = ahead is not None and ahead.ledger_id == ledger_ids[0]
        known = [ahead] if ahead is not None and is_used else []
        missing = ledger_ids[len(known) :]
        attempts = known + (await self.prepare(missing) if missing else [])
        self._ahead = None
        return attempts, [ahead] if ahead is not None and not is_used else []

    def _attempt(self, ledger_id: int) -> Attempt:
        return Attempt(stream=self.manifest.stream, ledger_id=ledger_id, uid=self.env.uuid())

    async def _debounced(
        self, tasks: Sequence[asyncio.Future[Receipt]]
    ) -> AsyncGenerator[list[Receipt], None]:
        """Yield the receipts in order, up to the first failure, in runs that are worth a commit each."""
        ready: list[Receipt] = []
        entries = 0
        last_seconds = self.env.monotonic()
        for task in tasks:
            # Waiting for a slow upload must not hold back what is ready: with the commit, the broker may free
            # those offsets.
            while not task.done():
                left = max(last_seconds + COMMIT_INTERVAL_SECONDS - self.env.monotonic(), 0.0)
                await asyncio.wait([task], timeout=left if ready else None)
                if ready and not task.done():
                    yield ready
                    ready, entries, last_seconds = [], 0, self.env.monotonic()
            # Nothing behind a failure may be committed, since that would leave a hole. `ready` is before it.
            if task.cancelled() or task.exception() is not None:
                break
            receipt = task.result()
            if ready and entries + len(receipt.entries) > COMMIT_ENTRIES:
                yield ready
                ready, entries, last_seconds = [], 0, self.env.monotonic()
            ready.append(receipt)
            entries += len(receipt.entries)
            if len(ready) >= COMMIT_RECEIPTS:
                yield ready
                ready, entries, last_seconds = [], 0, self.env.monotonic()
        if ready:
            yield ready

    async def _upload(
        self, handle: ReadHandle, attempt: Attempt, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await self.offloader.offload(
            handle, attempt, manifest=self.manifest, extra_metadata=extra_metadata
        )
        self.uploaded_size_bytes += sum(entry.stored_size_bytes for entry in receipt.entries)
        return receipt

    async def _resolve(self, agree: Agree) -> None:
        # After a clean end no attempts of other writers run. Then no listing and no commit is needed.
        if not Resolve(writer=self.writer, adopted=()).settled(self.manifest):
            return
        adopted = []
        for leftover in await self.offloader.leftovers(self.manifest):
            # The broker may have cut its log since the crash. Leftovers form a chain, so what follows one
            # that the source denies is denied as well.
            if not await agree(leftover):
                break
            adopted.append(leftover.entry)
        # Committed even if nothing is adopted: it condemns the attempts, so that uploads of a writer that
        # only stalls can never be named.
        await self._commit(Resolve(writer=self.writer, adopted=adopted))

    async def _append(self, change: Append) -> None:
        await self._commit(change)
        # Not the end of the manifest: if the reply was lost, that is the newest, in which a job may have
        # appended behind these fragments.
        if change.entries:
            self.reached = change.entries[-1].next_offset

    async def _commit(self, change: Change) -> None:
        self.manifest = await self.offloader.commit_manifest(
            self.manifest.stream, change, base=self.manifest, committer=self.writer
        )


async def _cancelled(tasks: Sequence[asyncio.Future[Receipt]]) -> None:
    """Cancel the tasks that still run, and wait for them. Their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
