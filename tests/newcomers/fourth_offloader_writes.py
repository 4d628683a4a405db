"""Fourth set, offloaders: what an upload checks and refuses."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from newcomers.fourth_sound import Relay, Rows
from newcomers.ledgers import (
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    stumbling,
    uploaded,
)
from newcomers.registry import Open, bug
from offload import MemoryHandle
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Conflict, Corrupt, Denied, Misuse, OffloadError, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest
from offload.write.job import Job
from offload.write.writer import StreamWriter

COPIED: Final[ContextVar[bool]] = ContextVar("copied", default=False)


class Damaged(MemoryHandle):
    """A ledger whose reads differ from its table in the last byte."""

    async def read(self, rows: ChunkTable) -> bytes:
        raw = bytes(await super().read(rows))
        return raw[:-1] + bytes([raw[-1] ^ 1])


# Checks


async def _copies_are_checked(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", *(ledger(at, ledger_id=1) for at in (0, 3, 6)))
    old = (await entries_of(tier, writer.manifest))[:2]
    job = await Job.begin(tier, "s")
    manifest, [attempt] = await job.prepare_copies([old])
    handle = Damaged(chunks_of(0) + chunks_of(3), ledger_id=1)
    await raises(Corrupt, tier.offload(handle, attempt, manifest=manifest, extra_metadata={}))


@bug(_copies_are_checked)
class CopiesAreTrusted(Rows):
    """The chunks of a copy are not checked, because they were when they were first stored.

    Breaks "A damaged chunk is never stored". Costs the data of a compaction: what a disk or a memory damaged
    since then takes the place of the sound fragments.
    """

    async def check_copy(self, handle: ReadHandle, manifest: Manifest) -> None:
        await super().check_copy(handle, manifest)
        COPIED.set(True)

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        COPIED.set(False)
        return await super().offload(handle, attempt, **options)

    def check(self, raw: bytes, rows: ChunkTable, where: str) -> npt.NDArray[np.uint32]:
        if not COPIED.get():
            return super().check(raw, rows, where)
        starts = (rows["position"] - rows["position"][0]).tolist()
        sizes = rows["size_bytes"].tolist()
        sums = [zlib.crc32(raw[at : at + size]) for at, size in zip(starts, sizes, strict=True)]
        return np.array(sums, np.uint32)


async def _damage_names_its_file(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    handle = Damaged(chunks_of(0))
    error = await raises(Corrupt, uploaded(tier, writer, handle))
    assert isinstance(error, Corrupt)
    assert error.where == handle.where, error.where


@bug(_damage_names_its_file)
class DamageIsNamedByTheTier(Rows):
    """Damage is reported at the place to which the chunk was to go.

    Breaks "`Corrupt` names the chunk and its file". Costs the person who must repair it: the file with the
    damage is somewhere on the broker.
    """

    def check(self, raw: bytes, rows: ChunkTable, where: str) -> npt.NDArray[np.uint32]:
        return super().check(raw, rows, self.url)


async def _denied_is_denied(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    await raises(Denied, uploaded(tier, writer, stumbling(Denied("the disk of the broker"))))


@bug(_denied_is_denied)
class SourceErrorsAreTryAgain(Rows):
    """Whatever the source raises while it is read becomes "try again".

    Breaks "An error that `handle` raises is passed on". Costs a person the reason: the command repeats for
    ever what needs a permission.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        class Soft(Relay):
            async def read(self, rows: ChunkTable) -> Any:
                try:
                    return await self.handle.read(rows)
                except Corrupt:
                    raise
                except OffloadError as exc:
                    raise TryAgain(f"{self.where} cannot be read: {exc}") from exc

        return await super().offload(Soft(handle), attempt, **options)


class Closable(MemoryHandle):
    """A ledger that knows whether it was closed."""

    closed = False

    async def aclose(self) -> None:
        self.closed = True


async def _handle_stays_open(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    handle = Closable(chunks_of(0))
    await uploaded(tier, writer, handle)
    assert not handle.closed


@bug(_handle_stays_open)
class ClosesItsSource(Rows):
    """The handle is closed when all of it is copied.

    Breaks "The caller closes `handle`". Costs a caller that goes on with it, as after `TryAgain`, or that
    copies it to a second tier.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        async with handle:
            return await super().offload(handle, attempt, **options)


async def _any_text(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0), note="", host="a\nb")
    assert receipt.next_offset == 3


@bug(_any_text)
class EmptyNotesAreRefused(Rows):
    """A value for people that is empty is refused, as by a column that takes the empty string for NULL.

    Breaks "`extra_metadata` is for people who inspect the store: any text". Costs a copy that fails because a
    host has no rack.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if not all(extra_metadata.values()):
            raise Misuse("a value of the metadata is empty")
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


async def _announced_with_its_ledger(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    [attempt] = await writer.prepare([7])
    other = replace(attempt, ledger_id=8)
    handle = ledger(0, ledger_id=8)
    await raises(Conflict, tier.offload(handle, other, manifest=writer.manifest, extra_metadata={}))


@bug(_announced_with_its_ledger)
class AnnouncedByItsUuid(Rows):
    """An attempt runs if its UUID does, whatever ledger was announced with it.

    Breaks "`offload` refuses an attempt that does not run in its manifest, with `Conflict`". Costs the order
    of a stream: the next writer adopts fragments under a ledger that they are not of.
    """

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        ledgers = {each.attempt: each.ledger_id for each in manifest.running}
        if attempt.stream == manifest.stream and handle.ledger_id == attempt.ledger_id:
            attempt = replace(attempt, ledger_id=ledgers.get(attempt.uid, attempt.ledger_id))
            handle = Renamed(handle, attempt.ledger_id)
        return super().check_attempt(handle, attempt, manifest)


class Renamed(Relay):
    """A handle under another ledger."""

    def __init__(self, handle: ReadHandle, ledger_id: int) -> None:
        super().__init__(handle)
        self.number = ledger_id

    @property
    def ledger_id(self) -> int:
        return self.number
