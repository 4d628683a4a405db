"""Shared parts of the tests against real servers: the servers, the seed, and an audit of a bucket.

The audit reads the bucket directly, past every proxy, between the rounds of a test. It shows new objects to
the judge of the commit protocol (`protocol_judge`), in the order in which they must have been created.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import pytest
from protocol_judge import DATA, GROUP, ROOT, Judge, Objects, read_root
from protocol_world import CHUNK_RECORDS, NOTHING_COMMITTED, TRACED, WitnessedOffloader, source
from servers import Place
from servers.selection import servers_at_risk

from offload import Plugins, StreamReader, StreamWriter, TierOptions
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.capabilities import Capabilities
from offload.contracts.change import Change
from offload.contracts.store import ObjectStore
from offload.formats.keys import StreamKeys
from offload.ground.env import Env
from offload.ground.errors import OffloadError
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.opening.by_url import open_store
from offload.store.limit import LimitedStore
from offload.store.retry import RetryingStore, RetryPolicy
from offload.store.wrap import StoreDecorator
from offload.upkeep.verify.tier import verify

SEED: Final = int(os.environ.get("OFFLOAD_SEED", random.SystemRandom().randrange(2**32)))
QUICK: Final = RetryPolicy(
    attempts_max=6, patience_seconds=10, pause_seconds_first=0.002, pause_seconds_max=0.05
)

FACTOR: Final = 3
"""The entries in a group: so few that the rounds of a stream make groups of all kinds."""

PROBE: Final = "tier.probe."
"""The prefix of objects that an interrupted probe of create-if-absent leaves behind."""


EVERY_SERVER: Final[list[Any]] = servers_at_risk()
"""The servers with create-if-absent, for `running_server`. The campaign adds fakes."""

EVERYWHERE: Final[list[Any]] = [*EVERY_SERVER, pytest.param(None, id="folder")]
"""The same servers, and a folder."""


def bare_store(url: str, options: dict[str, str]) -> ObjectStore:
    """Return the backend's store alone, without retries and limits."""
    return open_store(url, plugins=Plugins.find(), storage_options=options)


def guarded(store: ObjectStore, *, chance: random.Random | None = None) -> ObjectStore:
    """Return the store as `open_tier` guards it, but with short pauses."""
    return RetryingStore(LimitedStore(store), policy=QUICK, random=(chance or random.Random()).random)


class Sure(StoreDecorator):
    """A store whose create-if-absent is not probed. The probe has tests of its own."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, create_is_probed=False)


class Audit:
    """An audit that looks at one stream in a bucket repeatedly and has its history judged.

    `store` reads the bucket directly. No object may ever be deleted, unless `swept` is set. Then deletions
    are judged too. Look before a sweep can delete a root that the audit has not seen, or an object that
    such a root names.
    """

    def __init__(self, store: ObjectStore, stream: str, *, swept: bool = False) -> None:
        self.store, self.stream, self.swept = store, stream, swept
        self.judge = Judge(source)
        self.objects = Objects(self.judge)
        self._keys = StreamKeys(stream)
        self._announced: set[UUID] = set()
        self._unseen: dict[str, bytes] = {}

    @property
    def next_offset(self) -> int:
        """Return the next offset of the newest root that was seen."""
        root = self.judge.root
        return 0 if root is None else int(root.next_offset)

    @property
    def newest(self) -> int:
        """Return the number of the newest root that was seen."""
        return self.judge.newest

    async def look(self) -> None:
        """Read new objects while nobody writes. Raises `AssertionError` if an invariant is broken."""
        prefix = self._keys.anchor.removesuffix("stream.anchor")
        listed = {row.key async for row in self.store.list(prefix)}
        gone = self.objects.keys() - listed
        assert self.swept or not gone, f"objects were deleted, although nobody deletes: {sorted(gone)}"
        roots: dict[int, str] = {}
        for key in sorted(listed - self.objects.keys() - self._unseen.keys()):
            data = await self.store.get(key)
            match = ROOT.fullmatch(key)
            if match:
                roots[int(match[1])] = key
                self._unseen[key] = data
            elif DATA.fullmatch(key):
                self._unseen[key] = data
            else:
                self.objects[key] = data
        self._show_fragments()
        for _, key in sorted(roots.items()):
            data = self._unseen.pop(key)
            self._announced |= {UUID(bytes=uid) for uid in read_root(data).running}
            self.objects[key] = data
            self._show_fragments()
        for key in self._unseen:
            uid = UUID(self._uid_of(key))
            assert uid in self._announced, f"{key} was uploaded before its attempt was announced"
        for key in list(self._unseen):  # objects that landed when their attempt was over
            self.objects[key] = self._unseen.pop(key)
        for key in sorted(gone):
            runs = DATA.fullmatch(key) and UUID(self._uid_of(key)).bytes in self._running
            assert not runs, f"{key} was deleted while its attempt runs"
            self.objects.pop(key)
        self.check()

    async def look_again(self) -> None:
        """Read every object once more, and check that none has changed."""
        await self.look()
        for key in list(self.objects):
            self.objects[key] = await self.store.get(key)
        self.check()

    def hear(self, who: str, commits: Iterable[tuple[Change, Manifest | OffloadError]]) -> None:
        """Compare the results that a writer got for its commits with the history. Look first."""
        for change, result in commits:
            if not isinstance(result, OffloadError):
                self.judge.told(result, who)
                assert self._was_in(change), f"{who} got a result of a commit that never happened: {change}"
            elif isinstance(result, NOTHING_COMMITTED) and isinstance(change, TRACED):
                assert not self._was_in(change), f"{who} got a false error: {result}"
        self.check()

    def check(self) -> None:
        """Raise an `AssertionError` with the first invariant that was seen broken."""
        assert not self.judge.violations, f"stream {self.stream!r}: {self.judge.violations[0]}"

    @property
    def _running(self) -> frozenset[bytes]:
        """Return the attempts that run by the newest root."""
        return frozenset() if self.judge.root is None else self.judge.root.running

    def _show_fragments(self) -> None:
        for key in [key for key in self._unseen if DATA.fullmatch(key)]:
            if UUID(self._uid_of(key)).bytes in self._running:
                self.objects[key] = self._unseen.pop(key)

    def _uid_of(self, key: str) -> str:
        match = DATA.fullmatch(key)
        assert match is not None, key
        return match[2]

    def _was_in(self, change: Change) -> bool:
        """Return True if the history ever showed the change, or if the change leaves no trace."""
        history = self.judge.history.values()
        if isinstance(change, Claim):
            return any(root.writer == change.writer.bytes for root in history)
        if isinstance(change, Prepare):
            return any(uid.bytes in root.running for uid, _ in change.attempts for root in history)
        if isinstance(change, Append) and change.entries:
            first = change.entries[0]
            name = f"{first.first_offset:020d}.{first.attempt}.fragment"
            return self.judge.named_first_by(name) == change.writer.bytes
        return True


async def read_all(store: ObjectStore, stream: str) -> bytes:
    """Return the stored chunks of a stream from its first offset to its last, back to back."""
    reader = await StreamReader.open(ObjectStoreOffloader(store), stream)
    windows = reader.windows(reader.manifest.first_offset)
    try:
        return b"".join([window.data async for window in windows])
    finally:
        await windows.aclose()


async def assert_sound(store: ObjectStore, place: Place, *, streams: int | None = None) -> None:
    """Assert that `verify` finds no damage and explains every object, and another client sees the same ones.

    Groups of commits that lost are explained and not read. Groups below a trim's new first offset may be.
    """
    report = await verify(store)
    assert not report.damages, report.damages
    lost = {row.key for row in report.unreferenced if GROUP.fullmatch(row.key)}
    strange = [row for row in report.unreferenced if row.attempt is None and row.key not in lost]
    strange = [row for row in strange if not row.key.startswith(PROBE)]
    assert not strange, strange
    assert streams in (None, report.streams)
    listed = {row.key async for row in store.list("")}
    assert listed == place.keys()
    ours = {key for key in listed if not key.startswith(PROBE)}
    assert len(ours - lost) <= report.objects <= len(ours)


class Writer:
    """A process at the bucket, as far as the protocol can see: it has its own names, chance and memory.

    Several writers may share a `client`, since opening one costs more than all of its requests.
    """

    def __init__(
        self, name: str, client: ObjectStore, *, chance: random.Random, env: Env | None = None
    ) -> None:
        self.name = name
        self.env = env or Env(uuid=lambda: UUID(int=chance.getrandbits(128), version=4), random=chance.random)
        self.offloader = WitnessedOffloader(
            Sure(guarded(client, chance=chance)),
            env=self.env,
            options=TierOptions(fragment_size_bytes=len(source(0, CHUNK_RECORDS)) + 1),
            factor=FACTOR,
        )
        self.writer: StreamWriter | None = None

    async def claim(self, stream: str) -> StreamWriter:
        """Claim the stream."""
        self.writer = await StreamWriter.claim(self.offloader, stream, env=self.env)
        return self.writer

    @property
    def holder(self) -> StreamWriter:
        """Return the writer that claimed the stream. It may have been fenced since."""
        assert self.writer is not None, f"{self.name} never claimed"
        return self.writer

    def commits_told(self) -> list[tuple[Change, Manifest | OffloadError]]:
        """Return the results of the commits since the last call."""
        told, self.offloader.commits = self.offloader.commits, []
        return told
