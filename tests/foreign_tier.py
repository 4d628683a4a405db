"""A read-only tier of a foreign layout: a folder for each stream, and a text file for each ledger.

    orders/0.1000.lines     the records from offset 0 on, one to a line, all of the time 1000 ms
    orders/20.1500.lines

It has no chunks, no manifest, no writer and no checksum. Chunks are made when they are requested. This is
all that an author has to write for `Catalogue` and `StreamView`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import UUID, uuid5

from offload.contracts.catalogue import Catalogue, EntryView
from offload.contracts.ledger import ReadHandle
from offload.contracts.plugin import Backend, hookimpl
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Absent, NotOffloaded
from offload.log.memory_handle import MemoryHandle
from offload.model.entry import Entries, Entry, rows_of_entries
from offload.model.manifest import CommittedStream
from offload.model.tree import EntryTree, no_groups

ATTEMPT = UUID(int=7)
RECORDS_IN_CHUNK = 2


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare `lines://`, if the plugin is installed."""
    return [Backend(name="lines", target="foreign_tier:open_url", schemes=("lines",), kind="catalogue")]


def open_url(url: str) -> LinesCatalogue:
    return LinesCatalogue(Path(url.removeprefix("lines://")))


class LinesCatalogue(Catalogue):
    """The streams of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return f"lines://{self.root}"

    async def open(self) -> None:
        if not self.root.is_dir():
            raise NotOffloaded(f"{self.url} is no folder")

    async def streams(self) -> list[str]:
        await self.open()
        return sorted(path.name for path in self.root.iterdir())

    async def view(self, stream: str) -> LinesView:
        await self.open()
        files = sorted((self.root / stream).glob("*.lines"), key=lambda path: int(path.name.split(".")[0]))
        entries = [entry_of(path) for path in files]
        if not entries:
            raise NotOffloaded(f"{self.url} has no stream {stream!r}")
        committed = CommittedStream(
            stream=stream,
            version=len(entries),
            incarnation=uuid5(ATTEMPT, stream),
            first_offset=entries[0].first_offset,
            next_offset=entries[-1].next_offset,
            messages=sum(entry.messages for entry in entries),
            data_size_bytes=sum(entry.data_size_bytes for entry in entries),
            stored_size_bytes=sum(entry.stored_size_bytes for entry in entries),
            fragments=len(entries),
            ledgers=len(entries),
            entries=rows_of_entries(entries),
        )
        return self.view_of(committed)

    def view_of(self, committed: CommittedStream) -> LinesView:
        return LinesView(EntryTree(committed, no_groups), self.root / committed.stream)


class LinesView(EntryView):
    """One folder, as it was at one moment."""

    def __init__(self, tree: EntryTree, folder: Path) -> None:
        super().__init__(tree)
        self.folder = folder

    @property
    def where(self) -> str:
        return self.folder.name

    def name_of(self, row: Entries) -> str:
        first_offset, timestamp_ms = int(row["first_offset"][0]), int(row["first_timestamp_ms"][0])
        return f"{self.folder.name}/{first_offset}.{timestamp_ms}.lines"

    async def open(self, entry: Entry) -> ReadHandle:
        where = self.name_of(rows_of_entries([entry]))
        path = self.folder.parent / where
        if not path.exists():
            raise Absent(where, self.folder.name)
        return MemoryHandle(chunks_in(path), ledger_id=entry.ledger_id, where=where)


def write_lines(root: Path, stream: str, first_offset: int, timestamp_ms: int, lines: list[str]) -> None:
    """Write one file, as the broker with this layout would."""
    folder = root / stream
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{first_offset}.{timestamp_ms}.lines").write_text("".join(line + "\n" for line in lines))


def chunks_in(path: Path) -> list[bytes]:
    first_offset, timestamp_ms = map(int, path.name.split(".")[:2])
    lines = path.read_bytes().splitlines()
    make = partial(build_chunk, timestamp_ms=timestamp_ms, epoch=1)
    starts = range(0, len(lines), RECORDS_IN_CHUNK)
    return [make(lines[at : at + RECORDS_IN_CHUNK], offset=first_offset + at) for at in starts]


def entry_of(path: Path) -> Entry:
    first_offset, timestamp_ms = map(int, path.name.split(".")[:2])
    records = len(path.read_bytes().splitlines())
    return Entry(
        first_offset=first_offset,
        records=records,
        messages=records,
        first_timestamp_ms=timestamp_ms,
        last_timestamp_ms=timestamp_ms,
        data_size_bytes=sum(map(len, chunks_in(path))),
        stored_size_bytes=path.stat().st_size,
        ledger_id=first_offset,
        attempt=ATTEMPT,
        checksum=0,
    )
