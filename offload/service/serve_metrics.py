"""Health and metrics of a process that serves streams. docs/monitor.md says what each metric means.

Everything here is read from memory. No request is sent to a store or a source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final

from prometheus_client import CollectorRegistry, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offload.contracts.listener import Listener, ListenerCounts
from offload.contracts.metrics import StoreMetrics
from offload.service.metrics import StoreCollector

__all__ = ["ServeHealth", "ServeMetrics"]

_Value = Callable[[ListenerCounts], int]

SERVE_GAUGES: Final[dict[str, tuple[str, _Value]]] = {
    "offload_serve_connections": ("Connections that are open.", lambda counts: counts.connections),
    "offload_serve_subscriptions": ("Subscriptions of consumers.", lambda counts: counts.subscriptions),
    "offload_serve_problems": ("Things that an operator must know.", lambda counts: len(counts.problems)),
}
SERVE_COUNTERS: Final[dict[str, tuple[str, _Value]]] = {
    "offload_serve_accepted": ("Connections that were accepted.", lambda counts: counts.accepted),
    "offload_serve_refused": ("Connections that were refused.", lambda counts: counts.refused),
    "offload_serve_chunks": ("Chunks that were delivered.", lambda counts: counts.delivered_chunks),
    "offload_serve_bytes": ("Size of the chunks that were delivered.", lambda counts: counts.delivered_bytes),
    "offload_serve_damaged": ("Subscriptions that damage has ended.", lambda counts: counts.damaged),
}


class ServeHealth:
    """The health of a process that serves, as the routes show it."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def problems(self) -> list[str]:
        """Return nothing: a process that answers is ready. Damage of one stream must not stop the others."""
        return []

    def notes(self) -> list[str]:
        """Return what an operator must know."""
        return [note for each in self._listeners for note in each.counts.problems.values()]

    def summary(self) -> str:
        """Return a sentence on what is served now."""
        connections = sum(each.counts.connections for each in self._listeners)
        subscriptions = sum(each.counts.subscriptions for each in self._listeners)
        return f"serves connections: {connections}, subscriptions: {subscriptions}"

    def as_json(self) -> dict[str, Any]:
        """Return everything for `/status`."""
        values = SERVE_GAUGES | SERVE_COUNTERS
        return {
            "version": version("ledger-offload"),
            "ready": True,
            "summary": self.summary(),
            "notes": self.notes(),
            "listeners": [
                {"url": each.url, **{name: value(each.counts) for name, (_, value) in values.items()}}
                for each in self._listeners
            ],
        }


class ServeMetrics(Collector):
    """The registry of one process."""

    def __init__(self, listeners: Sequence[Listener], stores: StoreMetrics) -> None:
        self._listeners = listeners
        self.registry: Final = CollectorRegistry()
        Info("offload_build", "The release that runs.", registry=self.registry).info(
            {"version": version("ledger-offload")}
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(StoreCollector(stores))
        self.registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        """Return no names, so that registering asks nobody."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers of this moment."""
        for kind, rows in ((GaugeMetricFamily, SERVE_GAUGES), (CounterMetricFamily, SERVE_COUNTERS)):
            for name, (text, value) in rows.items():
                family = kind(name, text, labels=["listener"])
                for each in self._listeners:
                    family.add_metric([each.url], value(each.counts))
                yield family
