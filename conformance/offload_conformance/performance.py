"""Measurements of a store: reported, and never part of the verdict.

There are two tables. Latencies: one caller, one call after the other, small objects. Throughputs: larger
objects, by one caller and by several at once. Each row is in the report before the next one begins.

Invariants: a row starts no call after its share of the time, and no call runs on after all of the time. The
bytes written and read are limited by `MeasureBounds`. A call that fails ends its row, and the row has the
error. If the measurement is interrupted, complete rows are kept.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from offload.contracts.store import Body, ObjectStore, Span
from offload.ground.errors import Misuse, OffloadError

MeasureDocument = dict[str, Any]
Clock = Callable[[], float]
MeasuredCall = Callable[[int], Awaitable[object]]
Row = Callable[[float], Awaitable[None]]

MIB: Final = 1024 * 1024
AT_ONCE: Final = (1, 4, 16)
PARTS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureBounds:
    """Limits of a measurement. Each row makes at least one call, so a large object is moved at least once."""

    seconds_max: float = 60
    calls_max: int = 200
    """The largest number of calls in a row of latencies."""

    small_size_bytes: int = 1000
    large_size_bytes: int = 4 * MIB
    row_size_bytes_max: int = 64 * MIB
    """The largest number of bytes in a row of throughputs."""


async def measure(
    store: ObjectStore,
    into: MeasureDocument,
    *,
    clock: Clock,
    bounds: MeasureBounds = MeasureBounds(),
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Fill `into` with the field `performance` of a report. Objects that it writes stay in the store."""
    began = clock()
    into.update(seconds_max=bounds.seconds_max, duration_seconds=0.0, latency=[], throughput=[])
    measuring = _Measuring(store, into, clock, bounds, random.Random(seed))
    rows = measuring.rows()
    for done, row in enumerate(rows):
        tell(f"measuring, {done} of {len(rows)}")
        now = clock()
        await row(now + (began + bounds.seconds_max - now) / (len(rows) - done))
        into["duration_seconds"] = round(clock() - began, 3)


class _Measuring:
    """The rows of one measurement. Each is a function of the time after which it starts no call."""

    def __init__(
        self,
        store: ObjectStore,
        into: MeasureDocument,
        clock: Clock,
        bounds: MeasureBounds,
        chance: random.Random,
    ) -> None:
        self._store, self._into, self._clock, self._bounds = store, into, clock, bounds
        self._end = clock() + bounds.seconds_max
        able, most = store.capabilities, bounds.row_size_bytes_max
        large = min(bounds.large_size_bytes, able.put_size_bytes_max or most)
        self._small, self._large = chance.randbytes(bounds.small_size_bytes), chance.randbytes(large)
        self._objects = max(most // large, AT_ONCE[-1])
        self._written = 1
        self._part_size_bytes = max(min(MIB, able.part_size_bytes_max or MIB), able.part_size_bytes_min)
        self._parts = min(most // self._part_size_bytes, able.parts_max or PARTS_MAX, PARTS_MAX)

    def rows(self) -> list[Row]:
        """Return the rows in an order in which each finds the objects that it reads, the slowest last."""
        first, *others = AT_ONCE
        uploads = AT_ONCE if self._store.capabilities.multipart else ()
        return [
            self._throughput("put", first, self._put_large),
            *(self._latency(*each) for each in self._small_calls()),
            *(self._throughput("put", at_once, self._put_large) for at_once in others),
            *(self._throughput("get", at_once, self._get_large) for at_once in AT_ONCE),
            *(self._upload(at_once) for at_once in uploads),
        ]

    def _small_calls(self) -> list[tuple[str, int, MeasuredCall]]:
        store, small, size = self._store, self._small, len(self._small)
        middle = Span(len(self._large) // 2, size)

        async def listed(_: int) -> None:
            async for _row in store.list("put/"):
                pass

        return [
            ("put", size, lambda n: store.put(f"put/{n:04}", Body.of(small))),
            ("create", size, lambda n: store.create(f"create/{n:04}", small)),
            ("get", size, lambda _: store.get("put/0000")),
            ("get_range", size, lambda _: store.get("large/0000", middle)),
            ("list", 0, listed),
            ("delete", 0, lambda n: store.delete([f"put/{n:04}"])),
        ]

    async def _put_large(self, number: int) -> None:
        await self._store.put(f"large/{number:04}", Body.of(self._large))
        self._written = max(self._written, number + 1)

    async def _get_large(self, number: int) -> None:
        await self._store.get(f"large/{number % self._written:04}")

    def _latency(self, operation: str, size_bytes: int, call: MeasuredCall) -> Row:
        async def row(until: float) -> None:
            seconds: list[float] = []
            found: MeasureDocument = {"operation": operation, "size_bytes": size_bytes}
            async with self._row("latency", found):
                for number in range(self._bounds.calls_max):
                    began = self._clock()
                    await call(number)
                    now = self._clock()
                    seconds.append(now - began)
                    if now >= until:
                        break
            found |= {"calls": len(seconds), **spread(seconds)}

        return row

    def _throughput(self, operation: str, at_once: int, call: MeasuredCall) -> Row:
        async def row(until: float) -> None:
            found: MeasureDocument = {
                "operation": operation,
                "size_bytes": len(self._large),
                "at_once": at_once,
            }
            began, done = self._clock(), _Count()
            async with self._row("throughput", found):
                await self._together(at_once, self._objects, call, until, done)
            found |= self._rate(done.calls, len(self._large), began)

        return row

    def _upload(self, at_once: int) -> Row:
        """Measure one upload with so many parts at once.

        It is always completed: half an object is of no use.
        """

        async def row(_: float) -> None:
            size, done = self._parts * self._part_size_bytes, _Count()
            found: MeasureDocument = {"operation": "upload", "size_bytes": size, "at_once": at_once}
            began = self._clock()
            async with self._row("throughput", found):
                if self._parts < 2:
                    raise Misuse(f"a part has {self._part_size_bytes} bytes, which is too large to measure")
                await self._one_upload(at_once)
                done.calls = 1
            found |= self._rate(done.calls, size, began)

        return row

    async def _one_upload(self, at_once: int) -> None:
        part = (self._large * (self._part_size_bytes // len(self._large) + 1))[: self._part_size_bytes]
        upload = await self._store.start_upload("large/upload")
        try:
            await self._together(
                at_once, self._parts, lambda n: upload.put_part(n + 1, part), self._end, _Count()
            )
            await upload.complete()
        except BaseException:
            with suppress(OffloadError):
                await upload.abort()
            raise

    @asynccontextmanager
    async def _row(self, table: str, found: MeasureDocument) -> AsyncIterator[None]:
        """Run a row within the time limit. Add it to the report, with the `error` that ended it if any."""
        found["error"] = ""
        try:
            async with asyncio.timeout(max(self._end - self._clock(), 0)) as scope:
                yield
        except Exception as error:  # noqa: BLE001 - a stranger's store may raise anything
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            found["error"] = "time limit reached" if scope.expired() else f"{type(error).__name__}: {error}"
        self._into[table].append(found)

    async def _together(
        self, at_once: int, calls: int, call: MeasuredCall, until: float, done: _Count
    ) -> None:
        numbers = iter(range(calls))

        async def work() -> None:
            for number in numbers:
                await call(number)
                done.calls += 1
                if self._clock() >= until:
                    return

        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(work())

    def _rate(self, calls: int, size_bytes: int, began: float) -> MeasureDocument:
        seconds = self._clock() - began
        rate = round(calls * size_bytes / seconds) if calls and seconds > 0 else None
        return {"calls": calls, "duration_seconds": round(seconds, 6), "bytes_per_second": rate}


@dataclass(slots=True)
class _Count:
    calls: int = 0


def spread(seconds: Sequence[float]) -> MeasureDocument:
    """Return the median, 99th percentile and maximum. Each is a measured time (the nearest rank), or None."""
    in_order = sorted(seconds)

    def rank(share: float) -> float | None:
        return round(in_order[math.ceil(share * len(in_order)) - 1], 6) if in_order else None

    return {"median_seconds": rank(0.5), "p99_seconds": rank(0.99), "max_seconds": rank(1)}
