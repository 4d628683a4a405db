"""A stream's writer: claims it, settles what earlier writers left, and commits ledgers in order.

The order of steps is the protocol's (docs/commit-protocol.md), and every step is one commit:

    claim      the stream is ours, under a higher epoch; older writers are fenced
    resolve    what a crash left complete is adopted; every older attempt is condemned
    prepare    our attempts are announced; only then does the first upload start
    append     fragments are named, in order; their attempts end

Invariants: the source copy of an offset may go only when `next_offset` has passed it; a writer that
was fenced does nothing more, and deletes nothing. A writer is used by one task.
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
from offload.env import Env
from offload.errors import Fenced, NotOffloaded, OffloadError
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.manifest import Manifest

__all__ = ["StreamWriter"]


Agree = Callable[[Leftover], Awaitable[bool]]
"""Whether the source, where it still has the leftover's last chunk, has the same bytes there."""


COMMIT_RECEIPTS: Final = 8
COMMIT_INTERVAL_SECONDS: Final = 2.0
"""What is uploaded is committed after so many ledgers or so long, whichever comes first."""

COMMIT_ENTRIES: Final = 256
"""And before it names more fragments than this; an append of more takes several commits. What that bounds
is computed in docs/adr/0012-manifest-tree.md."""


async def always(leftover: Leftover) -> bool:
    """For sources that never truncate what they once showed."""
    return True


@dataclass(kw_only=True)
class StreamWriter:
    """Holds one stream of a tier, until somebody else claims it. Made by `claim`."""

    offloader: LedgerOffloader
    manifest: Manifest
    """The newest manifest that is known to be accepted."""

    env: Env = field(default_factory=Env)
    uploaded_size_bytes: int = 0
    """The size of all fragments that this writer made durable, committed or not."""

    writer: UUID = field(init=False)
    """The identity under which this writer claimed the stream. A later manifest may name its successor."""

    def __post_init__(self) -> None:
        self.writer = self.manifest.writer

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
        agree: Agree = always,
        env: Env | None = None,
    ) -> Self:
        """Take the stream and settle what earlier writers left.

        `base` is the newest manifest that the caller knows; without it the newest is loaded first. A caller
        that has just found no stream says so by `is_new`, and nothing is loaded; the commit finds out if one
        has come since.
        `first_offset` is where the stream begins if it is new. Raises `Fenced` where `source_epoch`
        is behind the one recorded.
        """
        env = env or Env()
        if base is None and not is_new:
            with suppress(NotOffloaded):  # new, or deleted: the commit finds out which
                base = await offloader.load_manifest(stream)
        change = Claim(
            stream=stream,
            writer=env.uuid(),
            first_offset=first_offset,
            source_epoch=source_epoch,
        )
        manifest = await offloader.commit_manifest(stream, change, base=base, committer=change.writer)
        writer = cls(offloader=offloader, manifest=manifest, env=env)
        await writer._resolve(agree)
        return writer

    async def prepare(self, ledger_ids: Sequence[int]) -> list[Attempt]:
        """Announce one fresh attempt per ledger, in one commit."""
        stream = self.manifest.stream
        attempts = [
            Attempt(stream=stream, ledger_id=ledger_id, uid=self.env.uuid()) for ledger_id in ledger_ids
        ]
        await self._commit(Prepare(writer=self.writer, attempts=[(a.uid, a.ledger_id) for a in attempts]))
        return attempts

    async def append(self, receipts: Sequence[Receipt]) -> None:
        """Name what these attempts made durable; they end with it.

        All in one commit, or nothing, up to `COMMIT_ENTRIES` fragments. Of more, the oldest go first, and
        the attempts end with the last commit: what was not named by then is adopted or dropped as after any
        crash.
        """
        entries = [entry for receipt in receipts for entry in receipt.entries]
        finished = frozenset(receipt.attempt.uid for receipt in receipts)
        while len(entries) > COMMIT_ENTRIES:
            await self._commit(Append(writer=self.writer, entries=entries[:COMMIT_ENTRIES]))
            entries = entries[COMMIT_ENTRIES:]
        await self._commit(Append(writer=self.writer, entries=entries, finished=finished))

    async def abort(self, attempts: Sequence[Attempt]) -> None:
        """Drop attempts. Their objects are garbage from here on; the sweep removes them."""
        if attempts:
            await self._commit(Abort(attempts=frozenset(attempt.uid for attempt in attempts)))

    async def offload(
        self, handles: Sequence[ReadHandle], *, extra_metadata: Mapping[str, str] | None = None
    ) -> None:
        """Copy these ledgers, which follow each other from `next_offset` on, and commit them in order.

        They are uploaded at the same time, as far as the offloader's limits go, and committed as
        soon as all before them are. Raises the first error in order of offsets; what came before it
        is committed then, and the attempts behind it are dropped.
        """
        if not handles:
            return
        attempts = await self.prepare([handle.ledger_id for handle in handles])
        tasks = [
            asyncio.ensure_future(self._upload(handle, attempt, extra_metadata or {}))
            for handle, attempt in zip(handles, attempts, strict=True)
        ]
        committed = 0
        try:
            async with aclosing(self._debounced(tasks)) as runs:
                async for receipts in runs:
                    await self.append(receipts)
                    committed += len(receipts)
            for task in tasks[committed : committed + 1]:
                task.result()  # raises what ended the run
        except Fenced:  # the stream is another's: nothing may be done to it any more
            raise
        except OffloadError:
            await _cancelled(tasks)
            with suppress(OffloadError):  # the next claim settles what stays behind
                await self.abort(attempts[committed:])
            raise
        finally:
            await _cancelled(tasks)

    async def _debounced(
        self, tasks: Sequence[asyncio.Future[Receipt]]
    ) -> AsyncGenerator[list[Receipt], None]:
        """The receipts in order, up to the first failure, in runs that are worth a commit each."""
        ready: list[Receipt] = []
        entries = 0
        last_seconds = self.env.monotonic()
        for task in tasks:
            while not task.done():
                left = max(last_seconds + COMMIT_INTERVAL_SECONDS - self.env.monotonic(), 0.0)
                await asyncio.wait([task], timeout=left if ready else None)
                if ready and not task.done():
                    yield ready
                    ready, entries, last_seconds = [], 0, self.env.monotonic()
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
        if not Resolve(writer=self.writer, adopted=()).settled(self.manifest):
            return
        adopted = []
        for leftover in await self.offloader.leftovers(self.manifest):
            if not await agree(leftover):
                break
            adopted.append(leftover.entry)
        await self._commit(Resolve(writer=self.writer, adopted=adopted))

    async def _commit(self, change: Change) -> None:
        self.manifest = await self.offloader.commit_manifest(
            self.manifest.stream, change, base=self.manifest, committer=self.writer
        )


async def _cancelled(tasks: Sequence[asyncio.Future[Receipt]]) -> None:
    """Cancel what still runs, and wait until nothing does. Errors behind the first one are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
