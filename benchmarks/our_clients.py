"""A sync or a sequential read by `offload`, in a process of its own, so that it can be measured.

    python benchmarks/our_clients.py sync|read AT_ONCE < task.json

The task has the `url` and the `options` of a tier, the folder `source` of a stream, and the `size_bytes` of
its segments. A sync needs an empty place. The program prints the seconds and the CPU
seconds of the transfer alone, from the opened tier on, because opening imports the SDK. It also prints the
counters of `Session.metrics`. `requests` are those that were sent, repeats included; a listing counts as one.
`moved` is bytes received for each byte delivered, or sent for each byte of the stream.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from stopwatch import Stopwatch

from offload import Plugins, Session, StreamReader, TierOptions, sync
from offload.contracts.metrics import BUCKET_SECONDS, RequestTimes, StoreMetrics

Task = dict[str, Any]
Done = dict[str, Any]


async def by_sync(task: Task, at_once: int) -> Done:
    """Sync as `offload sync` does."""
    how = TierOptions(uploads_max=at_once)
    async with (
        Session(plugins=Plugins.find()) as session,
        session.tier(task["url"], storage_options=task["options"], options=how) as tier,
    ):
        watch = Stopwatch()
        async for report in sync(session.source(f"rabbitmq://{task['source']}"), tier):
            if report.error:
                raise report.error
    return watch.read() | _counted(session.metrics, session.metrics.bytes_put, task["size_bytes"])


async def by_read(task: Task, at_once: int) -> Done:
    """Read every chunk of the stream with all checks, and drop it."""
    async with (
        Session(plugins=Plugins.find()) as session,
        session.tier(task["url"], storage_options=task["options"]) as tier,
    ):
        watch = Stopwatch()
        reader = await StreamReader.open(tier, "stream", in_flight=at_once)
        windows = reader.windows(0)
        size_bytes = 0
        async for window in windows:
            size_bytes += len(window.data)
        await windows.aclose()
        done = watch.read()
        assert size_bytes == reader.manifest.entries["data_size_bytes"].sum()
        return done | _counted(session.metrics, session.metrics.bytes_got, size_bytes)


def _counted(metrics: StoreMetrics, moved_bytes: int, size_bytes: int) -> Done:
    return {
        "size_bytes": size_bytes,
        "requests": metrics.requests.total() - metrics.reads_shared,
        "moved": moved_bytes / size_bytes,
        "calls": dict(metrics.requests),
        "shared_reads": metrics.reads_shared,
        "retries": metrics.retries.total(),
        "throttled": metrics.throttled,
        "outcomes": {" ".join(key): times.count for key, times in sorted(metrics.times.items())},
        "first_byte_p50_seconds": _quantile(metrics.first_bytes, 0.5),
        "first_byte_p99_seconds": _quantile(metrics.first_bytes, 0.99),
    }


def _quantile(times: RequestTimes, share: float) -> float | str | None:
    """Return the upper end of the bucket that has the quantile."""
    left = share * times.count
    for end, number in zip((*BUCKET_SECONDS, "more"), times.counts, strict=True):
        left -= number
        if number and left <= 0:
            return end
    return None


JOBS = {"sync": by_sync, "read": by_read}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(JOBS[sys.argv[1]](json.load(sys.stdin), int(sys.argv[2])))))
