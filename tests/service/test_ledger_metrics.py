"""Metrics of managed ledgers: what is counted, and how many rows there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from managed_world import STREAM, World, fill, run
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from offload.contracts.events import AppendsHeld, LedgerRolled
from offload.log.memory_log import MemoryLog
from offload.managed.ledger import ManagedLedger
from offload.managed.ledgers import ManagedLedgers
from offload.managed.policy import LedgerPolicy
from offload.service.ledger_metrics import LEDGER_COUNTERS, LedgerMetrics
from offload.service.metrics import OTHERS
from offload.store.faults import Fault, Rule

LAG = LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=60, roll_seconds=None)


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Return the values by name and values of labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_each_number_is_that_of_the_ledger_and_of_its_events() -> None:
    async def scenario(world: World) -> None:
        ledgers: dict[str, ManagedLedger] = {}
        metrics = LedgerMetrics(lambda: ledgers)

        def emit(event: Any) -> None:
            world.events.append(event)
            metrics.emit(event)

        ledger = await ManagedLedger.open(
            MemoryLog(STREAM, disk=world.disk), world.tier(), policy=LAG, env=world.env(), emit=emit
        )
        ledgers[STREAM] = ledger
        await fill(ledger, 10, 10, 5)
        assert samples(metrics.text())["offload_ledgers_lag_records", STREAM] == 25
        await ledger.step()
        world.clock.now += 61
        await ledger.step()

        found = samples(metrics.text())

        assert found["offload_ledgers_rolled_total", STREAM] == 2
        assert found["offload_ledgers_rolled_records_total", STREAM] == 20
        assert found["offload_ledgers_offloads_total", STREAM] == 1
        assert found["offload_ledgers_offloaded_records_total", STREAM] == 20
        assert found["offload_ledgers_offloaded_bytes_total", STREAM] > 200
        assert found["offload_ledgers_deleted_total", STREAM] == 2
        assert found["offload_ledgers_deleted_bytes_total", STREAM] > 200
        assert found["offload_ledgers_lag_records", STREAM] == 5
        assert found["offload_ledgers_local_bytes", STREAM] == ledger.size_bytes
        assert found["offload_ledgers_state", "open"] == 1
        world.store.rules = [Rule(Fault.DENY)]
        await fill(ledger, 0, 1)
        await ledger.step()
        assert samples(metrics.text())["offload_ledgers_waiting", "outcome_unknown"] == 1
        world.clock.now += 10
        await ledger.step()
        found = samples(metrics.text())
        assert found["offload_ledgers_pauses_total", STREAM] == 1
        assert (found["offload_ledgers_state", "paused"], found["offload_ledgers_state", "open"]) == (1, 0)
        assert found["offload_ledgers_waiting", "denied"] == 1
        assert {f"{name}_total" for name in LEDGER_COUNTERS} < {name for name, *_ in found}

    run(scenario)


def test_the_page_has_every_metric_of_managed_ledgers() -> None:
    metrics = LedgerMetrics(dict)
    metrics.emit(LedgerRolled(stream=STREAM, ledger_id=0, records=1, size_bytes=1))
    page = (Path(__file__).parents[2] / "docs/monitor.md").read_text(encoding="utf-8")

    for family in text_string_to_metric_families(metrics.text().decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert f"`{name}{{" in page


def test_idle_ledgers_are_one_row_and_a_scrape_sends_no_request() -> None:
    async def scenario(world: World) -> None:
        metrics = LedgerMetrics(lambda: ledgers.ledgers)
        async with ManagedLedgers(world.tier(), policy=LAG, env=world.env(), emit=metrics.emit) as ledgers:
            for rank in range(100):
                log = MemoryLog(f"idle-{rank}")
                await log.append([b"x"], timestamp_ms=1)
                await ledgers.open(log)
            busy = await ledgers.open(MemoryLog("busy"))
            await fill(busy, 3, 2)
            before = len(world.store.calls)

            found = samples(metrics.text())

            assert len(world.store.calls) == before
            rows = {key[1] for key in found if key[0] == "offload_ledgers_lag_records"}
            assert rows == {"busy", OTHERS}
            assert found["offload_ledgers_lag_records", OTHERS] == 100
            assert found["offload_ledgers_state", "open"] == 101
            assert len(found) < 60

    run(scenario)


def test_streams_beyond_the_bound_and_closed_ones_are_counted_with_the_others() -> None:
    open_ones: dict[str, Any] = {}
    metrics = LedgerMetrics(lambda: open_ones, streams_max=2)
    world = World()

    async def opened(_: World) -> None:
        for name in ("a", "b", "c", "d"):
            open_ones[name] = await ManagedLedger.open(MemoryLog(name), world.tier(), env=world.env())

    run(opened)
    for name in ("a", "b", "c", "d", "c", "a"):
        metrics.emit(LedgerRolled(stream=name, ledger_id=0, records=5, size_bytes=50))
    metrics.emit(AppendsHeld(stream="b", size_bytes=2, size_bytes_max=1))

    found = samples(metrics.text())
    assert {key: value for key, value in found.items() if key[0] == "offload_ledgers_rolled_total"} == {
        ("offload_ledgers_rolled_total", "a"): 2,
        ("offload_ledgers_rolled_total", "b"): 1,
        ("offload_ledgers_rolled_total", OTHERS): 3,
    }
    del open_ones["a"]
    metrics.text()
    metrics.emit(LedgerRolled(stream="d", ledger_id=0, records=5, size_bytes=50))

    found = samples(metrics.text())

    assert found["offload_ledgers_rolled_total", OTHERS] == 5
    assert found["offload_ledgers_rolled_total", "d"] == 1  # it has the room that a left
    assert found["offload_ledgers_appends_held_total", "b"] == 1
    assert sum(value for key, value in found.items() if key[0] == "offload_ledgers_rolled_total") == 7


@pytest.mark.parametrize("name", [OTHERS, 'a"b\n', "\udcff"])
def test_a_stream_of_any_name_has_a_row(name: str) -> None:
    registry = CollectorRegistry()
    metrics = LedgerMetrics(dict, registry=registry)

    metrics.emit(LedgerRolled(stream=name, ledger_id=0, records=1, size_bytes=1))

    assert samples(generate_latest(registry))["offload_ledgers_rolled_total", OTHERS] == 1
