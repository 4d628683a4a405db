"""Messages as bytes in large pieces, for all that shows them: stdout, or the body of a reply."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

import numpy as np

from offload.contracts.decoder import Decoder
from offload.formats.records import RecordRun
from offload.read.batches import PartRun
from offload.read.chunk_filter import ChunkFilter
from offload.showing.lines import Format, message_lines, renderer

__all__ = ["MessageOutput"]

PRINTED_ROWS_MAX: Final = 16384
PRINTED_SIZE_BYTES_MAX: Final = 4 * 2**20
"""The most records, and bytes of them, that are formatted and written at once, unless one is larger."""

WriteBytes = Callable[[bytes | memoryview], None]


class MessageOutput:
    """Writes messages in large pieces, and remembers the last one."""

    def __init__(
        self,
        how: Format,
        decoder: Decoder | None,
        chosen: ChunkFilter | None = None,
        *,
        write: WriteBytes,
        stream: str | None = None,
    ) -> None:
        """`write` takes each piece. `stream` is the name that each line of JSON has first, if it has one."""
        self.decoder: Final = decoder
        self._write_bytes = write
        self._render = renderer(how, decoder, stream)
        self._lines = message_lines(how, decoder, stream)
        self._runs: list[PartRun] = []
        self._rows = self._size_bytes = 0
        self.chosen: Final = chosen
        """The filter of chunks, which counts them."""
        self.next_offset: int | None = None
        """First offset after the last message that was written; None if none was."""
        self.part = 1
        """The part of that message."""
        self.messages = 0
        """The number of messages that were written."""

    def write(self, each: PartRun, most: int | None) -> int:
        """Write the messages of a run, and return their number. Small runs are written later, by `flush`.

        `most` is the number of messages that are wanted. A record counts as one of them, unless it may hold
        several.
        """
        if self._lines is not None:
            return self._write_lines(each, most)
        run = each.run.rows(0, len(each.run) if most is None else most)
        first = 0
        # A run may have 8 MiB: what is formatted at once is smaller, and stays in the cache of the processor.
        reached = np.cumsum(run.sizes)
        while first < len(run):
            size = PRINTED_SIZE_BYTES_MAX - self._size_bytes + (int(reached[first - 1]) if first else 0)
            fit = int(np.searchsorted(reached, size, side="right"))
            stop = min(max(fit, first + 1), first + PRINTED_ROWS_MAX - self._rows, len(run))
            self._add(PartRun(each.part, run.rows(first, stop)))
            first = stop
        return len(run)

    def _add(self, each: PartRun) -> None:
        if self._runs and self._runs[-1].part != each.part:
            self.flush()
        self._runs.append(each)
        self._rows += len(each.run)
        self._size_bytes += int(each.run.sizes.sum())
        if self._rows >= PRINTED_ROWS_MAX or self._size_bytes >= PRINTED_SIZE_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what was kept."""
        runs, self._runs, self._rows, self._size_bytes = self._runs, [], 0, 0
        if runs:
            each = PartRun(runs[0].part, RecordRun.joined([each.run for each in runs]))
            self._write_bytes(self._render(each).data)
            self._wrote(each, len(each.run))

    def _write_lines(self, each: PartRun, most: int | None) -> int:
        assert self._lines is not None
        pieces, size, printed = list[bytes](), 0, 0
        for line in islice(self._lines(each), most):
            pieces.append(line)
            size += len(line)
            printed += 1
            if size >= PRINTED_SIZE_BYTES_MAX:
                self._write_bytes(b"".join(pieces))
                pieces, size = [], 0
        self._write_bytes(b"".join(pieces))
        self._wrote(each, printed)
        return printed

    def _wrote(self, each: PartRun, messages: int) -> None:
        if len(each.run):
            self.messages += messages
            self.next_offset, self.part = int(each.run.offsets[-1]) + 1, each.part
