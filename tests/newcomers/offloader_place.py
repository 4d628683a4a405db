"""Mistakes with the place: tiers, names, counts."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from newcomers.ledgers import (
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
)
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload import MemoryHandle
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk_check import check_source
from offload.ground.errors import Corrupt, NotOffloaded
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter


async def _no_tier(open_: Open) -> None:
    await raises(NotOffloaded, open_().streams())
    await raises(NotOffloaded, open_().open())
    await raises(NotOffloaded, open_().load_manifest("s"))
    await raises(NotOffloaded, open_().open())


@bug(_no_tier)
class LookingMakesATier(Table):
    """`open` creates the tables if they are absent, regardless of `create`.

    Breaks "`open`: with `create`, make it one": a mistyped URL is an empty tier, and nobody notices.
    """

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=True)


@bug(_no_tier)
class NoTierHasNoStreams(Table):
    """`streams` of a place that is no tier is an empty list.

    Breaks "`NotOffloaded`. So does this method where the place is no tier": a mistyped URL lists as an empty
    tier.
    """

    async def streams(self) -> list[str]:
        return sorted(self.db.roots)


async def _names_apart(open_: Open, *names: str) -> None:
    tier = open_()
    for number, name in enumerate(names):
        await copied(tier, name, ledger(number * 10), first=number * 10)
    for number, name in enumerate(names):
        assert (await open_().load_manifest(name)).first_offset == number * 10
    assert await tier.streams() == sorted(names)


@bug(lambda open_: _names_apart(open_, "orders", "Orders"))
class NamesHaveNoCase(Table):
    """The column of streams compares without case, as MySQL's does by default.

    Breaks "the streams, in order of names": `Orders` and `orders` are one stream.
    """

    def name(self, stream: str) -> str:
        return next(
            (name for name in self.db.roots if name.casefold() == stream.casefold()), super().name(stream)
        )


@bug(lambda open_: _names_apart(open_, "x" * 300 + "1", "x" * 300 + "2"))
class NamesAreCutAt255(Table):
    """The column of streams has 255 characters, and longer names are cut.

    Breaks "Attempts never share an object": two streams with a long common beginning are one.
    """

    def name(self, stream: str) -> str:
        return next((name for name in self.db.roots if name[:255] == stream[:255]), super().name(stream))


@bug(lambda open_: _names_apart(open_, "caf\u00e9", "cafe\u0301"))
class NamesAreNormalisedHere(Table):
    """Stream names are normalised (NFC) on their way into the database.

    Breaks "the streams, in order of names": two names that look alike are one stream.
    """

    def name(self, stream: str) -> str:
        def normal(text: str) -> str:
            return unicodedata.normalize("NFC", text)

        return next((name for name in self.db.roots if normal(name) == normal(stream)), super().name(stream))


async def _two_offloads(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    await writer.offload([ledger(0, 8, size=40_000, ledger_id=1), ledger(8, 8, size=40_000, ledger_id=2)])
    entries = await entries_of(tier, writer.manifest)
    assert [entry.ledger_id for entry in entries] == [1 if entry.first_offset < 8 else 2 for entry in entries]


@bug(_two_offloads)
class OffloadsShareTheirAttempt(Table):
    """The running attempt is an attribute of the offloader, and two concurrent ledgers overwrite it.

    Breaks "its methods may be called at the same time": fragments of one ledger are stored as another's.
    """

    attempt: Attempt | None = None

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        self.check_attempt(handle, attempt, manifest)
        self.attempt = attempt
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)

    async def upload(self, handle: ReadHandle, rows: ChunkTable, attempt: Attempt, *rest: Any) -> Entry:
        assert self.attempt is not None
        return await super().upload(handle, rows, self.attempt, *rest)


async def _where_is_named(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    chunks = chunks_of(0)
    bad = b"".join(chunks[:2]) + chunks[2][:-1] + b"?"

    class Bad(MemoryHandle):
        async def read(self, rows: ChunkTable) -> bytes:
            return bad

    [attempt] = await writer.prepare([0])
    handle = Bad(chunks, where="segment-7")
    found = await raises(Corrupt, tier.offload(handle, attempt, manifest=writer.manifest, extra_metadata={}))
    assert isinstance(found, Corrupt)
    assert found.where == "segment-7"


@bug(_where_is_named)
class DamageHasNoPlace(Table):
    """Damage is raised with an empty `where`, because the check receives only bytes.

    Breaks "`Corrupt` names it": an operator cannot find the damaged file.
    """

    def check(self, raw: bytes, rows: ChunkTable, where: str) -> npt.NDArray[np.uint32]:
        return check_source(raw, rows, where="")
