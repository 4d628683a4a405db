"""Tests of what a process shows: its routes by a real server, and its metrics by Prometheus' own parser."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pytest
from follower_world import LEADING
from growing_source import GrowingSource, GrowingStream
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families

from offload import ObjectStoreOffloader, Source
from offload.contracts.events import CommitFailed, CommitInDoubt, DamageFound, Event
from offload.contracts.metrics import BUCKET_SECONDS, StoreMetrics
from offload.follow.dispatcher import Dispatcher
from offload.follow.rules import FollowRules, FollowState, FollowStatus, Wait
from offload.follow.vouched import VouchedSource
from offload.ground.errors import Absent, Denied, Fenced, Misuse, OutcomeUnknown, StoreDenied, TryAgain
from offload.opening.session import Session
from offload.service.address import address_from, listen
from offload.service.disk import DiskWatch
from offload.service.health import Health
from offload.service.http import routes, serve_http
from offload.service.metrics import OTHERS, ServiceMetrics
from offload.service.process import serve
from offload.store.memory import MemoryStore
from offload.write.writer import StreamWriter

STANDBY = {"state": FollowState.STANDBY, "waits": Wait.LEADER, "waits_since_ms": 9000}
BEHIND = STANDBY | {"committed_offset": 11, "lag_seconds": 0.0, "waited_seconds": 15.5}
"""A standby whose source ends before the tier."""
UNSEEN = {"source_next_offset": None, "lag_records": None, "lag_seconds": None, "waits": Wait.NOTHING}
RETRIED = {"waits": Wait.RETRY, "waits_since_ms": 9000, "error": TryAgain("no answer")}


class Fixed:
    """Stands in for a dispatcher with these statuses."""

    error: Denied | None = None
    source: Source = GrowingSource()
    lost_tails: dict[str, int] = {}

    def __init__(self, *statuses: FollowStatus) -> None:
        self.statuses = list(statuses)


def health(*statuses: FollowStatus) -> Health:
    return Health(dispatchers=[Fixed(*statuses)])  # type: ignore[list-item]


def samples(metrics: ServiceMetrics) -> dict[tuple[str, ...], float]:
    """Return the values by name and values of labels, in order of the labels' names."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


async def asked(port: int, path: str) -> tuple[int, str]:
    """Return the status and the body of a reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


def answers(seen: Health, *paths: str) -> list[tuple[int, str]]:
    """Return the replies of a real server."""

    async def scenario() -> list[tuple[int, str]]:
        listener = listen("127.0.0.1", 0)
        metrics = ServiceMetrics(seen.statuses)
        serving = asyncio.create_task(serve_http(routes(seen, metrics.text), listener))
        try:
            return [await asked(listener.getsockname()[1], path) for path in paths]
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    return asyncio.run(scenario())


class TestRoutes:
    def test_every_route_answers(self) -> None:
        index, live, ready, status, metrics, absent = answers(
            health(LEADING), "/", "/livez", "/readyz", "/status", "/metrics", "/else"
        )

        assert index == (200, "/\n/livez\n/readyz\n/status\n/metrics\n")
        assert live == (200, "ok\n")
        assert ready == (200, "ready\nleads 1 of 1 streams, stands by for 0\n")
        release = version("ledger-offload")
        assert json.loads(status[1])["version"] == release
        assert f'offload_build_info{{version="{release}"}} 1.0' in metrics[1]
        assert json.loads(status[1])["streams"][0] == {
            "stream": "orders",
            "name": "orders",
            "next": None,
            "state": "leading",
            "late": False,
            "lag_records": 6,
            "lag_seconds": 2.5,
            "alarm_seconds": 15.0,
            "source_next_offset": 10,
            "dispatched_offset": 8,
            "committed_offset": 4,
            "waits": "copy",
            "waits_since": "1970-01-01T00:00:09.000Z",
            "gaps": 1,
            "lost_records": 120,
            "error": None,
        }
        assert 'offload_lag_records{stream="orders"} 6.0' in metrics[1]
        assert 'offload_lost_records_total{stream="orders"} 120.0' in metrics[1]
        assert absent[0] == 404

    @pytest.mark.parametrize(
        ("changes", "code", "line"),
        [
            ({}, 200, "leads 1 of 1 streams"),
            (
                {"lag_seconds": 15.5},
                503,
                "its oldest record that is not on the tier is 16 s old, and the alarm",
            ),
            ({"lag_seconds": None, "waited_seconds": 15.5}, 503, "its lag is not known"),
            ({"lag_seconds": None, "waited_seconds": 2.5}, 200, "leads 1 of 1 streams"),
            (RETRIED, 200, "stream 'orders' is tried again since 1970-01-01T00:00:09.000Z: no answer"),
            (
                RETRIED | {"lag_seconds": 99.0},
                503,
                "s; tried again since 1970-01-01T00:00:09.000Z: no answer",
            ),
            ({"state": FollowState.PAUSED, "error": Denied("no right")}, 503, "is paused: no right"),
            (STANDBY, 200, "stands by for 1"),
            (STANDBY | {"lag_seconds": 15.5}, 503, "Z for the leading process"),
            (BEHIND, 503, "its source ends at offset 10, but the tier holds it up to 11"),
            (BEHIND | {"waited_seconds": 2.5}, 200, "stands by for 1"),
            (UNSEEN, 200, ": its lag is not known, because nobody has looked yet"),
        ],
        ids=[
            *(
                "leading",
                "late",
                "not known for long",
                "not known yet",
                "retried",
                "retried and late",
                "paused",
            ),
            *("standby", "standby, and nobody commits", "behind", "behind for a moment", "unseen"),
        ],
    )
    def test_a_process_is_ready_unless_a_stream_is_late_or_paused(
        self, changes: dict[str, Any], code: int, line: str
    ) -> None:
        """A standby too: a process that is killed again and again always stands by, and copies nothing."""
        ((found, body),) = answers(health(replace(LEADING, **changes)), "/readyz")

        assert (found, line in body) == (code, True), body

    def test_a_process_is_not_ready_if_its_source_cannot_be_listed(self) -> None:
        lost = Fixed()
        lost.error, lost.source = Denied("no right"), GrowingSource()

        seen = Health(dispatchers=[lost])  # type: ignore[list-item]
        ((code, body),) = answers(seen, "/readyz")

        assert (code, body.splitlines()[2]) == (503, "source memory://source: no right")
        metrics = ServiceMetrics(seen.statuses, lost_sources=seen.lost_sources)
        assert samples(metrics)["offload_lost_sources",] == 1
        lost.error = None
        assert samples(metrics)["offload_lost_sources",] == 0

    def test_a_name_that_is_not_utf_8_breaks_no_route(self) -> None:
        """Nor do control characters break a line."""
        paused = replace(
            LEADING, stream="\udcff", state=FollowState.PAUSED, error=Denied("a\nb\x1b[31m\udcff")
        )

        (_, ready), (_, status), (code, metrics) = answers(health(paused), "/readyz", "/status", "/metrics")

        assert ready.splitlines()[2] == r"stream '\udcff' is paused: a\nb\x1b[31m\udcff"
        assert json.loads(status)["streams"][0]["stream"] == "\udcff"
        assert (code, r'offload_lag_records{stream="\\udcff"} 6.0' in metrics) == (200, True)


class TestMetrics:
    def test_each_stream_has_its_lag_and_its_state(self) -> None:
        found = samples(ServiceMetrics(lambda: [LEADING, replace(LEADING, stream="b", lag_seconds=99.0)]))

        assert found["offload_lag_seconds", "orders"] == 2.5
        assert found["offload_lag_records", "orders"] == 6
        assert found["offload_stream_state", "leading", "orders"] == 1
        assert found["offload_stream_state", "paused", "orders"] == 0
        assert found["offload_paused_streams",] == 0
        assert found["offload_late_streams",] == 1

    def test_a_name_that_is_hostile_to_labels_is_escaped(self) -> None:
        names = ['a"} 1\nfake 2', "back\\slash", "{}", "\x1b[31m", "ä", OTHERS]

        found = samples(ServiceMetrics(lambda: [replace(LEADING, stream=name) for name in names]))

        assert {labels[0] for name, *labels in found if name == "offload_lag_records"} == set(names)
        assert not any(name == "fake" for name, *_ in found)

    def test_streams_beyond_the_bound_are_one_row(self) -> None:
        states = [FollowState.LEADING, FollowState.PAUSED, FollowState.LEADING]
        rows = [
            replace(LEADING, stream=f"s{n}", lag_seconds=n, state=state) for n, state in enumerate(states)
        ]

        found = samples(ServiceMetrics(lambda: [*rows, replace(LEADING, stream=OTHERS)], streams_max=1))

        assert found["offload_lag_records", "s0"] == 6
        assert found["offload_lag_records", OTHERS] == 18
        assert found["offload_lag_seconds", OTHERS] == 2.5
        assert found["offload_stream_state", "leading", OTHERS] == 2
        assert found["offload_paused_streams",] == 1
        assert len([name for name, *_ in found if name == "offload_lag_records"]) == 2

    def test_a_broker_that_does_not_answer_is_shown(self) -> None:
        """And the streams that it does not vouch for. Without a broker, there is nothing to show."""

        async def scenario() -> None:
            async with Session() as session:
                broker = session.broker("rabbitmq-stream://127.0.0.1:1")
                dispatcher, grows = Fixed(), GrowingStream(name="__orders_17")
                dispatcher.source = source = VouchedSource(GrowingSource([grows]), broker)
                seen = Health(dispatchers=[dispatcher])  # type: ignore[list-item]
                metrics = ServiceMetrics(seen.statuses, asked=seen.asked)
                assert samples(metrics)["offload_broker_up",] == 1
                (stream,) = await source.streams()
                async with await stream.snapshot() as snapshot:
                    assert await stream.vouched(snapshot) == 0
                assert samples(metrics)["offload_broker_up",] == 1, "nobody asked about an empty stream"
                grows.append()
                async with await stream.snapshot() as snapshot:
                    assert await stream.vouched(snapshot) is None
                found = samples(metrics)
                assert (found["offload_broker_up",], found["offload_held_back_streams",]) == (0, 1)
                (shown,) = seen.as_json()["brokers"]
                assert (shown["answers"], shown["held_back"]) == (False, ["__orders_17"])
                assert "cannot be reached" in shown["error"]
                assert seen.problems() == [], "data is copied all the same"

        asyncio.run(scenario())
        assert ("offload_broker_up",) not in samples(ServiceMetrics(list))

    def test_a_stream_that_nobody_has_looked_at_has_no_lag_in_records(self) -> None:
        found = samples(ServiceMetrics(lambda: [replace(LEADING, lag_records=None)]))

        assert ("offload_lag_records", "orders") not in found

    def test_requests_and_commits_are_counted_by_outcome(self) -> None:
        stores = StoreMetrics()
        metrics = ServiceMetrics(list, stores=stores)
        stores.ended("put", "ok", 0.2)
        stores.ended("put", "throttled", 7.0)
        stores.retries["put", "throttled"] += 1
        stores.moved.update({"put": 5, "put_part": 6, "get": 7})
        stores.reads_shared, stores.replies_mended = 3, 2
        failed = CommitInDoubt(stream="s", change="append", error=OutcomeUnknown("lost"), seconds=1.0)
        metrics.emit(failed)

        found = samples(metrics)

        assert found["offload_store_requests_total", "put", "ok"] == 1
        assert found["offload_store_request_seconds_sum", "put", "throttled"] == 7.0
        assert found["offload_commits_total", "outcome_unknown"] == 1
        assert found["offload_store_retries_total", "put", "throttled"] == 1
        moved = {key[1:]: size for key, size in found.items() if key[0] == "offload_store_bytes_total"}
        assert moved == {("up", "put"): 5, ("up", "put_part"): 6, ("down", "get"): 7}
        assert found["offload_store_shared_reads_total",] == 3
        assert found["offload_store_mended_replies_total",] == 2

    @given(st.lists(st.sampled_from(BUCKET_SECONDS) | st.floats(0, 400)))
    def test_times_are_shown_as_the_library_of_prometheus_counts_them(self, times: list[float]) -> None:
        """Also those that are exactly at the end of a bucket."""
        stores, registry = StoreMetrics(), CollectorRegistry()
        theirs = Histogram("x_seconds", "x", ["a", "b"], buckets=BUCKET_SECONDS, registry=registry)
        for seconds in times:
            stores.ended("get", "ok", seconds)
            stores.first_bytes.add(seconds)
            theirs.labels("get", "ok").observe(seconds)

        metrics = ServiceMetrics(list, stores=stores)
        found = samples(metrics)

        expected = {
            (sample.name.removeprefix("x_seconds"), *sample.labels.values()): sample.value
            for family in registry.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        for (name, *labels), value in expected.items():
            le = labels[2:]
            assert found["offload_store_request_seconds" + name, *le, "get", "ok"] == pytest.approx(value)
            assert found["offload_store_first_byte_seconds" + name, *le] == pytest.approx(value)

    def test_damages_are_counted_and_streams_that_wait_are_grouped_by_error(self) -> None:
        errors = [StoreDenied("no right"), StoreDenied("no right"), TryAgain("no answer"), None]
        metrics = ServiceMetrics(
            lambda: [replace(LEADING, stream=f"s{n}", error=error) for n, error in enumerate(errors)],
            streams_max=1,
        )
        before = samples(metrics)["offload_damage_found_total",]
        metrics.emit(DamageFound(damage=Absent("an object", "orders")))

        found = samples(metrics)

        assert (before, found["offload_damage_found_total",]) == (0, 1)
        waiting = {labels[0]: n for (name, *labels), n in found.items() if name == "offload_waiting_streams"}
        assert waiting == {"store_denied": 2, "try_again": 1}

    @pytest.mark.parametrize("of", ["source", "tier"])
    def test_the_space_of_a_disk_is_that_of_the_last_look(
        self, tmp_path: Path, of: Literal["source", "tier"]
    ) -> None:
        """A folder that cannot be measured has no row, and comes back when it can."""
        folder = tmp_path / "data"
        disk = DiskWatch(folder=folder, of=of)
        metrics = ServiceMetrics(list, disks=[disk])

        asyncio.run(disk.look())
        absent = samples(metrics)
        folder.mkdir()
        asyncio.run(disk.look())
        found = samples(metrics)

        key = (f"offload_{of}_disk_free_bytes", str(folder))
        assert key not in absent
        assert 0 < found[key] <= found[f"offload_{of}_disk_size_bytes", str(folder)]


def test_a_commit_that_is_not_accepted_is_told_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        events: list[Event] = []
        tier = ObjectStoreOffloader(MemoryStore(), emit=events.append)
        deposed = await StreamWriter.claim(tier, "orders", is_new=True)
        writer = await StreamWriter.claim(tier, "orders")
        with pytest.raises(Fenced):
            await deposed.prepare([1])
        monkeypatch.setattr(type(tier), "_base_for", lost)
        with pytest.raises(OutcomeUnknown):
            await writer.prepare([1])

        fenced, in_doubt = [event for event in events if isinstance(event, CommitFailed)]
        assert (fenced.stream, fenced.change, type(fenced.error)) == ("orders", "prepare", Fenced)
        assert (type(fenced), type(in_doubt)) == (CommitFailed, CommitInDoubt)

    async def lost(*args: object) -> None:
        raise TryAgain("no answer")

    asyncio.run(scenario())


class TestListening:
    def test_a_port_that_is_taken_is_refused_before_anything_starts(self) -> None:
        with listen("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]

            with pytest.raises(Misuse, match=rf"cannot listen on 127.0.0.1:{port}: .* choose another"):
                listen("127.0.0.1", port)

    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("9464", ("127.0.0.1", 9464)),
            ("0.0.0.0:80", ("0.0.0.0", 80)),
            ("[::1]:80", ("::1", 80)),
            ("off", None),
        ],
    )
    def test_a_port_alone_is_open_to_this_machine_only(
        self, text: str, address: tuple[str, int] | None
    ) -> None:
        assert address_from(text) == address

    @pytest.mark.parametrize("text", ["", "host", ":80", "host:", "1.1.1.1:65536", "a:-1", "a:٣"])
    def test_an_address_that_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(Misuse):
            address_from(text)


def test_the_process_goes_on_if_a_companion_fails(caplog: pytest.LogCaptureFixture) -> None:
    """And a companion that would run for ever ends with the process."""

    async def scenario() -> None:
        source, store = GrowingSource(held=[GrowingStream()]), MemoryStore()
        source.held[0].append()
        rules = FollowRules(max_lag_seconds=1.0, hold_back_seconds=0.0)
        tier = ObjectStoreOffloader(store)
        dispatcher = Dispatcher(source=source, plan_of=lambda stream: (tier, rules))

        async def fails(stopping: asyncio.Event) -> None:
            raise RuntimeError("a mistake of ours")

        async def stops_it(stopping: asyncio.Event) -> None:
            while not [each for each in dispatcher.statuses if each.committed_offset == 10]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            stopping.set()
            await asyncio.Event().wait()

        async with asyncio.timeout(60):
            await serve(dispatcher, fails, stops_it)

    asyncio.run(scenario())

    assert "a mistake of ours" in caplog.text
