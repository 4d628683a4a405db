"""Metrics of a process that follows streams, for Prometheus. docs/monitor.md says what each one means.

Values come in two ways. Those of streams, stores and disks are read where they are when somebody asks. The
counters of `COUNTERS` are fed by events.

Invariants:

- The registry is this process's own. Two services in one Python process do not mix.
- The number of series has a bound: the streams beyond `streams_max` are one row, named `OTHERS`, and no label
  has the name of an object.
- A scrape sends no request to a store or a source.
- No label is called `job` or `instance`: Prometheus gives these two to every series itself.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from offload.contracts.events import (
    CommitFailed,
    DamageFound,
    Event,
    FragmentUploaded,
    ManifestCommitted,
    UpkeepFinished,
)
from offload.contracts.metrics import BUCKET_SECONDS, RequestTimes, StoreMetrics, outcome_of
from offload.follow.rules import FollowState, FollowStatus
from offload.follow.vouched import VouchedSource
from offload.model.own_names import labels_of
from offload.service.disk import DiskWatch

__all__ = ["ServiceMetrics", "StoreCollector"]


STREAMS_MAX: Final = 1000
OTHERS: Final = "_others_"
"""The label of the streams beyond the bound, and of a stream that has this very name."""

COUNTERS: Final = {
    "offload_uploaded_bytes": ("Size of the fragments that were uploaded whole, as stored.",),
    "offload_commits": ("Commits to streams, by outcome.", "outcome"),
    "offload_damage_found": ("Damages that were found on the tier or in the source.",),
    "offload_upkeep_runs": ("Runs of jobs that keep the tier in order.", "task", "outcome"),
}
"""The counters that events feed: name, help and labels."""

GAUGES: Final = {
    "offload_upkeep_last_success_timestamp_seconds": ("When the job last ended without an error.", "task"),
    "offload_upkeep_failing": ("1 if the job's last run ended with an error.", "task"),
}
"""The gauges that events set."""

UP: Final = "up"
DOWN: Final = "down"


class ServiceMetrics:
    """The registry of one process.

    `statuses` returns the statuses of its followers, and `lost_sources` a line for each source that
    cannot be listed. `lost_tails` returns how many records deleted streams lack, and
    `unverified` for how long some fragment was not read. `stores` has the counts of requests to stores.
    """

    def __init__(
        self,
        statuses: Callable[[], Sequence[FollowStatus]],
        *,
        stores: StoreMetrics | None = None,
        asked: Sequence[VouchedSource] = (),
        disks: Sequence[DiskWatch] = (),
        lost_sources: Callable[[], Sequence[str]] = tuple,
        lost_tails: Callable[[], Mapping[str, int]] = dict,
        unverified: Callable[[], float | None] = lambda: None,
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self.registry: Final = CollectorRegistry()
        self._counters = {
            name: Counter(name, text, labels, registry=self.registry)
            for name, (text, *labels) in COUNTERS.items()
        }
        self._gauges = {
            name: Gauge(name, text, labels, registry=self.registry)
            for name, (text, *labels) in GAUGES.items()
        }
        Gauge(
            "offload_lost_sources", "Sources whose streams cannot be listed.", registry=self.registry
        ).set_function(lambda: len(lost_sources()))
        Info("offload_build", "The release that runs.", registry=self.registry).info(
            {"version": version("ledger-offload")}
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(_Streams(statuses, streams_max))
        self.registry.register(_Losses(statuses, lost_tails, streams_max))
        self.registry.register(_Unverified(unverified))
        self.registry.register(StoreCollector(stores or StoreMetrics()))
        if asked:
            self.registry.register(_Brokers(asked))
        if disks:
            self.registry.register(_Disks(disks))

    def emit(self, event: Event) -> None:
        """Count an event."""
        counters, gauges = self._counters, self._gauges
        match event:
            case FragmentUploaded():
                counters["offload_uploaded_bytes"].inc(event.entry.stored_size_bytes)
            case ManifestCommitted():
                counters["offload_commits"].labels("accepted").inc()
            case CommitFailed():
                counters["offload_commits"].labels(outcome_of(type(event.error))).inc()
            case DamageFound():
                counters["offload_damage_found"].inc()
            case UpkeepFinished():
                kind = None if event.error is None else type(event.error)
                counters["offload_upkeep_runs"].labels(event.job, outcome_of(kind)).inc()
                gauges["offload_upkeep_failing"].labels(event.job).set(kind is not None)
                if kind is None:
                    last = gauges["offload_upkeep_last_success_timestamp_seconds"]
                    last.labels(event.job).set_to_current_time()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Streams(Collector):
    """The gauges of streams, computed when they are asked for."""

    def __init__(self, statuses: Callable[[], Sequence[FollowStatus]], streams_max: int) -> None:
        self._statuses, self._streams_max = statuses, streams_max

    def describe(self) -> Iterable[Metric]:
        """Return no names, so that registering asks no follower."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of this moment."""
        rows = _rows(self._statuses(), self._streams_max)
        lag = GaugeMetricFamily(
            "offload_lag_seconds",
            "Age of the oldest record that is in the source and not on the tier.",
            labels=["stream"],
        )
        records = GaugeMetricFamily(
            "offload_lag_records", "Records that are in the source and not on the tier.", labels=["stream"]
        )
        state = GaugeMetricFamily(
            "offload_stream_state", "Number of streams in this state.", labels=["stream", "state"]
        )
        waits = GaugeMetricFamily(
            "offload_stream_waits",
            "Number of streams whose records wait for this.",
            labels=["stream", "for"],
        )
        paused = late = 0
        for name, statuses in rows.items():
            if ages := [each.lag_seconds for each in statuses if each.lag_seconds is not None]:
                lag.add_metric([name], max(ages))
            if known := [each.lag_records for each in statuses if each.lag_records is not None]:
                records.add_metric([name], sum(known))
            for what, count in Tally(each.waits for each in statuses).items():
                waits.add_metric([name, what.value], count)
            states = Tally(each.state for each in statuses)
            for each in FollowState:
                state.add_metric([name, each.value], states[each])
            stopped = [each for each in statuses if each.is_stopped]
            paused += len(stopped)
            # A paused stream is late as well, and one cause is one alert.
            late += sum(each.is_late for each in statuses if each not in stopped)
        yield from (lag, records, state, waits)
        yield GaugeMetricFamily("offload_paused_streams", "Streams that an error has paused.", value=paused)
        yield GaugeMetricFamily(
            "offload_late_streams",
            "Streams that lag beyond the alarm, whoever leads them, and that no error has paused.",
            value=late,
        )
        waiting = GaugeMetricFamily(
            "offload_waiting_streams", "Streams that are paused or tried again, by error.", labels=["error"]
        )
        errors = (type(each.error) for statuses in rows.values() for each in statuses if each.error)
        for outcome, count in Tally(map(outcome_of, errors)).items():
            waiting.add_metric([outcome], count)
        yield waiting


class _Losses(Collector):
    """The gaps of streams, computed when they are asked for."""

    def __init__(
        self,
        statuses: Callable[[], Sequence[FollowStatus]],
        lost_tails: Callable[[], Mapping[str, int]],
        streams_max: int,
    ) -> None:
        self._statuses, self._lost_tails, self._streams_max = statuses, lost_tails, streams_max

    def describe(self) -> Iterable[Metric]:
        """Return no names, as above."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers of this moment. A stream whose gaps are not known yet has none."""
        # The tier has them, so a restart does not count them twice, and the counter needs no events.
        lost = CounterMetricFamily(
            "offload_lost_records",
            "Records that the source deleted before they were copied.",
            labels=["stream"],
        )
        gaps = GaugeMetricFamily(
            "offload_gaps",
            "Places at which records of the stream are missing on the tier.",
            labels=["stream"],
        )
        found: dict[str, tuple[int, int]] = {}
        statuses, tails = self._statuses(), self._lost_tails()
        shown = labels_of([*(each.stream for each in statuses), *tails])

        def add(stream: str, missing: int, records: int) -> None:
            name = label_of(shown[stream])
            name = name if name in found or len(found) < self._streams_max else OTHERS
            before = found.get(name, (0, 0))
            found[name] = before[0] + missing, before[1] + records

        for each in statuses:
            if each.gaps is not None and each.lost_records is not None:
                add(each.stream, each.gaps, each.lost_records)
        for stream, records in tails.items():
            add(stream, 1, records)
        for name, (missing, records) in found.items():
            gaps.add_metric([name], missing)
            lost.add_metric([name], records)
        yield from (lost, gaps)


class _Unverified(Collector):
    """The age of the fragment that was read the longest ago, computed when it is asked for."""

    def __init__(self, unverified: Callable[[], float | None]) -> None:
        self._unverified = unverified

    def describe(self) -> Iterable[Metric]:
        """Return no names, as above."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge of this moment. There is none as long as it is not known."""
        if (seconds := self._unverified()) is not None:
            yield GaugeMetricFamily(
                "offload_oldest_unverified_seconds",
                "Time for which some fragment of the tier was not read by a verify, at most.",
                value=seconds,
            )


class StoreCollector(Collector):
    """The counts of requests to stores."""

    def __init__(self, stores: StoreMetrics) -> None:
        self._stores = stores

    def describe(self) -> Iterable[Metric]:
        """Return no names, as above."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the counters and histograms of this moment."""
        stores, labels = self._stores, ["operation", "outcome"]
        requests = CounterMetricFamily(
            "offload_store_requests", "Requests to stores that have ended, repeats included.", labels=labels
        )
        seconds = HistogramMetricFamily(
            "offload_store_request_seconds", "Time of a request to a store.", labels=labels
        )
        for key, times in stores.times.items():
            requests.add_metric(key, times.count)
            seconds.add_metric(key, _buckets(times), times.seconds)
        retries = CounterMetricFamily(
            "offload_store_retries",
            "Requests that were repeated, by the outcome of the attempt before.",
            labels=labels,
        )
        for key, count in stores.retries.items():
            retries.add_metric(key, count)
        moved = CounterMetricFamily(
            "offload_store_bytes", "Bytes sent (up) and received (down).", labels=["operation", "direction"]
        )
        for operation, size_bytes in stores.moved.items():
            moved.add_metric([operation, DOWN if operation == "get" else UP], size_bytes)
        first = HistogramMetricFamily(
            "offload_store_first_byte_seconds", "Time to the head of a reply to get."
        )
        first.add_metric([], _buckets(stores.first_bytes), stores.first_bytes.seconds)
        yield from (requests, seconds, retries, moved, first)
        yield CounterMetricFamily(
            "offload_store_shared_reads",
            "Requests get that sent nothing: their bytes came with the reply to an earlier one.",
            value=stores.reads_shared,
        )
        yield CounterMetricFamily(
            "offload_store_mended_replies",
            "Damaged replies for which a second reply was sound.",
            value=stores.replies_mended,
        )


def _buckets(times: RequestTimes) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each counts all times up to its end."""
    ends = map(floatToGoString, (*BUCKET_SECONDS, float("inf")))
    return list(zip(ends, accumulate(times.counts), strict=True))


class _Brokers(Collector):
    """The gauges of brokers that are asked, computed when they are asked for."""

    def __init__(self, asked: Sequence[VouchedSource]) -> None:
        self._asked = asked

    def describe(self) -> Iterable[Metric]:
        """Return no names, as above."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of this moment."""
        yield GaugeMetricFamily(
            "offload_broker_up",
            "1 if the broker answered last, and 0 if not.",
            value=all(each.broker.error is None for each in self._asked),
        )
        yield GaugeMetricFamily(
            "offload_held_back_streams",
            "Streams that the broker did not vouch for when it was asked last.",
            value=sum(len(each.held_back) for each in self._asked),
        )


class _Disks(Collector):
    """The gauges of the disks of sources and of a tier, as they were measured last."""

    def __init__(self, disks: Sequence[DiskWatch]) -> None:
        self._disks = disks

    def describe(self) -> Iterable[Metric]:
        """Return no names, as above."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges of the last look."""
        for of in sorted({disk.of for disk in self._disks}):
            free = GaugeMetricFamily(
                f"offload_{of}_disk_free_bytes", f"Space on the {of}'s disk that is free.", labels=["folder"]
            )
            size = GaugeMetricFamily(
                f"offload_{of}_disk_size_bytes", f"Size of the {of}'s disk.", labels=["folder"]
            )
            for disk in self._disks:
                if disk.of == of and disk.free_size_bytes is not None and disk.size_bytes is not None:
                    free.add_metric([label_of(str(disk.folder))], disk.free_size_bytes)
                    size.add_metric([label_of(str(disk.folder))], disk.size_bytes)
            yield from (free, size)


def _rows(statuses: Sequence[FollowStatus], streams_max: int) -> dict[str, list[FollowStatus]]:
    """Return the statuses by label: one for each stream, and the rest together."""
    rows: dict[str, list[FollowStatus]] = {}
    labels = labels_of(status.stream for status in statuses)
    for status in statuses:
        name = label_of(labels[status.stream])
        rows.setdefault(name if len(rows) < streams_max else OTHERS, []).append(status)
    return rows


def label_of(stream: str) -> str:
    """Escape what has no bytes in UTF-8: one such name would fail every scrape. The library does the rest."""
    return stream.encode("utf-8", "backslashreplace").decode()
