"""A world for one course of events: an empty place in the author's store, processes, and checks.

Invariants: each world is a folder of its own, so one test can try many courses. The checks know what to
expect from constants in this package, never from the processes. A test opens few clients of the author's
store, because opening one is expensive. Its worlds share them, and so do the processes of a world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

from offload.commit.log import decode_named_root
from offload.contracts.capabilities import Capabilities
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.formats.keys import StreamKeys
from offload.ground.errors import OffloadError
from offload.model.attempt import Attempt
from offload.model.manifest import Manifest
from offload.native.offloader import TierOptions
from offload.store.prefix import PrefixStore
from offload.store.wrap import StoreDecorator
from offload_conformance.ledgers import ledger_of
from offload_conformance.protocol.process import END, OPTIONS, STREAM, TRIMMED, MakeTier, Process, died

KEYS: Final = StreamKeys(STREAM)
CLIENTS_MAX: Final = 3
RUNS_MAX: Final = 5
"""How often a failed job is run again, as a person would do."""

Front = Callable[[ObjectStore], ObjectStore]


class Probed(StoreDecorator):
    """A store whose creates need no probe, because clauses of the layer `store` test them.

    Without this class every process would try them with four requests of its own.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Return the store's own capabilities, marked as needing no probe."""
        return replace(self.inner.capabilities, create_is_probed=False)


class Worlds:
    """The worlds of one test. The same seed of `random` makes the same ones."""

    def __init__(self, open_store: Callable[[], ObjectStore], make: MakeTier) -> None:
        self._open_store, self._make = open_store, make
        # Drawn once, so that each world of this test has its own seed, and a rerun of the test the same ones.
        self._seed = random.getrandbits(64)
        self._clients: list[ObjectStore] = []
        self._made = 0

    def __call__(self) -> World:
        """Return a new, empty world."""
        self._made += 1
        return World(self._client, self._make, folder=f"w{self._made}", seed=f"{self._seed}/{self._made}")

    async def aclose(self) -> None:
        """Close all clients."""
        for client in self._clients:
            await client.aclose()

    def _client(self, number: int) -> ObjectStore:
        # Opening a client is expensive, so processes beyond the first few share one.
        number %= CLIENTS_MAX
        while number >= len(self._clients):
            self._clients.append(self._open_store())
        return self._clients[number]


class World:
    """A world, as the module's docstring describes."""

    def __init__(
        self, client: Callable[[int], ObjectStore], make: MakeTier, *, folder: str, seed: str
    ) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.processes: list[Process] = []
        self._client, self._make, self._seed = client, make, seed

    def client(self, number: int = 0) -> ObjectStore:
        """Return a client of this world's folder, without faults."""
        return Probed(PrefixStore(self._client(number), self.folder))

    def process(self, *, options: TierOptions = OPTIONS, front: Front = lambda store: store) -> Process:
        """Return a new process. `front` wraps the store behind the process's faults."""
        number = len(self.processes)
        seed = f"{self._seed}/{number}"
        process = Process(front(self.client(number)), self._make, seed=seed, options=options)
        self.processes.append(process)
        return process

    async def copied_by(self, process: Process, *, failing: type[OffloadError] = OffloadError) -> int:
        """Run the whole job until it succeeds, as a person would do. Return how often it failed."""
        for failures in range(RUNS_MAX):
            try:
                await process.copy()
            except failing:
                continue
            return failures
        await process.copy()
        return RUNS_MAX

    async def crashed(self, process: Process, *, before: int) -> None:
        """Run the job up to the request of this number, and let the process die before it."""
        process.dies_before = before
        assert await died(process.copy()), f"the job ended before request {before}"

    async def check(self, *, first: int = TRIMMED, end: int = END) -> Manifest:
        """Assert that a new process finds exactly [first, end) of the source. Return the manifest."""
        # A new process has read nothing before, so no cache can hide what is really stored.
        newcomer = self.process()
        manifest = await newcomer.offloader.load_manifest(STREAM)
        assert (manifest.first_offset, manifest.next_offset) == (first, end)
        # The totals could be right although a record is stored twice or lost, so the chunks are compared too.
        assert manifest.messages == end - first, "expected each record once"
        assert await held(newcomer.offloader, manifest) == source(first, end)
        return manifest

    async def history(self) -> list[Manifest]:
        """Return every root of the stream. Assert that each follows the one before it."""
        store = self.client()
        found = [(KEYS.parse_root(row.key), row.key) async for row in store.list(KEYS.roots)]
        roots = [
            decode_named_root(bytes(await store.get(key)), STREAM, number, where=key)
            for number, key in found
            if number
        ]
        # A missing version would mean that a commit was deleted, a double one that two creates won.
        assert [root.version for root in roots] == list(range(1, len(roots) + 1))
        for parent, root in pairwise(roots):
            assert root.parent_commit_id == parent.commit_id, (
                "expected that each root follows the one before it"
            )
            # Committed offsets never disappear, whoever committed next.
            assert root.next_offset >= parent.next_offset
        return roots

    async def commits(self) -> list[UUID]:
        """Return the ids of the commits in the history."""
        return [root.commit_id for root in await self.history()]

    async def check_told(self) -> None:
        """Assert that the last commit that each writer knows is in the history."""
        committed = await self.commits()
        for process in self.processes:
            if process.writer is not None:
                assert process.writer.manifest.commit_id in committed, (
                    "a writer got a commit that never happened"
                )

    async def fragments(self) -> set[str]:
        """Return the keys of all fragments that a listing shows."""
        return {row.key async for row in self.client().list(KEYS.data)}


def source(first: int, end: int) -> list[bytes]:
    """Return the chunks that a reader of [first, end) must get."""
    return list(ledger_of(end - first, first_offset=first).chunks) if end > first else []


class Named(NamedTuple):
    """A fragment that a manifest names."""

    first: int
    end: int
    attempt: UUID


async def named_by(offloader: LedgerOffloader, manifest: Manifest) -> list[Named]:
    """Return every fragment that a manifest names, in order."""
    found: list[Named] = []
    async with aclosing(offloader.tree(manifest).walk()) as runs:
        async for run in runs:
            ends = (run["first_offset"] + run["records"]).tolist()
            uids = [UUID(bytes=bytes(raw)) for raw in run["attempt"]]
            found += map(Named, run["first_offset"].tolist(), ends, uids)
    return found


async def held(offloader: LedgerOffloader, manifest: Manifest) -> list[bytes]:
    """Read every chunk that a manifest names, in order."""
    chunks = await read_back(offloader, manifest, only=range(manifest.first_offset, manifest.next_offset))
    return [chunks[offset] for offset in sorted(chunks)]


async def read_back(offloader: LedgerOffloader, manifest: Manifest, *, only: range) -> dict[int, bytes]:
    """Read the chunks of all fragments that hold some of these offsets. Return them by offset."""
    chunks: dict[int, bytes] = {}
    named = await named_by(offloader, manifest)
    # One read for each attempt: that is how the contract reads, and fragments of attempts may alternate.
    for uid in dict.fromkeys(
        each.attempt for each in named if each.first < only.stop and each.end > only.start
    ):
        attempt = Attempt(stream=manifest.stream, ledger_id=0, uid=uid)
        async with await offloader.read_offloaded(attempt, manifest=manifest, only=only) as handle:
            table = await handle.table()
            raw, at = bytes(await handle.read(table)), 0
            for offset, size in zip(table["offset"].tolist(), table["size_bytes"].tolist(), strict=True):
                assert offset not in chunks, "expected each offset in one fragment"
                chunks[offset] = raw[at : at + size]
                at += size
            assert at == len(raw), "expected as many bytes as the table says"
    return chunks


def keys_of(manifest: Manifest, named: Sequence[Named]) -> set[str]:
    """Return the keys of these fragments."""
    return {StreamKeys(manifest.stream).fragment(each.first, each.attempt) for each in named}
