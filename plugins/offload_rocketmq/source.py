"""RocketMQ's store as a source: `rocketmq://STORE`, the folder `storePathRootDir` of a broker.

A stream is a queue of a topic, `TOPIC/QUEUE`, and a record is a record of the commit log, untouched. With the
option `broker=NAME` it is `NAME/TOPIC/QUEUE`, so that several brokers can share a tier. The broker may run:
nothing of the store is changed. All queues share one log, and are copied in one pass of it.

The topics are left out that RocketMQ's own tiered storage leaves out: they belong to the broker.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from offload.contracts.entries import EntryLedger
from offload.contracts.source import SharedLog, Source, SourceStream
from offload.entries.ledger import EntryLedgerStream
from offload.formats.keys import is_name
from offload.ground.errors import Corrupt, Misuse, NotOffloaded
from offload.local.files import explained, shown_path
from offload_rocketmq.log import CommitLog
from offload_rocketmq.queue import QueueFiles

__all__ = ["RocketmqSource", "RocketmqStream", "open_url"]

SCHEME: Final = "rocketmq://"

SYSTEM_TOPICS: Final = frozenset(
    {
        "BenchmarkTest",
        "CHECKPOINT_TOPIC",
        "OFFSET_MOVED_EVENT",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
SYSTEM_PREFIXES: Final = ("rmq_sys_", "%LMQ%")

QUEUE_NAME: Final = re.compile(r"0|[1-9][0-9]{0,8}")


def open_url(url: str, *, options: Mapping[str, Any]) -> RocketmqSource:
    """Return the source at a URL, without access to the disk. Raises `Misuse` for a wrong option or URL."""
    path = url[len(SCHEME) :]
    if url[: len(SCHEME)].lower() != SCHEME or not path or "\0" in path:
        raise Misuse(f"{url!r} is no source: use {SCHEME} and the path of a broker's store")
    return RocketmqSource(Path(path), broker=options.get("broker"))


class RocketmqSource(Source):
    """The queues of a store, which is only read. `broker` comes first in the names of streams."""

    def __init__(self, path: Path, *, broker: str | None = None) -> None:
        """Raise `Misuse` for a name that no stream can have."""
        if broker is not None and not (broker and "/" not in broker and is_name(f"{broker}/t/0")):
            raise Misuse(f"option 'broker' takes the name of a broker, not {broker!r}")
        self._path, self._broker, self._log = path, broker, CommitLog(path)
        self._notes: Sequence[str] = ()

    @property
    def url(self) -> str:
        """The scheme and the path."""
        return SCHEME + shown_path(self._path)

    @property
    def folder(self) -> Path:
        """The path."""
        return self._path

    @property
    def notes(self) -> Sequence[str]:
        """Notes on what the last call of `streams` left out, but for the topics of the broker itself."""
        return self._notes

    async def streams(self) -> Sequence[SourceStream]:
        """Return the queues, in order of names. Raises `NotOffloaded` if there is none, and says why."""
        return await asyncio.to_thread(self._find)

    async def aclose(self) -> None:
        """Forget the mapped files."""
        self._log.close()

    def _find(self) -> Sequence[RocketmqStream]:
        queues, notes, streams = self._path / "consumequeue", list[str](), list[RocketmqStream]()
        for folder in (self._path, self._log.folder, queues):
            with explained("look at", folder):
                is_folder = folder.is_dir()
            if not is_folder:
                hint = (
                    ": a broker builds it from the log when it starts"
                    if folder == queues
                    else ": give the folder `storePathRootDir` of the broker"
                )
                raise NotOffloaded(
                    f"{self.url} is no store of RocketMQ: {shown_path(folder)} is no folder{hint}"
                )
        for batches in _folders(self._path / "batchconsumequeue"):
            notes.append(f"skipped: {shown_path(batches)} is of a topic of type BatchCQ, which is not read")
        for topic in _folders(queues):
            if self._is_of_the_broker(topic.name):
                continue
            for queue in _folders(topic):
                name = "/".join(filter(None, (self._broker, topic.name, queue.name)))
                if not QUEUE_NAME.fullmatch(queue.name):
                    notes.append(f"skipped: {shown_path(queue)} is not named by the number of a queue")
                elif shown_path(name) != name or not is_name(name):
                    notes.append(f"skipped: no stream can have the name of {shown_path(queue)}")
                else:
                    files = QueueFiles(self._log, queue, topic.name, int(queue.name))
                    streams.append(RocketmqStream(name, files))
        self._notes = tuple(notes)
        if not streams:
            why = "; ".join(["there is no queue but those of the broker itself", *notes])
            raise NotOffloaded(f"{self.url} has no stream: {why}")
        return sorted(streams, key=lambda stream: stream.name)

    def _is_of_the_broker(self, topic: str) -> bool:
        return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES) or topic == self._broker


class RocketmqStream(EntryLedgerStream):
    """One queue."""

    def __init__(self, name: str, files: QueueFiles) -> None:
        super().__init__(name, self._list)
        self._files = files

    @property
    def shared_log(self) -> SharedLog:
        """The commit log, which has the records of all queues."""
        return SharedLog(key=str(self._files.log.folder))

    async def log_position(self, offset: int) -> int:
        """Return the position of a record, by its unit."""
        return self._files.position_of(offset)

    async def _list(self) -> Sequence[EntryLedger | Corrupt]:
        return await asyncio.to_thread(self._files.list_ledgers)


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, and links to folders, in order of names. None if it does not exist."""
    if not os.path.lexists(path):
        return []
    with explained("list", path), os.scandir(path) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())
