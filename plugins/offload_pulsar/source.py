"""Pulsar's bucket as a source: `pulsar+s3://BUCKET`, and `pulsar+` before the URL of any other store.

A stream is a managed ledger, which is a topic partition, and a record is an entry, untouched. The objects of
a ledger say in their metadata to which managed ledger it belongs. If they do not, or the store keeps no
metadata, the ledger is a stream of its own: nothing says which ledgers belong together.

    objects of a ledger                          the ledger is
    data and index                               copied
    two attempts, each with data and index       copied, if all their entries are the same, else `Diverged`
    data without index                           left out: the attempt did not end, or was deleted in part
    index without data, and no other attempt     `Corrupt`: the copy of its stream ends before it

Invariants: nothing in the bucket is changed; the damage of one managed ledger does not hinder the others.

Not promised: that a lost ledger is missed if it was never listed before, because Pulsar's ids have gaps.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final, TypeAlias
from uuid import UUID

from offload.contracts.entries import EntryLedger
from offload.contracts.opening import OpeningContext
from offload.contracts.source import Source, SourceStream
from offload.contracts.store import ObjectStore
from offload.entries.ledger import EntryLedgerStream
from offload.formats.keys import is_name
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Misuse, NotOffloaded, TryAgain
from offload.ground.tasks import in_order, one_by_one
from offload.store.read_only import ReadOnlyStore
from offload_pulsar.bucket import FoundAttempt, PulsarBucket
from offload_pulsar.bucket_ledger import BucketLedger
from offload_pulsar.ledger import PulsarLedger
from offload_pulsar.names import PulsarKey

__all__ = ["PulsarSource"]


Attempts: TypeAlias = dict[str, dict[int, list[FoundAttempt]]]
"""Attempts by stream and ledger id."""

PREFIX: Final = "pulsar+"

SCAN_SECONDS: Final = 10.0
"""For so long, all streams of a bucket share one listing of it."""

OPENED_AT_ONCE: Final = 16
NAMELESS: Final = re.compile(r"ledger-[0-9]+")
"""The streams of ledgers without a managed ledger. A managed ledger of such a name is left out."""

VERIFY: Final = "`offload pulsar verify` names all damage"
NAMES_SHOWN_MAX: Final = 5
"""How many keys a note names."""

_log: Final = logging.getLogger(__name__)


def open_url(url: str, *, options: Mapping[str, Any], context: OpeningContext) -> PulsarSource:
    """Return the source at a URL. Sends no request. Raises `Misuse` for a wrong option or URL."""
    inner = url.removeprefix(PREFIX)
    store = context.open_store(inner, context.store_options)
    return PulsarSource(
        store, url, first_offset=_first_offset(options.get("first-offset", 0)), env=context.env
    )


def _first_offset(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 2**63:
        raise Misuse(f"option 'first-offset' takes an offset, 0 or more, not {value!r}")
    return number


class PulsarSource(Source):
    """The managed ledgers of a bucket. `store` is only read, and belongs to the caller.

    `first_offset` is that of the oldest ledger of a stream of which nothing was copied yet. From then on
    offsets are counted from what the tier has, so they stay when Pulsar deletes its oldest ledgers.
    """

    def __init__(
        self, store: ObjectStore, url: str, *, first_offset: int = 0, env: Env | None = None
    ) -> None:
        self._url, self._first_offset, self._env = url, first_offset, env or Env()
        self._store = ReadOnlyStore(store, lambda: Misuse(f"{url} is a source, and is never changed"))
        self._bucket = PulsarBucket(self._store)
        self._opened: dict[str, Sequence[PulsarLedger]] = {}
        """The ledgers of each data object. Objects never change, so an index is read once."""

        self._opening: dict[str, asyncio.Lock] = {}
        self._found: Attempts = {}
        self._notes: Sequence[str] = ()
        self._said: dict[str, None] = {}
        """Notes on ledgers that were read since the last call of `streams`, in order."""

        self._scanned_at = -inf
        self._scanning = asyncio.Lock()

    @property
    def url(self) -> str:
        """The URL that was given."""
        return self._url

    @property
    def notes(self) -> Sequence[str]:
        """What the last look at the bucket left out, and why, and what was found in ledgers since then."""
        return (*self._notes, *self._said)

    async def streams(self) -> Sequence[SourceStream]:
        """Return the managed ledgers. Lists the whole bucket, and asks for the name of each attempt."""
        self.forget()
        self._said.clear()
        found = await self._scan()
        if not found and self._notes:
            raise await self._bucket.nothing_there(because="; ".join(self._notes))
        if not found:
            raise await self._bucket.nothing_there()
        return [
            EntryLedgerStream(
                name,
                partial(self.ledgers_of, name),
                first_offset=self._first_offset,
                on_gone=partial(self._note_gone, name),
            )
            for name in sorted(found)
        ]

    async def ledgers_of(self, name: str) -> Sequence[EntryLedger | Corrupt]:
        """Return the ledgers of a stream, the oldest first, or the damage in the place of one.

        Raises `TryAgain` if an object was deleted meanwhile.
        """
        attempts = (await self._scan()).get(name, {})
        opening = in_order(
            partial(self._ledger, name), one_by_one(sorted(attempts.items())), at_once=OPENED_AT_ONCE
        )
        async with aclosing(opening) as opened:
            return [ledger async for _, ledger in opened]

    async def opened(self, ledger_id: int, uid: UUID) -> PulsarLedger:
        """Open one attempt on a ledger, without a listing. Raises `NotOffloaded` if it is gone."""
        for key in (PulsarKey(uid, ledger_id), PulsarKey(uid)):
            try:
                opened = await self._open(key)
            except NotOffloaded:
                continue
            for each in opened:
                if each.ledger_id == ledger_id:
                    return each
        raise NotOffloaded(f"ledger {ledger_id} has no index of attempt {uid} in {self._url}")

    def forget(self) -> None:
        """Look at the bucket again when it is asked next: something that was listed is gone."""
        self._scanned_at = -inf

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()

    async def _scan(self) -> Attempts:
        """Return the attempts on all ledgers, by stream and ledger id. All callers share a look at a time."""
        async with self._scanning:
            now = self._env.monotonic()
            if now - self._scanned_at >= SCAN_SECONDS:
                sorting = _Sorting()
                async with aclosing(self._bucket.scan()) as rows:
                    async for row in rows:
                        await self._sort(row, sorting)
                self._found, self._notes, self._scanned_at = sorting.attempts, sorting.notes(), now
                names = {
                    each.name for found in self._found.values() for those in found.values() for each in those
                }
                self._opened = {name: opened for name, opened in self._opened.items() if name in names}
                self._opening = {
                    name: lock for name, lock in self._opening.items() if name in names or lock.locked()
                }
            return self._found

    async def _sort(self, row: FoundAttempt, sorting: _Sorting) -> None:
        ids: Sequence[int] = ()
        if row.is_gone:  # without its name it would look like a stream of its own
            return
        if row.key is not None and row.key.ledger_id is not None:
            ids = (row.key.ledger_id,)
        elif row.key is not None and row.index_size_bytes is not None:
            try:
                ids = [each.ledger_id for each in await self._open(row.key)]
            except (Corrupt, NotOffloaded) as error:
                sorting.leave_out(str(error), row.name)
                return
        sorting.add(row, ids)

    async def _open(self, key: PulsarKey) -> Sequence[PulsarLedger]:
        """Return all ledgers of an attempt. Raises `NotOffloaded` if it is gone."""
        name = str(key)
        async with self._opening.setdefault(name, asyncio.Lock()):  # callers at the same time share a read
            if name not in self._opened:
                self._opened[name] = await self._bucket.ledgers(key)
            return self._opened[name]

    async def _ledger(self, stream: str, item: tuple[int, Sequence[FoundAttempt]]) -> EntryLedger | Corrupt:
        ledger_id, attempts = item
        whole = [each.key for each in attempts if each.is_whole and each.key is not None]
        if not whole:
            self.note_damage()
            return Corrupt("data object", _data_key(attempts[0]), expected="present", found="absent")
        try:
            opened = [each for key in whole for each in await self._open(key)]
        except Corrupt as damage:
            self.note_damage()
            return damage
        except NotOffloaded as gone:
            raise self._changed(ledger_id) from gone
        same = [each for each in opened if each.ledger_id == ledger_id]
        if not same:  # an object of V2 was replaced since it was listed
            raise self._changed(ledger_id)
        self._note_sizes(attempts, same)
        for each in same:
            if each.first_entry:  # V2 may have a ledger in several objects
                what = f"first entry of ledger {ledger_id}"
                return Corrupt(
                    what, each.where, expected="0: no other object has those before", found=each.first_entry
                )
        return BucketLedger(same, stream, on_damage=self.note_damage)

    def _changed(self, ledger_id: int) -> TryAgain:
        self.forget()
        return TryAgain(f"{self._url}: ledger {ledger_id} was deleted while it was opened")

    def _note_sizes(self, attempts: Sequence[FoundAttempt], opened: Sequence[PulsarLedger]) -> None:
        """Note each data object that has another size than its index states: what it has is still read."""
        sizes = {each.name: each.data_size_bytes for each in attempts}
        for each in opened:
            size, stated = sizes.get(each.where), each.data_size_bytes
            note = f"damaged: {each.where} has {size} bytes, and its index states {stated}; {VERIFY}"
            if size != stated:
                self._said[note] = None

    def note_damage(self) -> None:
        """Note which command names all damage, unless a note says it already."""
        if not any(note.endswith(VERIFY) for note in self._said):
            self._said[f"a ledger is damaged; {VERIFY}"] = None

    def _note_gone(self, stream: str, ledger_id: int) -> None:
        note = (
            f"stream {stream!r}: ledger {ledger_id}, the newest on the tier, is no longer in the bucket. If "
            "a run was interrupted within it, its last entries are lost. Sync more often than Pulsar deletes"
        )
        if note not in self._said:
            _log.warning("%s", note)  # `offload run` prints the notes when it begins, and not later
        self._said[note] = None


@dataclass(slots=True)
class _Sorting:
    """What one listing of a bucket has."""

    attempts: Attempts = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """The first keys of what is no part of a stream, by the reason. A bucket may have any number of them."""

    counts: Counter[str] = field(default_factory=Counter)
    """The number of keys, by the reason."""

    names: set[str] = field(default_factory=set)
    """The names of all attempts."""

    nameless: int = 0

    def add(self, row: FoundAttempt, ids: Sequence[int]) -> None:
        """Put an attempt to the ledgers that it is of."""
        if row.key is None or row.index_size_bytes is None:
            self.leave_out(row.finding, row.name)
            return
        for ledger_id in ids:
            name = row.managed_ledger or f"ledger-{ledger_id}"
            is_taken = row.managed_ledger is not None and NAMELESS.fullmatch(name) is not None
            if is_taken or not is_name(name):
                self.leave_out("of a managed ledger whose name no stream can have", row.name)
                continue
            self.names.add(row.name)
            self.nameless += row.managed_ledger is None
            self.attempts.setdefault(name, {}).setdefault(ledger_id, []).append(row)

    def leave_out(self, reason: str, key: str) -> None:
        """Note what was left out."""
        self.counts[reason] += 1
        if self.counts[reason] <= NAMES_SHOWN_MAX:
            self.left_out.setdefault(reason, []).append(key)

    def notes(self) -> Sequence[str]:
        """Return a line for each reason, with the first keys."""
        notes = []
        for reason, keys in sorted(self.left_out.items()):
            shown, others = ", ".join(map(repr, keys)), self.counts[reason] - len(keys)
            more = f" and {others} more" if others else ""
            notes.append(f"left out, {reason}: {shown}{more}")
        if self.nameless:
            has = "1 ledger has" if self.nameless == 1 else f"{self.nameless} ledgers have"
            notes.append(f"{has} no name of a managed ledger: each id is a stream of its own")
        return notes


def _data_key(found: FoundAttempt) -> str:
    assert found.key is not None, "strangers are left out"
    return str(found.key)
