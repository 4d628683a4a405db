"""A test yard for sweeps: one stream in memory, its writer, and sweeps that stall before any request.

    yard = Yard(factor=2)
    attempt = yard.prepare()
    key = yard.upload(attempt, records=3)
    yard.append(attempt)
    sweep = Stalled(yard.sweeper().sweep())
    sweep.step()                       # one request of its store
    report = sweep.finish()

Fragments are empty, because a sweep never reads them. Nothing needs an event loop: a store in memory yields
once for each request and waits for nothing else, so the tests drive coroutines by hand.

`Objects` checks each change at the moment it happens, with its own decoder of roots and groups. It raises if
a named object is deleted, or if a root names an absent object.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from offload.commit.guest import Abort, Delete, Trim, TrimmedTotals, entries_before
from offload.commit.log import RootLog
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.change import Change
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.group import Group
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.formats.root import decode_root
from offload.ground.env import Env
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.manifest import Manifest, StreamState
from offload.store.memory import MemoryStore
from offload.upkeep.sweep.tier import Sweeper

STREAM: Final = "orders"
KEYS: Final = StreamKeys(STREAM)
STRANGERS: Final = (
    "README",
    f"{KEYS.data}notes.txt",
    f"{KEYS.data}{'9' * 20}.{UUID(int=1)}.fragment",
    f"{KEYS.metadata}root.1.manifest",
    "elsewhere/data/file",
)
SUFFIXES: Final = ("", "group", "kgroup", "mgroup")
T = TypeVar("T")


class Objects(dict[str, bytes]):
    """A bucket that protects named objects."""

    def __setitem__(self, key: str, data: bytes) -> None:
        super().__setitem__(key, data)
        if key.startswith(KEYS.roots):
            missing = self.named() - self.keys()
            assert not missing, f"root {self.newest()} names what is not there: {missing}"

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove an object, or raise if it is named."""
        assert key not in STRANGERS, f"{key} is not ours"
        assert not key.endswith("anchor"), f"{key} was deleted"
        assert key != KEYS.root(self.newest()), "the newest root was deleted"
        assert key not in self.named(), f"{key} is named and was deleted"
        return super().pop(key, default)

    def newest(self) -> int:
        """Return the number of the newest root; 0 if there is none."""
        found = (re.fullmatch(r"orders/metadata/root\.([0-9]{20})\.manifest", key) for key in self)
        return max((int(match[1]) for match in found if match), default=0)

    def root(self) -> Manifest | None:
        """Return the newest root."""
        key = KEYS.root(self.newest())
        return decode_root(self[key], where=key) if key in self else None

    def named(self, *, dead: bool = False) -> set[str]:
        """Return the keys of all live fragments and of the groups above them; with `dead`, of dead
        ones too.
        """
        root = self.root()
        return set() if root is None else self._below(root.entries, 0 if dead else root.first_offset)

    def _below(self, entries: Entries, since: int) -> set[str]:
        named = set()
        for entry in entries:
            first, kind, uid = (
                int(entry["first_offset"]),
                int(entry["kind"]),
                UUID(bytes=bytes(entry["attempt"])),
            )
            if first + int(entry["records"]) <= since:
                continue
            if kind == 0:
                named.add(f"orders/data/{first:020d}.{uid}.fragment")
                continue
            version = int(entry["root_version"])
            key = f"orders/groups/{first:020d}.{version:020d}.{uid}.{SUFFIXES[kind]}"
            named.add(key)
            if key in self:
                named |= self._below(Group.decode(self[key], stream=STREAM, where=key).entries, since)
        return named


class Crash(BaseException):
    """The error that ends a process. No program catches it."""


class Stalled(Generic[T]):
    """A coroutine that stalls between two of its requests."""

    def __init__(self, job: Coroutine[Any, Any, T]) -> None:
        self.job = job
        self.over = False
        self.results: list[T] = []
        """A list with the result, as soon as the job has returned."""

    def step(self) -> bool:
        """Let the next request happen. Return False if the job has ended."""
        if not self.over:
            try:
                self.job.send(None)
            except StopIteration as end:
                self.over = True
                self.results.append(end.value)
        return not self.over

    def finish(self) -> T:
        """Continue to the end, and return the result."""
        while self.step():
            pass
        return self.results[0]

    def crash(self) -> None:
        """End the coroutine at this point. It sends no more requests."""
        if not self.over:
            self.over = True
            with suppress(Crash, StopIteration):
                self.job.throw(Crash)


def run(job: Coroutine[Any, Any, T]) -> T:
    """Run a job to its end."""
    return Stalled(job).finish()


class Yard:
    """A yard, as the module's docstring describes it."""

    def __init__(self, *, factor: int = 3, seed: int = 0) -> None:
        self.random = Random(seed)
        self.seconds = 0.0
        self.env = Env(
            uuid=lambda: UUID(int=self.random.getrandbits(128), version=4),
            monotonic=lambda: self.seconds,
            now_ms=lambda: int(1_700_000_000_000 + self.seconds * 1000),
            sleep=self._sleep,
            random=self.random.random,
        )
        self.objects = Objects()
        self.store = MemoryStore(objects=self.objects, now_ms=self.env.now_ms)
        self.factor = factor
        self.objects[TIER_ANCHOR] = TierAnchor(branching_factor=factor).encode()
        self.objects[KEYS.anchor] = StreamAnchor(stream=STREAM).encode()
        for key in STRANGERS:
            self.objects[key] = b"not ours"
        self.writer = self.env.uuid()
        self.uploaded: dict[UUID, list[Entry]] = {}
        self.ever: list[str] = []
        self.manifest: Manifest | None = None
        self.claim()

    @property
    def log(self) -> RootLog:
        """Return the roots as a new process sees them."""
        return RootLog(store=self.store, stream=STREAM, env=self.env, factor=self.factor)

    @property
    def base(self) -> Manifest:
        """Return the manifest that the writer holds."""
        assert self.manifest is not None
        return self.manifest

    def committing(self, change: Change) -> Coroutine[Any, Any, Manifest]:
        """Return a commit that a test can stall."""
        return self.log.commit(change, base=self.manifest, committer=self.writer)

    def commit(self, change: Change) -> Manifest:
        """Commit a change."""
        self.manifest = run(self.committing(change))
        return self.manifest

    def claim(self) -> None:
        """Claim the stream. A deleted stream begins again."""
        self.writer = self.env.uuid()
        self.commit(Claim(stream=STREAM, writer=self.writer, first_offset=0))

    def prepare(self) -> UUID:
        """Announce an attempt."""
        attempt = self.env.uuid()
        self.commit(Prepare(writer=self.writer, attempts=[(attempt, self.random.randrange(9))]))
        self.uploaded[attempt] = []
        return attempt

    def upload(self, attempt: UUID, *, records: int = 1) -> str:
        """Put the attempt's next fragment, and return its key."""
        before = self.uploaded[attempt]
        first = before[-1].next_offset if before else self.base.next_offset
        entry = Entry(
            first_offset=first,
            records=records,
            messages=records,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            data_size_bytes=10,
            stored_size_bytes=100,
            ledger_id=0,
            attempt=attempt,
            checksum=0,
        )
        before.append(entry)
        key = KEYS.fragment(first, attempt)
        self.objects[key] = bytes(100)
        self.ever.append(key)
        return key

    def appending(self, attempt: UUID) -> Append:
        """Return the change that names the uploads of the attempt, and ends it."""
        return Append(writer=self.writer, entries=self.uploaded.pop(attempt), finished=frozenset({attempt}))

    def fits(self, attempt: UUID) -> bool:
        """Return True if the uploads of the attempt can be named now."""
        entries = self.uploaded[attempt]
        return bool(entries) and entries[0].first_offset == self.base.next_offset

    def append(self, attempt: UUID) -> None:
        """Commit the uploads of the attempt."""
        self.commit(self.appending(attempt))

    def abort(self, attempt: UUID) -> None:
        """Drop an attempt."""
        self.uploaded.pop(attempt, None)
        self.commit(Abort(attempts=frozenset({attempt})))

    def fragments(self, count: int, *, records: int = 1) -> list[str]:
        """Append so many fragments, each in its own commit, and return their keys."""
        keys = []
        for _ in range(count):
            attempt = self.prepare()
            keys.append(self.upload(attempt, records=records))
            self.append(attempt)
        return keys

    def boundaries(self) -> list[int]:
        """Return the offsets to which the stream can be trimmed."""
        return [entry.next_offset for entry in self._live()]

    def trim(self, first_offset: int) -> None:
        """Trim the fragments that end at or below this offset."""
        live = self._live()
        gone = [entry for entry in live if entry.next_offset <= first_offset]
        begins = [True, *(one.ledger_id != two.ledger_id for one, two in pairwise(live))]
        stays = len(gone) < len(live) and live[len(gone)].ledger_id == gone[-1].ledger_id
        dropped = TrimmedTotals(
            messages=sum(entry.messages for entry in gone),
            data_size_bytes=10 * len(gone),
            stored_size_bytes=100 * len(gone),
            fragments=len(gone),
            ledgers=sum(begins[: len(gone)]) - stays,
        )
        self.commit(
            Trim(
                incarnation=self.base.incarnation,
                since=self.base.first_offset,
                first_offset=first_offset,
                dropped=dropped,
                counted=entries_before(self.base, first_offset),
            )
        )

    def delete(self) -> None:
        """Delete the stream, which leaves a tombstone."""
        self.uploaded.clear()
        self.commit(Delete(incarnation=self.base.incarnation))

    @property
    def is_deleted(self) -> bool:
        """Return True if the newest root is a tombstone."""
        return self.base.state is StreamState.DELETED

    def sweeper(self, *, grace_seconds: float = 3600, page_keys_max: int = 5) -> Sweeper:
        """Return a sweeper that remembers earlier sweeps."""
        return Sweeper(self.store, grace_seconds=grace_seconds, env=self.env, page_keys_max=page_keys_max)

    def garbage(self) -> set[str]:
        """Return all objects that a sweep should have deleted."""
        root = self.objects.root()
        assert root is not None
        groups = {key for key in self.objects.named(dead=True) if not key.endswith(".fragment")}
        reasons = {*self.objects.named(), *groups, TIER_ANCHOR, KEYS.anchor, *STRANGERS}
        reasons |= {KEYS.root(root.version - back) for back in range(1 if self.is_deleted else 16)}
        left = set()
        for key in self.objects.keys() - reasons:
            fragment, group = KEYS.parse_fragment(key), KEYS.parse_group(key)
            if fragment is not None and root.runs(fragment[1]):
                continue
            if group is not None and group[1] > root.version:
                continue
            left.add(key)
        return left

    def _live(self) -> list[Entry]:
        async def walk() -> list[Entry]:
            return [entry async for run in self.log.tree(self.base).walk() for entry in entries_of_rows(run)]

        return run(walk())

    async def _sleep(self, seconds: float) -> None:
        self.seconds += seconds
