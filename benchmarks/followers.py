"""Readers that follow streams: what waiting costs, and how soon a commit reaches all of them.

    python benchmarks/followers.py [--server minio] [--streams 100] [--followers 10000] [--seconds 60]
                                   [--json]

One process with one session follows all streams at their ends, in equal shares. It measures:

    opening          requests until all followers wait, the writers' own left out
    first minute     requests per minute while nothing is committed and the intervals between looks grow
    later            the same for the next `--seconds`, when the intervals have their full length
    our commits      a commit of this process to each stream, one after the other: requests, those of the
                     writers included, and the time until every follower has the message
    their commits    the same for commits of another session, which must be found by looking. The requests of
                     its writers are left out
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import machine

from offload import MemoryHandle, Plugins, Session, StreamWriter, build_chunk
from offload.read.reader import Messages

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # has the servers
from servers.catalogue import SERVERS, server

STALENESS_SECONDS = 3600.0


def main() -> None:
    """Parse arguments, follow, print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", default="minio", choices=[each.name for each in SERVERS if each.honours_create]
    )
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--followers", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with server(arguments.server).running() as running:
        place = running.place()
        about = {**machine.description(), "server": f"{running.server.name} {running.version}"}
        done = asyncio.run(_followed(f"{place.url}/tier", place.options, arguments))
    if arguments.json:
        print(json.dumps({"machine": about, **done}, indent=2))
        return
    print("\n".join(f"{name}: {value}" for name, value in (about | done).items()))


async def _followed(url: str, options: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    names = [f"stream-{number}" for number in range(arguments.streams)]
    async with Session(plugins=Plugins.find()) as session, Session(plugins=Plugins.find()) as theirs:
        tier = session.tier(url, storage_options=options)
        writers = {name: await StreamWriter.claim(tier, name) for name in names}
        await _append(writers)
        requests = session.metrics.requests
        before = requests.total()
        followers = []
        for number in range(arguments.followers):
            reader = await session.reader(
                tier, names[number % len(names)], max_staleness_seconds=STALENESS_SECONDS
            )
            followers.append(reader.follow(reader.manifest.next_offset))
        waiting = [asyncio.ensure_future(anext(each)) for each in followers]
        await asyncio.sleep(5)
        done: dict[str, Any] = {"opening": requests.total() - before, "memory_mib": _memory_mib()}
        for name in ("first minute", "later"):
            before = requests.total()
            await asyncio.sleep(arguments.seconds)
            done[name] = round((requests.total() - before) * 60 / arguments.seconds)
        loop = asyncio.get_running_loop()

        before, began = requests.total(), loop.time()
        await _append(writers)
        await asyncio.gather(*waiting)
        done |= {
            "our commits, requests": requests.total() - before,
            "our commits, seconds": round(loop.time() - began, 2),
        }

        waiting = [asyncio.ensure_future(anext(each)) for each in followers]
        other = theirs.tier(url, storage_options=options)
        writers = {name: await StreamWriter.claim(other, name) for name in names}
        before, began = requests.total(), loop.time()
        await _append(writers)
        await asyncio.gather(*waiting)
        done |= {
            "their commits, requests": requests.total() - before,
            "their commits, seconds": round(loop.time() - began, 2),
        }
        await asyncio.gather(*map(_closed, followers))
    left = len(asyncio.all_tasks()) - 1
    print(f"{left} tasks are left", file=sys.stderr)
    assert not left
    return done


async def _append(writers: dict[str, StreamWriter]) -> None:
    for writer in writers.values():
        end = writer.manifest.next_offset
        chunk = build_chunk([b"%020d" % end], offset=end, timestamp_ms=end, epoch=1)
        await writer.offload([MemoryHandle([chunk])])


async def _closed(followed: AsyncGenerator[Messages, None]) -> None:
    await followed.aclose()


def _memory_mib() -> int:
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


if __name__ == "__main__":
    main()
