"""Tests of spans and times of requests: who asks gets them, and nobody else pays or imports anything."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from growing_source import GrowingStream
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from offload import ManagedLedger, Session, StreamReader
from offload.contracts.metrics import StoreMetrics
from offload.contracts.store import Body
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules
from offload.ground.env import Env
from offload.ground.errors import Throttled
from offload.log.memory_log import MemoryLog
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Return the spans that end while the test runs. The provider of the process stays as it is."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def parents(found: tuple[ReadableSpan, ...]) -> set[tuple[str, str]]:
    """Return the names of spans with those of their parents, up to the first."""
    names = {span.context.span_id: span.name for span in found if span.context}
    return {(span.name, names.get(span.parent.span_id, "?") if span.parent else "") for span in found}


def test_requests_are_children_of_the_turn_or_the_read_that_sent_them(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async def scenario() -> None:
        now = 0.0
        stream = GrowingStream()
        stream.append(3)
        async with Session() as session:
            tier = session.tier(str(tmp_path / "tier"))
            follower = Follower(
                source=stream,
                offloader=tier,
                rules=FollowRules(max_lag_seconds=1.0, hold_back_seconds=0.0),
                env=Env(monotonic=lambda: now),
            )
            for _ in range(6):
                now += 0.5
                await follower.step()
            copied = parents(spans.get_finished_spans())
            spans.clear()
            reader = await StreamReader.open(tier, "orders")
            records = [batch async for batch in reader.messages(0)]
            read = parents(spans.get_finished_spans())

        assert records
        assert ("follow", "") in copied
        assert {("store put", "follow"), ("store create", "follow"), ("store list", "follow")} <= copied
        assert ("read", "") in read
        assert ("store get", "read") in read

    asyncio.run(scenario())


def test_requests_of_a_managed_ledger_are_children_of_its_offload_or_its_read(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Session() as session:
            tier = session.tier(str(tmp_path / "tier"))
            ledger = await ManagedLedger.open(MemoryLog("orders"), tier)
            await ledger.append([b"one", b"two"])
            await ledger.roll()
            await ledger.offload_prefix(2)
            spans.clear()  # those of the first append, which looks at the tier
            await ledger.append([b"three"])
            await ledger.roll()
            await ledger.offload_prefix(3)
            await ledger.log.delete(ledger.log.ledgers[0].ledger_id)
            async for _ in ledger.read(0):
                pass
            await ledger.close()

    asyncio.run(scenario())

    found = parents(spans.get_finished_spans())
    assert {("offload", ""), ("store put", "offload"), ("store create", "offload"), ("read", "")} <= found
    (offloaded,) = [span for span in spans.get_finished_spans() if span.name == "offload"]
    assert offloaded.attributes == {"offload.stream": "orders", "offload.until": 3}


def test_a_failed_request_is_a_span_with_its_error_and_is_observed(spans: InMemorySpanExporter) -> None:
    class Slow(MemoryStore):
        async def create(self, key: str, data: bytes) -> None:
            raise Throttled("slow down")

    seen: list[tuple[str, str, float]] = []
    metrics, ticks = StoreMetrics(observe=lambda *each: seen.append(each)), iter(range(100))
    store = MeteredStore(Slow(), metrics, clock=ticks.__next__, is_traced=True)

    async def scenario() -> None:
        with pytest.raises(Throttled):
            await store.create("k", b"")
        await store.put("a", Body.of(b"1"))
        async for _ in store.list(""):
            next(ticks)  # the consumer's time

    asyncio.run(scenario())

    assert seen == [("create", "throttled", 1), ("put", "ok", 1), ("list", "ok", 2)]
    failed = spans.get_finished_spans()[0]
    assert (failed.name, failed.status.is_ok, failed.events[0].name) == ("store create", False, "exception")


def test_a_listing_that_its_consumer_ends_is_ok() -> None:
    seen: list[str] = []
    metrics = StoreMetrics(observe=lambda operation, outcome, seconds: seen.append(outcome))
    store = MeteredStore(MemoryStore(objects={"a": b"", "b": b""}), metrics)

    async def scenario() -> None:
        rows = store.list("")
        async for _ in rows:
            break
        await rows.aclose()  # type: ignore[attr-defined]

    asyncio.run(scenario())

    assert seen == ["ok"]


def test_the_core_does_not_import_opentelemetry() -> None:
    script = (
        "import sys, offload.service.observability, offload.store.metrics; "
        "print('opentelemetry' in sys.modules)"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "False"
