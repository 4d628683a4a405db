"""The encryption of a stream, as people are shown it. Nothing here needs a key service.

Invariant: a lost key is shown, and is no error: `offload verify` reports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from offload.contracts.catalogue import Catalogue, StreamView
from offload.ground.errors import Absent
from offload.ground.tasks import run_each
from offload.model.entry import Entry
from offload.model.manifest import CommittedStream
from offload.native.fragment_reader import load_tail
from offload.native.key_objects import listed_keys, search_key
from offload.native.layout_check import native_or_none

__all__ = ["ShownKey", "is_encrypted", "keys_of", "keys_of_fragments"]

_TAILS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownKey:
    """A key of a stream, as its newest sound object describes it."""

    uid: UUID
    generation: int
    copies: int
    label: str | None
    """None if no object of the key is sound."""
    own: bool | None

    def as_json(self) -> dict[str, object]:
        """Return a row of `offload inspect --json`."""
        return {
            "key": str(self.uid),
            "label": self.label,
            "own": self.own,
            "generation": self.generation,
            "copies": self.copies,
        }


async def is_encrypted(view: StreamView) -> bool:
    """Return True if new fragments of the stream are encrypted: its newest one is."""
    entries = view.committed.entries
    if len(entries) and entries["kind"][-1] == 0:
        return bool(entries["encrypted"][-1])
    # The entry of a group says nothing of encryption.
    last = await view.last_with_messages()
    return last is not None and bool(last.encrypted)


async def keys_of(catalogue: Catalogue, committed: CommittedStream) -> list[ShownKey]:
    """Return the keys of the stream's present life. One list, and mostly one get for each key."""
    if (objects := native_or_none(catalogue)) is None:
        return []
    store, stream, life = objects.store, committed.stream, committed.incarnation
    shown = []
    for uid, copies in sorted((await listed_keys(store, stream, life)).items()):
        found = (await search_key(store, stream, life, uid)).found
        generation = max(copies) if found is None else found.generation
        shown.append(
            ShownKey(
                uid=uid,
                generation=generation,
                copies=copies.get(generation, 0),
                label=None if found is None else found.label,
                own=None if found is None else found.own,
            )
        )
    return shown


async def keys_of_fragments(
    catalogue: Catalogue, committed: CommittedStream, entries: Iterable[Entry]
) -> dict[Entry, UUID]:
    """Return the key of each encrypted fragment. One request for each.

    A fragment that is gone is left out.
    """
    objects, found = native_or_none(catalogue), dict[Entry, UUID]()

    async def read(entry: Entry) -> None:
        assert objects is not None
        with suppress(Absent):  # trimmed or replaced, and swept
            found[entry] = (await load_tail(objects.store, committed, entry)).wrapped_key[0]

    if objects is not None:
        await run_each(read, [entry for entry in entries if entry.encrypted], at_once=_TAILS_AT_ONCE)
    return found
