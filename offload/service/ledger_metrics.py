"""Metrics of the managed ledgers of a process, for Prometheus. docs/monitor.md says what each one means.

    metrics = LedgerMetrics(lambda: ledgers.ledgers)
    async with ManagedLedgers(tier, emit=metrics.emit) as ledgers:
        ...
        metrics.text()

Invariants:

- The number of rows has a bound. A ledger has a row of its own after its first event, for at most
  `streams_max` ledgers. All others, such as ten thousand that are idle, are one row, named `OTHERS`.
- The counts of a ledger stay in the sum over all rows: when it is closed, its counts go to `OTHERS`.
- A scrape sends no request to a store, and reads no file.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offload.contracts.events import (
    AppendsHeld,
    Event,
    LedgerRolled,
    LedgersOffloaded,
    LocalLedgerDeleted,
    StreamPaused,
)
from offload.contracts.metrics import outcome_of
from offload.managed.ledger import LedgerState, ManagedLedger
from offload.service.metrics import OTHERS, STREAMS_MAX, label_of

__all__ = ["LedgerMetrics"]


LEDGER_COUNTERS: Final = {
    "offload_ledgers_rolled": "Ledgers that were sealed.",
    "offload_ledgers_rolled_records": "Records of the ledgers that were sealed.",
    "offload_ledgers_rolled_bytes": "Size of the ledgers that were sealed.",
    "offload_ledgers_offloads": "Copies of sealed ledgers to the tier that were committed.",
    "offload_ledgers_offloaded_records": "Records that were committed to the tier.",
    "offload_ledgers_offloaded_bytes": "Size of what was committed to the tier, as stored.",
    "offload_ledgers_offload_seconds": "Time that these copies took.",
    "offload_ledgers_deleted": "Local copies that were deleted.",
    "offload_ledgers_deleted_bytes": "Size of the local copies that were deleted.",
    "offload_ledgers_appends_held": "Times that a local log passed its bound.",
    "offload_ledgers_pauses": "Times that a ledger began to wait for a person, or was fenced.",
}
"""The counters that events feed, each with its help. All have the label `stream`."""

PAUSED: Final = "paused"
"""The state of a ledger that is open, and has an error that lasts."""


class LedgerMetrics(Collector):
    """The registry of the managed ledgers of a process.

    `ledgers` returns those that are open, as `ManagedLedgers.ledgers` does. Call `emit` for each event of
    theirs. A `registry` of the caller's gets these metrics too.
    """

    def __init__(
        self,
        ledgers: Callable[[], Mapping[str, ManagedLedger]],
        *,
        registry: CollectorRegistry | None = None,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self.registry: Final = registry or CollectorRegistry()
        self._ledgers, self._streams_max = ledgers, streams_max
        self._counts: dict[str, Tally[str]] = {}
        """The counts of each stream that has a row of its own, and of `OTHERS`."""
        self.registry.register(self)

    def emit(self, event: Event) -> None:
        """Count an event."""
        match event:
            case LedgerRolled():
                self._count(event.stream, rolled=1)
                self._count(event.stream, rolled_records=event.records, rolled_bytes=event.size_bytes)
            case LedgersOffloaded():
                records = event.next_offset - event.first_offset
                self._count(event.stream, offloads=1, offload_seconds=event.seconds)
                self._count(event.stream, offloaded_records=records, offloaded_bytes=event.stored_size_bytes)
            case LocalLedgerDeleted():
                self._count(event.stream, deleted=1, deleted_bytes=event.size_bytes)
            case AppendsHeld():
                self._count(event.stream, appends_held=1)
            case StreamPaused():
                self._count(event.stream, pauses=1)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        """Return no names, so that registering asks no ledger."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        ledgers = self._ledgers()
        self._forget_all_but(ledgers)
        yield from self._counters()
        yield from self._gauges(ledgers)

    def _count(self, stream: str, **amounts: float) -> None:
        is_known = stream in self._counts
        has_room = len(self._counts.keys() - {OTHERS}) < self._streams_max
        counts = self._counts.setdefault(stream if is_known or has_room else OTHERS, Tally())
        for name, amount in amounts.items():
            counts[f"offload_ledgers_{name}"] += amount  # type: ignore[assignment]  # seconds are no integers

    def _forget_all_but(self, ledgers: Mapping[str, ManagedLedger]) -> None:
        """Give the counts of ledgers that were closed to the others."""
        for stream in [each for each in self._counts if each not in ledgers and each != OTHERS]:
            counts = self._counts.pop(stream)
            self._counts.setdefault(OTHERS, Tally()).update(counts)

    def _counters(self) -> Iterator[Metric]:
        for name, text in LEDGER_COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=["stream"])
            for stream, counts in self._counts.items():
                family.add_metric([label_of(stream)], counts[name])
            yield family

    def _gauges(self, ledgers: Mapping[str, ManagedLedger]) -> Iterator[Metric]:
        size = GaugeMetricFamily("offload_ledgers_local_bytes", "Size of the local log.", labels=["stream"])
        lag = GaugeMetricFamily(
            "offload_ledgers_lag_records",
            "Records of the log that the tier is not known to have, the open ledger's included.",
            labels=["stream"],
        )
        sizes, lags = Tally[str](), Tally[str]()
        states, errors = Tally[str](), Tally[str]()
        for name, ledger in ledgers.items():
            row = name if name in self._counts else OTHERS
            sizes[row] += ledger.size_bytes
            lags[row] += ledger.lag_records
            states[_state_of(ledger)] += 1
            if ledger.error is not None:
                errors[outcome_of(type(ledger.error))] += 1
        for row in sizes:
            size.add_metric([label_of(row)], sizes[row])
            lag.add_metric([label_of(row)], lags[row])
        yield from (size, lag)
        state = GaugeMetricFamily(
            "offload_ledgers_state", "Number of ledgers in this state.", labels=["state"]
        )
        for each in (LedgerState.OPEN.value, PAUSED, LedgerState.FENCED.value):
            state.add_metric([each], states[each])
        waiting = GaugeMetricFamily(
            "offload_ledgers_waiting",
            "Ledgers that are paused, fenced or tried again, by error.",
            labels=["error"],
        )
        for outcome, count in errors.items():
            waiting.add_metric([outcome], count)
        yield from (state, waiting)


def _state_of(ledger: ManagedLedger) -> str:
    return PAUSED if ledger.state is LedgerState.OPEN and ledger.is_paused else ledger.state.value
