"""The layer `catalogue` on buckets of rabbitmq-stream-s3: in memory, in a folder, and on servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from cloud.tiers import CloudTier
from offload_conformance import CatalogueBackend, FilledStream
from offload_conformance.asynchronous import Run
from offload_rabbitmq_s3 import RabbitmqS3Catalogue
from rabbitmq_s3_bucket import STREAM, Bucket, bodies_of
from servers import Running
from servers.selection import servers

from offload import Catalogue, Session
from offload.contracts.store import Body, ObjectStore
from offload.store.memory import MemoryStore

OTHER = "__other_1795000000000000000"


class Bucketed(CatalogueBackend):
    """Two streams, the first in groups. All clauses apply."""

    def open_store(self) -> ObjectStore:
        raise NotImplementedError

    def open_catalogue(self) -> Catalogue:
        return RabbitmqS3Catalogue(self.open_store(), "rabbitmq+test://bucket")

    async def fill(self) -> Sequence[FilledStream]:
        self.buckets = {name: Bucket(store=self.open_store(), stream=name) for name in (STREAM, OTHER)}
        for name, bucket in self.buckets.items():
            for _ in range(8 if name == STREAM else 1):
                # No tracking chunks: the suite takes the number of offsets for that of records.
                await bucket.append(bucket.messages(2, records=1))
        return [
            FilledStream(name=name, records=bodies_of(bucket.chunks)) for name, bucket in self.buckets.items()
        ]

    async def grow(self, stream: str) -> Sequence[bytes]:
        added = self.buckets[stream].messages(2, records=1)
        await self.buckets[stream].append(added)
        return bodies_of(added)

    async def damage(self, stream: str, fragment: str) -> None:
        store = self.open_store()
        data = bytearray(await store.get(fragment))
        data[60] ^= 1
        await store.put(fragment, Body.of(bytes(data)))

    async def drop(self, stream: str) -> None:
        await self.buckets[stream].trim(2)


class TestInMemory(Bucketed):
    @pytest.fixture(autouse=True)
    def _bucket(self) -> None:
        self.store = MemoryStore()

    def open_store(self) -> ObjectStore:
        return self.store


class ByUrl(Bucketed):
    """A store that a session opens, as it does for a tier."""

    session: Session
    url: str

    def open_store(self) -> ObjectStore:
        return self.session.store(self.url)

    @pytest.fixture(autouse=True)
    def _closed(self, run: Run) -> Iterator[None]:
        async def begin() -> Session:
            return Session()

        self.session = run(begin())
        yield
        run(self.session.aclose())


class TestFolder(ByUrl):
    @pytest.fixture(autouse=True)
    def _bucket(self, _fresh_place: None) -> None:
        self.folder.mkdir()
        self.url = f"file://{self.folder}"


@pytest.mark.parametrize("running_server", servers(), indirect=True)
class TestServers(ByUrl):
    @pytest.fixture(autouse=True)
    def _bucket(self, running_server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = CloudTier(running_server.place(), monkeypatch).place.url
