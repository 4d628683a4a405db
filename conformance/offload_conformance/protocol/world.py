"""A world for one course of events: an empty place in the author's store, any processes, and who checks them.

Invariants: each world is a folder of its own, so that one test tries many courses; what the checks expect is
written down here, and never taken from the processes. A test has few clients of the author's store, for a
client is dear to open: its worlds share them, and so do the processes of a world beyond the first few.
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
from offload.errors import OffloadError
from offload.formats.keys import StreamKeys
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
"""How often a person runs a job again that failed."""

Front = Callable[[ObjectStore], ObjectStore]


class Probed(StoreDecorator):
    """A store of which it is known that its create holds: the layers below have asked.

    Without this every process would try it out with four requests of its own.
    """

    @property
    def capabilities(self) -> Capabilities:
        """As the store's own."""
        return replace(self.inner.capabilities, create_is_probed=False)


class Worlds:
    """Makes worlds for one test, the same from the same seed of `random`."""

    def __init__(self, open_store: Callable[[], ObjectStore], make: MakeTier) -> None:
        self._open_store, self._make = open_store, make
        self._seed = random.getrandbits(64)
        self._clients: list[ObjectStore] = []
        self._made = 0

    def __call__(self) -> World:
        """A world that nobody has touched."""
        self._made += 1
        return World(self._client, self._make, folder=f"w{self._made}", seed=f"{self._seed}/{self._made}")

    async def aclose(self) -> None:
        """Close all clients."""
        for client in self._clients:
            await client.aclose()

    def _client(self, number: int) -> ObjectStore:
        number %= CLIENTS_MAX
        while number >= len(self._clients):
            self._clients.append(self._open_store())
        return self._clients[number]


class World:
    """See the module's head."""

    def __init__(
        self, client: Callable[[int], ObjectStore], make: MakeTier, *, folder: str, seed: str
    ) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.processes: list[Process] = []
        self._client, self._make, self._seed = client, make, seed

    def client(self, number: int = 0) -> ObjectStore:
        """A client of this world's folder, without faults."""
        return Probed(PrefixStore(self._client(number), self.folder))

    def process(self, *, options: TierOptions = OPTIONS, front: Front = lambda store: store) -> Process:
        """One more process. `front` is what stands between its faults and the store."""
        number = len(self.processes)
        seed = f"{self._seed}/{number}"
        process = Process(front(self.client(number)), self._make, seed=seed, options=options)
        self.processes.append(process)
        return process

    async def copied_by(self, process: Process, *, failing: type[OffloadError] = OffloadError) -> int:
        """Run the whole job again and again, as a person does where it fails; how often it failed."""
        for failures in range(RUNS_MAX):
            try:
                await process.copy()
            except failing:
                continue
            return failures
        await process.copy()
        return RUNS_MAX

    async def crashed(self, process: Process, *, before: int) -> None:
        """Run the job up to the request of this number, before which the process dies."""
        process.dies_before = before
        assert await died(process.copy()), f"the job ended before request {before}"

    async def check(self, *, first: int = TRIMMED, end: int = END) -> Manifest:
        """Assert that a newcomer finds exactly the source's [first, end), and nothing under way."""
        newcomer = self.process()
        manifest = await newcomer.offloader.load_manifest(STREAM)
        assert (manifest.first_offset, manifest.next_offset) == (first, end)
        assert manifest.messages == end - first, "each record is there once"
        assert await held(newcomer.offloader, manifest) == source(first, end)
        return manifest

    async def history(self) -> list[Manifest]:
        """Every root of the stream, each made on the one before it."""
        store = self.client()
        found = [(KEYS.parse_root(row.key), row.key) async for row in store.list(KEYS.roots)]
        roots = [
            decode_named_root(await store.get(key), STREAM, number, where=key)
            for number, key in found
            if number
        ]
        assert [root.version for root in roots] == list(range(1, len(roots) + 1))
        for parent, root in pairwise(roots):
            assert root.parent_commit_id == parent.commit_id, "each root follows the one before it"
            assert root.next_offset >= parent.next_offset
        return roots

    async def commits(self) -> list[UUID]:
        """The history, by the ids of its commits."""
        return [root.commit_id for root in await self.history()]

    async def check_told(self) -> None:
        """Assert that what each writer was told is committed is in the history."""
        committed = await self.commits()
        for process in self.processes:
            if process.writer is not None:
                assert process.writer.manifest.commit_id in committed, "a writer was told of what never was"

    async def fragments(self) -> set[str]:
        """The names of all fragments that a listing shows."""
        return {row.key async for row in self.client().list(KEYS.data)}


def source(first: int, end: int) -> list[bytes]:
    """The chunks that a reader of [first, end) must be given."""
    return list(ledger_of(end - first, first_offset=first).chunks) if end > first else []


class Named(NamedTuple):
    """A fragment that a manifest names."""

    first: int
    end: int
    attempt: UUID


async def named_by(offloader: LedgerOffloader, manifest: Manifest) -> list[Named]:
    """Every fragment that a manifest names, in order."""
    found: list[Named] = []
    async with aclosing(offloader.tree(manifest).walk()) as runs:
        async for run in runs:
            ends = (run["first_offset"] + run["records"]).tolist()
            uids = [UUID(bytes=bytes(raw)) for raw in run["attempt"]]
            found += map(Named, run["first_offset"].tolist(), ends, uids)
    return found


async def held(offloader: LedgerOffloader, manifest: Manifest) -> list[bytes]:
    """Every chunk that a manifest names, in order, as it is read back."""
    chunks = await read_back(offloader, manifest, only=range(manifest.first_offset, manifest.next_offset))
    return [chunks[offset] for offset in sorted(chunks)]


async def read_back(offloader: LedgerOffloader, manifest: Manifest, *, only: range) -> dict[int, bytes]:
    """The chunks, by offset, of all fragments that hold some of these offsets."""
    chunks: dict[int, bytes] = {}
    named = await named_by(offloader, manifest)
    for uid in dict.fromkeys(
        each.attempt for each in named if each.first < only.stop and each.end > only.start
    ):
        attempt = Attempt(stream=manifest.stream, ledger_id=0, uid=uid)
        async with await offloader.read_offloaded(attempt, manifest=manifest, only=only) as handle:
            table = await handle.table()
            raw, at = await handle.read(table), 0
            for offset, size in zip(table["offset"].tolist(), table["size_bytes"].tolist(), strict=True):
                assert offset not in chunks, "no two fragments hold one offset"
                chunks[offset] = raw[at : at + size]
                at += size
            assert at == len(raw), "no more is read than the table says"
    return chunks


def keys_of(manifest: Manifest, named: Sequence[Named]) -> set[str]:
    """The keys of fragments that are named."""
    return {StreamKeys(manifest.stream).fragment(each.first, each.attempt) for each in named}
