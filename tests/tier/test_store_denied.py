"""Tests of denied requests: an error of the store is reported once, and one of a stream stops no
other stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from osiris_data import DATA, STREAMS

from offload import ObjectStoreOffloader, Plugins, StreamReport, open_source, sync
from offload.contracts.store import Unfinished
from offload.formats.keys import TIER_ANCHOR, StreamKeys, escape
from offload.ground.errors import Denied, OffloadError, StoreDenied
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.sweep.report import SweepReport
from offload.upkeep.sweep.tier import sweep

FIRST = min(STREAMS)


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    """Return a tier of the sample streams, each with one unreferenced fragment."""
    store = MemoryStore()
    asyncio.run(synced(store))
    for stream in STREAMS:
        keys = StreamKeys(stream)
        first = next(key for key in store.objects if key.startswith(keys.data))
        store.objects[first[:-20] + "0" * 11 + ".fragment"] = b"left"
    return store.objects


async def synced(store: MemoryStore | FaultyStore) -> list[StreamReport]:
    source = open_source(f"rabbitmq://{DATA}", plugins=Plugins.find())
    return [report async for report in sync(source, ObjectStoreOffloader(store))]


def refusing(objects: dict[str, bytes], error: OffloadError, when: Callable[[str, str], bool]) -> FaultyStore:
    async def before(operation: str, key: str) -> None:
        if when(operation, key):
            raise error

    return FaultyStore(MemoryStore(objects=dict(objects)), before=before)


def of_first(_operation: str, key: str) -> bool:
    return key.startswith(escape(FIRST) + "/")


class TestSync:
    def run(self, objects: dict[str, bytes], error: OffloadError) -> list[OffloadError | None]:
        return [report.error for report in asyncio.run(synced(refusing(objects, error, of_first)))]

    def test_a_store_that_refuses_everything_is_reported_once(self, objects: dict[str, bytes]) -> None:
        error = StoreDenied("the session token has expired")

        assert self.run(objects, error) == [error]

    def test_a_missing_permission_for_one_stream_stops_no_other(self, objects: dict[str, bytes]) -> None:
        error = Denied("the credentials lack s3:GetObject")

        assert self.run(objects, error) == [error] + [None] * (len(STREAMS) - 1)

    def test_a_tier_that_cannot_be_opened_is_raised_once(self, objects: dict[str, bytes]) -> None:
        """This is true for any class of error: no stream can be synced without the tier's anchor."""
        store = refusing(
            objects, Denied("the credentials lack s3:GetObject"), lambda _, key: key == TIER_ANCHOR
        )

        with pytest.raises(Denied):
            asyncio.run(synced(store))


class TestSweep:
    def run(self, objects: dict[str, bytes], error: OffloadError, at: str) -> SweepReport:
        def when(operation: str, key: str) -> bool:
            return operation == at and of_first(operation, key)

        return asyncio.run(sweep(refusing(objects, error, when), grace_seconds=0))

    @pytest.mark.parametrize("operation", ["get", "list", "delete"])
    def test_a_store_that_refuses_everything_is_reported_once(
        self, objects: dict[str, bytes], operation: str
    ) -> None:
        error = StoreDenied("the session token has expired")

        report = self.run(objects, error, operation)

        assert report.errors == [error]
        assert [row.stream for row in report.streams] == [FIRST]

    @pytest.mark.parametrize("operation", ["get", "list", "delete"])
    def test_a_missing_permission_for_one_stream_stops_no_other(
        self, objects: dict[str, bytes], operation: str
    ) -> None:
        report = self.run(objects, Denied("no"), operation)

        assert report.errors
        assert [row.stream for row in report.streams] == sorted(STREAMS)
        assert all(not row.errors for row in report.streams[1:])

    def test_a_store_that_refuses_to_list_uploads_for_anybody_is_an_error(
        self, objects: dict[str, bytes]
    ) -> None:
        """A missing permission to list uploads is only a note, because the bucket's own rules can
        abort uploads.
        """
        error = StoreDenied("the session token has expired")

        class Store(MemoryStore):
            async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
                raise error

        report = asyncio.run(sweep(Store(objects=dict(objects))))

        assert report.errors == [error]


def test_a_copy_by_spark_stops_if_the_store_refuses_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    from offload_spark.jobs import copy as module

    from offload import Blocking

    with Blocking(str(tmp_path / "source")) as tier:
        tier.sync(f"rabbitmq://{DATA}")

    def refused(_transfer: object, origin: module.Committed) -> module.Copied:
        return module.Copied(stream=origin.stream, error=StoreDenied("the session token has expired"))

    monkeypatch.setattr(module, "_copied", refused)

    found = module.copy(None, str(tmp_path / "source"), str(tmp_path / "target"))  # type: ignore[arg-type]

    assert [copied.stream for copied in found] == [FIRST]


def test_the_error_of_a_task_keeps_its_class() -> None:
    errors = pytest.importorskip("pyspark.errors")
    from offload_spark.jobs.plain_errors import plain_errors

    for name, kind in (("StoreDenied", StoreDenied), ("Corrupt", OffloadError)):
        with pytest.raises(OffloadError, match=r"^the text$") as caught, plain_errors():
            raise errors.PySparkException(f"Traceback\n  x\n{kind.__module__}.{name}: the text\n")
        assert caught.type is kind
