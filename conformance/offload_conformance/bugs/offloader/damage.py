"""Bugs of damage: stored bytes that are not checked, and errors that do not name their place."""

from __future__ import annotations

from typing import Any, Final
from unittest.mock import patch

import numpy as np

from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Corrupt
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.native.fragment_reader import FragmentHandle
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Around, ByVerbs
from offload_conformance.bugs.registry import bug


@bug("contract/damage_is_an_error")
class ChecksNothingItReads(ObjectStoreOffloader):
    """Returns stored bytes without checking their checksums.

    The store has its own checksums, but they do not cover changes by a proxy or a person.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Unchecked.around(await super().read_offloaded(*args, **kwargs))


class _Unchecked(Around):
    async def read(self, rows: ChunkTable) -> bytes:
        with patch.object(FragmentHandle, "_check", lambda _, raw, **__: raw):
            return await super().read(rows)


@bug("contract/streams_do_not_end_at_damage")
class EndsAtDamage(ByVerbs):
    """Ends a ledger at the first damaged byte.

    A broker recovers its own log in this way, because a crash leaves a torn end; here it loses data.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _UpToDamage.around(await super().read_offloaded(*args, **kwargs))


class _UpToDamage(Around):
    async def table(self) -> ChunkTable:
        table = await super().table()
        for row in range(len(table)):
            try:
                await self._whole.read(table[row : row + 1])
            except Corrupt:
                return table[:row]
        return table

    async def read(self, rows: ChunkTable) -> bytes:
        try:
            return await super().read(rows)
        except Corrupt:
            sound = (await self.table())["offset"]
            rows = rows[np.isin(rows["offset"], sound)]
            return await super().read(rows) if len(rows) else b""


class _Nameless(Around):
    async def read(self, rows: ChunkTable) -> bytes:
        try:
            return await super().read(rows)
        except Corrupt as damage:
            raise damage.within("") from damage


@bug("contract/damage_is_an_error")
class NamesNoPlace(ObjectStoreOffloader):
    """Reports damage without its place.

    An operator with ten thousand objects learns only that one of them is damaged.
    """

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        return _Nameless.around(await super().read_offloaded(*args, **kwargs))


@bug("contract/fragments_are_those_of_their_entries")
class ReadsWhateverIsThere(ObjectStoreOffloader):
    """Returns another whole fragment in the place of the one that was committed.

    A fragment is checked against its own checksums, and not against the entry that names it.
    """

    stored: Final[list[ReadHandle]] = []

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        self.stored.append(handle)
        return await super().offload(handle, attempt, **options)

    async def read_offloaded(self, *args: Any, **options: Any) -> ReadHandle:
        try:
            return await super().read_offloaded(*args, **options)
        except Corrupt:
            return self.stored[-1]
