"""A read-only tier whose entries do not show which records are messages (`StreamView.counts_messages`).

It is the layout of `foreign_tier` with one more rule: the line `#` is a tracking record, in a chunk of its
own. As the entries have the numbers of lines, `messages` of an entry is an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foreign_tier import LinesCatalogue, LinesView

from offload.contracts.ledger import ReadHandle
from offload.contracts.plugin import Backend, hookimpl
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.tracking import ConsumerOffset
from offload.log.memory_handle import MemoryHandle
from offload.model.chunk_table import ChunkType
from offload.model.entry import Entry, rows_of_entries
from offload.model.manifest import CommittedStream
from offload.model.tree import EntryTree, no_groups

TRACKING = b"#"


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare `uncounted://`, if the plugin is installed."""
    target = "uncounted_tier:open_url"
    return [Backend(name="uncounted", target=target, schemes=("uncounted",), kind="catalogue")]


def open_url(url: str) -> UncountedCatalogue:
    return UncountedCatalogue(Path(url.removeprefix("uncounted://")))


class UncountedCatalogue(LinesCatalogue):
    """The streams of one folder. `opened` has the names of the fragments that were opened, in order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: list[str] = []

    @property
    def url(self) -> str:
        return f"uncounted://{self.root}"

    def view_of(self, committed: CommittedStream) -> LinesView:
        folder = self.root / committed.stream
        tree = EntryTree(replace(committed, counts_messages=False), no_groups)
        return UncountedView(tree, folder, self.opened)


class UncountedView(LinesView):
    def __init__(self, tree: EntryTree, folder: Path, opened: list[str]) -> None:
        super().__init__(tree, folder)
        self.opened = opened

    @property
    def is_measured(self) -> bool:
        return False

    async def open(self, entry: Entry) -> ReadHandle:
        where = self.name_of(rows_of_entries([entry]))
        self.opened.append(where)
        chunks = chunks_in(self.folder.parent / where, entry.first_offset, entry.first_timestamp_ms)
        return MemoryHandle(chunks, ledger_id=entry.ledger_id, where=where)


def chunks_in(path: Path, offset: int, timestamp_ms: int) -> list[bytes]:
    chunks = []
    for at, line in enumerate(path.read_bytes().splitlines(), offset):
        if line == TRACKING:
            blocks = [ConsumerOffset(name=b"reader", offset=at)]
            made = build_tracking_chunk(
                blocks, chunk_type=ChunkType.TRACKING_DELTA, offset=at, timestamp_ms=timestamp_ms, epoch=1
            )
        else:
            made = build_chunk([line], offset=at, timestamp_ms=timestamp_ms, epoch=1)
        chunks.append(made)
    return chunks
