"""Two processes that both believe that they own a stream, with its roots in etcd or PostgreSQL.

They are real processes. SIGSTOP or SIGKILL stops one of them at an exact request. The history that is left is
judged (`tests/protocol_judge.py`), from records that another client reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from campaign import few, keeping
from faults.actors import Actor, Ground, Moment
from faults.rig import Audit, assert_sound, bare_store, read_all
from protocol_world import CHUNK_RECORDS, source
from records.installed import recipes_installed
from servers.metadata import MetadataServer
from servers.places import Place

MOMENTS = {
    "in the middle of an upload": Moment("put", nth=2, when="before"),
    "before its create of a root": Moment("create", nth=2, when="before"),
    "after its create of a root": Moment("create", nth=2, when="after"),
}
"""Moments of an offload of three fragments. Its first create is that of `prepare`."""


def moments(kept: str) -> pytest.MarkDecorator:
    """Return a mark that runs a test at each moment, and under `make test` at one."""
    reason = "moments of rivals on etcd and PostgreSQL: one of three is kept"
    return pytest.mark.parametrize("at", keeping({kept}, MOMENTS, reason))


class RecordPlace(Place):
    """Records of a new name. Nothing stands between a process and the server, so it stops itself."""

    options: dict[str, str] = {}

    def __init__(self, server: MetadataServer) -> None:
        super().__init__()
        self._server = server

    @property
    def url(self) -> str:
        return self._server.url(self.name)

    def keys(self) -> set[str]:
        return set(self._server.records(self.name))

    def get(self, key: str) -> bytes:
        return self._server.records(self.name)[key]

    def put(self, key: str, data: bytes) -> None:
        raise NotImplementedError


@pytest.fixture(scope="module", autouse=True)
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with recipes_installed(tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture
def ground(metadata_server: MetadataServer) -> Ground:
    def another() -> Ground:
        return Ground(metadata_server.name, RecordPlace(metadata_server), None, another)

    return another()


@pytest.fixture
def actors() -> Iterator[list[Actor]]:
    found = [Actor("first"), Actor("second")]
    yield found
    for actor in found:
        actor.kill()


def judged(ground: Ground, stream: str, end: int) -> None:
    """Judge the history of the stream, which reads as its source up to `end`."""

    async def main() -> None:
        store = bare_store(ground.place.url, {})
        try:
            audit = Audit(store, stream)
            await audit.look()
            assert audit.next_offset == end
            assert await read_all(store, stream) == source(0, end)
            await assert_sound(store, ground.place)
        finally:
            await store.aclose()

    asyncio.run(main())


@few("a killed owner on PostgreSQL; make test kills one on etcd", 2)
@moments("after its create of a root")
def test_a_killed_owner_is_followed_by_another(ground: Ground, actors: list[Actor], at: str) -> None:
    first, second = actors
    for actor in actors:
        actor.do("open", ground.direct(), "orders", "killed")
    first.do("claim")
    first.do("offload", 2)
    assert first.begin_and_stop(ground, MOMENTS[at], "offload", 3)

    first.kill()

    end = second.do("claim")
    assert end >= 2 * CHUNK_RECORDS
    assert second.do("offload", 4) == (end, end + 4 * CHUNK_RECORDS)
    judged(ground, "orders", end + 4 * CHUNK_RECORDS)


@few("an owner that slept on etcd; make test has one on PostgreSQL", 2, start=1)
@moments("before its create of a root")
def test_an_owner_that_slept_is_fenced(ground: Ground, actors: list[Actor], at: str) -> None:
    """It wakes at the request before which it slept, sends it, and believes that it still owns the stream."""
    first, second = actors
    for actor in actors:
        actor.do("open", ground.direct(), "orders", "slept")
    first.do("claim")
    first.do("offload", 2)
    assert first.begin_and_stop(ground, MOMENTS[at], "offload", 3)
    second.do("claim")
    second.do("offload", 4)

    assert first.end().error == "Fenced"

    begin, end = second.do("offload", 1)
    assert end == begin + CHUNK_RECORDS
    judged(ground, "orders", end)


@few("two owners on etcd; make test has two on PostgreSQL", 2, start=1)
def test_two_owners_at_once_make_one_history(ground: Ground, actors: list[Actor]) -> None:
    """Each claims the stream again whenever it is fenced, and offloads as fast as it can. On a slow machine
    they need more than a second for five ledgers.
    """
    for actor in actors:
        actor.do("open", ground.direct(), "orders", "both")

    ledgers = 0
    while ledgers < 5:
        for actor in actors:
            actor.begin("lead", 1.0)
        ledgers += sum(len(actor.end().value[0]) for actor in actors)

    judged(ground, "orders", asyncio.run(end_of(ground)))


async def end_of(ground: Ground) -> int:
    store = bare_store(ground.place.url, {})
    try:
        audit = Audit(store, "orders")
        await audit.look()
        return audit.next_offset
    finally:
        await store.aclose()
