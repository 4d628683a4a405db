"""`offload conformance --performance`: correct figures, limits that hold, and no effect on the verdict."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conformance_box.installed import Site, box, report_in
from offload_conformance.performance import MIB, MeasureBounds, measure, spread
from offload_conformance.report import SCHEMA
from simulation.loop import DirectedLoop

from offload.cli.kit.ending import Interrupted
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, Span, Suffix, Upload
from offload.ground.errors import Denied
from offload.store.memory import MemoryStore
from offload.store.wrap import UploadDecorator

SMALL, LARGE = 1000, 4 * MIB


class Slow(MemoryStore):
    """A store whose calls take `seconds` each, by the clock of its loop."""

    seconds: dict[str, float]

    def __init__(self, **seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.most_at_once = self.now_at_once = 0

    async def _takes(self, what: str) -> None:
        self.now_at_once += 1
        self.most_at_once = max(self.most_at_once, self.now_at_once)
        try:
            await asyncio.sleep(self.seconds.get(what, 0.001))
        finally:
            self.now_at_once -= 1

    async def put(self, key: str, body: Body) -> None:
        await self._takes("put" if body.size_bytes == SMALL else "put_large")
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        await self._takes("create")
        await super().create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        await self._takes("get_range" if span else "get" if len(data) == SMALL else "get_large")
        return data

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        await self._takes("list")
        async for row in super().list(prefix, after=after):
            yield row

    async def delete(self, keys: Sequence[str]) -> None:
        await self._takes("delete")
        await super().delete(keys)

    async def start_upload(self, key: str) -> Upload:
        return SlowUpload(await super().start_upload(key), self)


class SlowUpload(UploadDecorator):
    def __init__(self, inner: Upload, store: Slow) -> None:
        super().__init__(inner)
        self.store = store

    async def put_part(self, number: int, data: bytes) -> None:
        await self.store._takes("part")
        await super().put_part(number, data)


def measured(store: MemoryStore, **bounds: Any) -> dict[str, Any]:
    """Measure with a clock that jumps to the next moment for which a task waits."""

    def director(wait: float | None) -> None:
        assert wait is not None
        loop.now += wait

    loop = DirectedLoop(director)
    found: dict[str, Any] = {}
    try:
        loop.run_until_complete(measure(store, found, clock=loop.time, bounds=MeasureBounds(**bounds)))
    finally:
        loop.close()
    schema = json.loads(SCHEMA.read_text())["properties"]["performance"]
    jsonschema.validate(found, schema)
    return found


def latency(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["operation"]: row for row in found["latency"]}


def throughput(found: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(row["operation"], row["at_once"]): row for row in found["throughput"]}


def test_each_row_has_the_latency_of_its_call() -> None:
    seconds = {"put": 0.03, "create": 0.04, "get": 0.01, "get_range": 0.02, "list": 0.05, "delete": 0.06}

    found = latency(measured(Slow(**seconds), calls_max=20))

    assert list(found) == list(seconds)
    for operation, row in found.items():
        assert (row["calls"], row["error"]) == (20, "")
        for which in ("median", "p99", "max"):
            assert row[f"{which}_seconds"] == pytest.approx(seconds[operation], abs=1e-5)


def test_throughput_grows_with_callers_if_the_store_serves_them_together() -> None:
    store = Slow(put_large=0.5, get_large=0.25, part=0.1)

    found = throughput(measured(store, seconds_max=600))

    assert store.most_at_once == 16
    for (operation, at_once), row in found.items():
        seconds = {"put": 8, "get": 4, "upload": 1.6}[
            operation
        ] / at_once  # the bytes of sixteen objects or sixteen parts
        seconds += 0.5 if operation == "upload" else 0  # this store completes an upload with a put
        size = 16 * (MIB if operation == "upload" else LARGE)
        assert (row["calls"] * row["size_bytes"], row["error"]) == (size, "")
        assert row["duration_seconds"] == pytest.approx(seconds, rel=1e-3)
        assert row["bytes_per_second"] == pytest.approx(size / seconds, rel=1e-3)
    assert list(found) == [(what, n) for what in ("put", "get", "upload") for n in (1, 4, 16)]


def test_one_slow_call_of_a_hundred_changes_only_the_maximum() -> None:
    assert spread([0.001] * 99 + [9.0]) == {
        "median_seconds": 0.001, "p99_seconds": 0.001, "max_seconds": 9.0,
    }  # fmt: skip
    assert spread([0.001] * 98 + [8.0, 9.0])["p99_seconds"] == 8.0
    assert spread([2.0, 1.0])["median_seconds"] == 1.0
    assert spread([]) == {"median_seconds": None, "p99_seconds": None, "max_seconds": None}


def test_a_slow_store_gets_fewer_calls_and_every_row_has_its_share() -> None:
    """Fifteen rows share a minute. A call of two seconds is made twice, or more often after quick rows."""
    slow = dict.fromkeys(("put", "create", "get", "get_range", "list", "delete"), 2.0)

    found = measured(Slow(**slow), seconds_max=60)

    calls = {name: row["calls"] for name, row in latency(found).items()}
    assert all(2 <= count <= 10 for count in calls.values()), calls
    assert all(row["calls"] for row in found["throughput"])
    assert found["duration_seconds"] <= 60


def test_the_measurement_of_a_hanging_store_ends_at_the_time_limit() -> None:
    found = measured(Slow(get=1e6), seconds_max=60)

    rows = latency(found)
    assert (rows["create"]["error"], rows["get"]["error"]) == ("", "time limit reached")
    assert (rows["get"]["calls"], rows["get"]["median_seconds"]) == (0, None)
    assert rows["list"]["error"] == "time limit reached"
    assert found["duration_seconds"] == pytest.approx(60)


def test_a_failed_call_ends_only_its_own_row() -> None:
    class Refuses(Slow):
        async def create(self, key: str, data: bytes) -> None:
            if key.endswith("0003"):
                raise Denied("not you")
            await super().create(key, data)

        async def start_upload(self, key: str) -> Upload:
            raise ZeroDivisionError("a bug")

    found = measured(Refuses(), calls_max=10)

    rows = latency(found)
    assert (rows["create"]["calls"], rows["create"]["error"]) == (3, "Denied: not you")
    assert (rows["get"]["calls"], rows["get"]["error"]) == (10, "")
    assert {row["error"] for (what, _), row in throughput(found).items() if what == "upload"} == {
        "ZeroDivisionError: a bug"
    }


def test_an_upload_that_fails_is_aborted() -> None:
    class Refuses(Slow):
        async def start_upload(self, key: str) -> Upload:
            return RefusesTheThird(await super().start_upload(key))

    class RefusesTheThird(UploadDecorator):
        async def put_part(self, number: int, data: bytes) -> None:
            if number == 3:
                raise Denied("not three")
            await super().put_part(number, data)

    store = Refuses()
    found = throughput(measured(store))

    assert found["upload", 4]["error"] == "Denied: not three"
    assert store._unfinished == {}


class Counts(MemoryStore):
    """A store that counts the bytes that it moves."""

    def __init__(self, **capabilities: Any) -> None:
        super().__init__()
        self.moved, self._declares = 0, capabilities

    @property
    def capabilities(self) -> Capabilities:
        plain = {"atomic_create": True, "strong_listing": True, "multipart": False, **self._declares}
        return Capabilities(**plain)

    async def put(self, key: str, body: Body) -> None:
        self.moved += body.size_bytes
        await super().put(key, body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        self.moved += len(data)
        return data


def test_the_bytes_moved_are_limited() -> None:
    store = Counts()

    measured(store, calls_max=10, large_size_bytes=2000, row_size_bytes_max=50_000)

    assert store.moved == 6 * 50_000 + 3 * 10 * SMALL
    assert sum(map(len, store.objects.values())) == 50_000 + 10 * SMALL, "put/ was deleted, create/ was not"


def test_declared_limits_of_a_store_are_kept() -> None:
    found = measured(Counts(put_size_bytes_max=MIB), calls_max=2)
    assert {row["size_bytes"] for row in found["throughput"]} == {MIB}
    assert {row["operation"] for row in found["throughput"]} == {"put", "get"}

    parts = measured(Counts(multipart=True, part_size_bytes_min=5 * MIB), calls_max=2)
    assert throughput(parts)["upload", 1]["size_bytes"] == 12 * 5 * MIB

    [huge, *_] = [
        row
        for row in measured(Counts(multipart=True, part_size_bytes_min=2**40), calls_max=2)["throughput"]
        if row["operation"] == "upload"
    ]
    assert huge["error"] == "Misuse: a part has 1099511627776 bytes, which is too large to measure"


# The command.


BACKEND = """
    import signal
    from offload.ground.errors import Denied
    from offload.store.memory import MemoryStore

    OBJECTS = {}

    def open_url(url):
        return Store(objects=OBJECTS, name=url.partition("://")[2])

    class Store(MemoryStore):
        async def list(self, prefix, *, after=""):
            if prefix.endswith("put/"):
                LISTS
            async for row in super().list(prefix, after=after):
                yield row
"""


def test_measurements_do_not_change_the_verdict(site: Site, tmp_path: Path) -> None:
    site.install("lists", BACKEND.replace("LISTS", "raise Denied('no lists')"))
    report, page = tmp_path / "report.json", tmp_path / "report.md"

    ran = box(
        *("lists://here", "--select", "store/puts_are_whole", "--performance"),
        *("--report", report, "--markdown", page),
    )

    assert (ran.code, ran.stderr) == (0, "")
    document = report_in(report)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["totals"]["passed"] == 1
    assert latency(document["performance"])["list"]["error"] == "Denied: no lists"
    assert [line.split("\t")[0] for line in ran.lines if line.startswith("get_range")] == ["get_range"]
    assert "| list | 0 | 0 | - | - | - | Denied: no lists |" in page.read_text()
    assert (site.objects("lists"), document["left"]) == ({}, {})


def test_a_measurement_alone_runs_no_clause(site: Site, tmp_path: Path) -> None:
    site.install("lists", BACKEND.replace("LISTS", "pass"))

    ran = box("lists://here", "--performance-only", "--json")

    assert ran.code == 0
    totals = ran.document["totals"]
    assert (totals["passed"], totals["failed"]) == (0, 0)
    assert {each["message"] for each in ran.document["clauses"]} == {"not selected"}
    assert len(ran.document["performance"]["latency"]) == 6
    assert box("lists://here", "--performance-only").lines[0].startswith("one caller\t")


def test_the_command_measures_nothing_without_the_option(site: Site) -> None:
    site.install("lists", BACKEND.replace("LISTS", "pass"))

    ran = box("lists://here", "--select", "store/puts_are_whole", "--json")

    assert ran.document["performance"] is None


def test_ctrl_c_keeps_the_complete_rows(site: Site, tmp_path: Path) -> None:
    site.install("lists", BACKEND.replace("LISTS", "signal.raise_signal(signal.SIGINT)"))
    report = tmp_path / "report.json"

    with pytest.raises(Interrupted):
        box("lists://here", "--select", "store/puts_are_whole", "--performance", "--report", report)

    document = report_in(report)
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert (document["interrupted"], document["totals"]["passed"]) == (True, 1)
    assert [*latency(document["performance"])] == ["put", "create", "get", "get_range"]
    assert (site.objects("lists"), document["left"]) == ({}, {})


@pytest.mark.parametrize("other", [("--select", "store"), ("--badge", "b.svg"), ("--junit", "j.xml")])
def test_a_measurement_alone_writes_no_verdict(site: Site, other: tuple[str, ...], tmp_path: Path) -> None:
    ran = box(tmp_path / "there", "--performance-only", *other)

    assert ran.code == 2
    assert "--performance-only runs no clauses" in ran.stderr


def test_an_offloader_is_not_measured(site: Site) -> None:
    site.install("whole", "DECLARES = {'kind': 'offloader'}\ndef open_url(url):\n    raise AssertionError")

    ran = box("whole://here", "--performance")

    assert ran.code == 2
    assert "--performance measures stores, but the backend 'whole' opens an offloader" in ran.stderr
