"""Cold seeks: requests, bytes and time from nothing to the first message.

    python benchmarks/seeks.py [--fragments 1000 10000000] [--added-ms 0 50] [--seeks 20] [--json]

The real code runs over a bucket in memory, with a stream of made-up entries (`made_stream`). Each seek opens
the tier anew, as a new process does, opens a reader, finds its place, and takes one message, which is
compared. `--added-ms` is slept before each request. Fragments have one small chunk, so bytes are those of
roots, groups and indexes: a real seek fetches a window of up to 256 KiB more.

    by offset, by time, last   the position that is looked up
    known                      by offset, with a reader of the same stream opened a moment before, and
                               `max_staleness_seconds`

Requests are the most of all seeks, bytes and milliseconds are medians. `groups` are those of the GETs that
load a group: one for each level at most. 10,000,000 fragments take some minutes and 2 GiB of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from made_stream import RECORDS, STREAM, Scene

from offload.model.position import AtEdge, AtOffset, AtTime, Position
from offload.native.offloader import ObjectStoreOffloader
from offload.read.reader import StreamReader
from offload.read.watch import StreamWatch
from offload.store.faults import FaultyStore

STALENESS_SECONDS: Final = 3600.0


def main() -> None:
    """Parse arguments, seek, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fragments", type=int, nargs="+", default=[10**3, 10**7])
    parser.add_argument("--added-ms", type=float, nargs="+", default=[0, 50])
    parser.add_argument("--seeks", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(_all(arguments))
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    heads = [*rows[0]]
    for line in (heads, ["---"] * len(heads), *([str(row[head]) for head in heads] for row in rows)):
        print(f"| {' | '.join(line).replace('_', ' ')} |")


async def _all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for fragments in arguments.fragments:
        scene = await Scene.grown(fragments)
        for added_ms in arguments.added_ms:
            for name, seek in SEEKS.items():
                # The same places for each row, so that rows can be compared.
                places = random.Random(1)
                ends = [places.randrange(fragments * RECORDS) for _ in range(arguments.seeks)]
                done = [await _measured(scene, added_ms / 1000, seek, offset) for offset in ends]
                rows.append(
                    {"seek": name, "fragments": fragments, "added_ms": added_ms}
                    | {head: max(each[head] for each in done) for head in ("list", "get", "groups")}
                    | {head: statistics.median(each[head] for each in done) for head in ("bytes", "ms")}
                )
    return rows


Seek = Callable[[ObjectStoreOffloader, int, Callable[[], None]], Awaitable[None]]


async def _measured(scene: Scene, added_seconds: float, seek: Seek, offset: int) -> dict[str, Any]:
    async def slow(operation: str, key: str) -> None:
        if added_seconds:
            await asyncio.sleep(added_seconds)

    tally = scene.fork()
    store = FaultyStore(tally, before=slow)
    before, began = tally.tally.copy(), time.perf_counter()

    def begin() -> None:
        """Forget what was sent until now."""
        nonlocal before, began
        store.calls.clear()
        before, began = tally.tally.copy(), time.perf_counter()

    await seek(ObjectStoreOffloader(store), offset, begin)
    ms = (time.perf_counter() - began) * 1000
    gets = [call.key for call in store.calls if call.operation == "get"]
    return {
        "list": sum(call.operation == "list" for call in store.calls),
        "get": len(gets),
        "groups": sum("/groups/" in key for key in gets),
        "bytes": (tally.tally - before).bytes_down,
        "ms": round(ms, 2),
    }


async def _first_message(reader: StreamReader, position: Position) -> int:
    batches = reader.messages(await reader.place_of(position))
    first = await anext(batches)
    await batches.aclose()
    assert first.bodies[0] == b"%020d" % first.offset
    return first.offset


async def _by_offset(tier: ObjectStoreOffloader, offset: int, _: Callable[[], None]) -> None:
    reader = await StreamReader.open(tier, STREAM)
    assert await _first_message(reader, AtOffset(offset)) == offset


async def _by_time(tier: ObjectStoreOffloader, offset: int, _: Callable[[], None]) -> None:
    # The time of a chunk is its first offset.
    offset -= offset % RECORDS
    reader = await StreamReader.open(tier, STREAM)
    assert await _first_message(reader, AtTime(offset)) == offset


async def _last(tier: ObjectStoreOffloader, _: int, __: Callable[[], None]) -> None:
    reader = await StreamReader.open(tier, STREAM)
    assert await _first_message(reader, AtEdge.LAST) == reader.manifest.next_offset - RECORDS


async def _known(tier: ObjectStoreOffloader, offset: int, begin: Callable[[], None]) -> None:
    watch = StreamWatch(tier)
    await StreamReader.open(tier, STREAM, watch=watch)
    begin()
    reader = await StreamReader.open(tier, STREAM, watch=watch, max_staleness_seconds=STALENESS_SECONDS)
    assert await _first_message(reader, AtOffset(offset)) == offset


SEEKS: Final[dict[str, Seek]] = {
    "by offset": _by_offset,
    "by time": _by_time,
    "last": _last,
    "known": _known,
}


if __name__ == "__main__":
    main()
