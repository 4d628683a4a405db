"""Classic queues as a source: `rabbitmq-queues://PATH`, the folder of a stopped node, or a copy of it.

PATH is everything behind the two slashes, as the file system has it. A queue is a stream `VHOST/QUEUE`, both
percent-encoded: `%2F/orders`. It has one sealed ledger, whose entries are `records`. Their time is that of
the last change of the queue's index, because the broker does not store when a message came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from offload.contracts.entries import EntryLedger
from offload.contracts.source import Source, SourceStream
from offload.entries.arrays import ArrayLedger
from offload.entries.ledger import EntryLedgerStream
from offload.ground.errors import Corrupt, Misuse, NotOffloaded
from offload.local.files import shown_path
from offload_rabbitmq.queues.folder import ClassicQueue, Vhost, find_vhosts, read_vhost
from offload_rabbitmq.queues.messages import read_message, read_properties
from offload_rabbitmq.queues.records import HEAD, encode_records

SCHEME: Final = "rabbitmq-queues://"


def open_url(url: str) -> QueueSource:
    """Return the source at a URL, without access to the disk. Raises `Misuse` if it is no such URL."""
    scheme, slashes, path = url.partition("//")
    if (scheme + slashes).lower() != SCHEME or not path or "\0" in path:
        raise Misuse(f"{url!r} is no source: use {SCHEME} and the path of a node's folder")
    return QueueSource(Path(path))


class QueueSource(Source):
    """The classic queues in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._vhosts: Sequence[Vhost] = ()

    @property
    def url(self) -> str:
        """The scheme and the path."""
        return SCHEME + shown_path(self._path)

    @property
    def folder(self) -> Path:
        """The path."""
        return self._path

    @property
    def damages(self) -> Sequence[tuple[str, str, str, int]]:
        """What could not be read so far: the stream or vhost, the file, the reason, and how often."""
        found = [
            (f"vhost {each.name.decode(errors='backslashreplace')}", each.damages) for each in self._vhosts
        ]
        found += [(each.stream, each.damages) for vhost in self._vhosts for each in vhost.queues]
        return [(who, *why, count) for who, damages in found for why, count in sorted(damages.items())]

    @property
    def notes(self) -> Sequence[str]:
        """`damages`, as lines."""
        return [f"{who}: {file}: {reason}: {count}" for who, file, reason, count in self.damages]

    async def queues(self) -> Sequence[ClassicQueue]:
        """Read the folder, and return its queues.

        Raises `NotOffloaded` if it has none, `Misuse` if it has one twice, and `TryAgain` if files change.
        """
        self._vhosts = await asyncio.to_thread(lambda: [read_vhost(each) for each in find_vhosts(self._path)])
        queues = sorted(
            (each for vhost in self._vhosts for each in vhost.queues), key=lambda each: each.stream
        )
        for one, other in pairwise(queues):
            if one.stream == other.stream:
                folders = f"{shown_path(one.files.folder)} and {shown_path(other.files.folder)}"
                raise Misuse(f"{folders} both have the queue {one.stream}: name one of them")
        return queues

    async def streams(self) -> Sequence[SourceStream]:
        """Return the queues as streams, as they are now."""
        queues = await self.queues()
        if not queues:
            raise NotOffloaded(f"{self.url} has no queues")
        return [EntryLedgerStream(each.stream, partial(_ledgers, each)) for each in queues]

    async def stream(self, name: str) -> SourceStream:
        """Return the queue of this name as a stream. Raises `NotOffloaded` if there is none."""
        for each in await self.streams():
            if each.name == name:
                return each
        raise self.unknown(name)

    def unknown(self, name: str) -> NotOffloaded:
        """Return the error for a queue that is not in the folder."""
        shown = shown_path(self._path)
        return NotOffloaded(f"{self.url} has no queue {name!r}: `offload queues ls {shown}` shows them")


async def _ledgers(queue: ClassicQueue) -> Sequence[EntryLedger]:
    sizes = queue.rows["size"].astype(np.uint64) + np.uint64(HEAD.itemsize)
    gather, where = partial(_gather, queue), f"queue {queue.stream}"
    return [ArrayLedger(gather, sizes=sizes, timestamps_ms=queue.changed_ms, where=where)]


def records_of(queue: ClassicQueue, first: int, stop: int) -> list[bytes]:
    """Return the records of some messages. Those that cannot be decoded are kept, and counted once."""
    terms = queue.terms(first, stop)
    for row, term in enumerate(terms, first):
        try:
            read_properties(read_message(term, where=queue.stream).properties, where=queue.stream)
        except Corrupt as error:
            queue.count_bad(row, error.what)
    return encode_records(queue.rows[first:stop], terms)


def _gather(queue: ClassicQueue, first: int, stop: int) -> bytes:
    return b"".join(records_of(queue, first, stop))
