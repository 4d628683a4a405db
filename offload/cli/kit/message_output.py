"""Messages on stdout, in large pieces: the output of the commands that print messages."""

from __future__ import annotations

from itertools import islice
from typing import Final

import numpy as np

from offload.cli.kit.output import counted, print_note, write_bytes
from offload.cli.kit.state import CommandContext
from offload.contracts.decoder import Decoder
from offload.formats.records import RecordRun
from offload.read.batches import PartRun
from offload.read.chunk_filter import ChunkFilter
from offload.showing.lines import Format, message_lines, renderer

__all__ = ["MessageOutput", "decoder_or_raw"]

PRINTED_ROWS_MAX: Final = 16384
PRINTED_SIZE_BYTES_MAX: Final = 4 * 2**20
"""The most records, and bytes of them, that are formatted and written at once, unless one is larger."""


class MessageOutput:
    """Writes messages to stdout in large pieces, and remembers the last one."""

    def __init__(
        self,
        how: Format,
        decoder: Decoder | None,
        chosen: ChunkFilter | None = None,
        *,
        stream: str | None = None,
    ) -> None:
        """`stream` is the name that each line of JSON has first, if it has one."""
        self.decoder: Final = decoder
        self._render = renderer(how, decoder, stream)
        self._lines = message_lines(how, decoder, stream)
        self._runs: list[PartRun] = []
        self._rows = self._size_bytes = 0
        self._messages = 0
        self.chosen: Final = chosen
        """The filter of chunks, which counts them."""
        self.next_offset: int | None = None
        """First offset after the last message that was written; None if none was."""
        self._part = 1

    def so_far(self) -> str:
        """Return a sentence on what an interrupted read has printed, and how to resume it."""
        if self.next_offset is None:
            return "no message was printed"
        printed = f"{counted(self._messages, 'message')} printed, up to offset {self.next_offset - 1}"
        in_part = "" if self._part == 1 else f" --part {self._part}"
        return f"{printed}; resume with --from {self.next_offset}{in_part}"

    def advise(self) -> None:
        """Print how to resume behind what was printed, if anything was."""
        if self.next_offset is not None:
            print_note(self.so_far())

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
            write_bytes(self._render(each).data)
            self._wrote(each, len(each.run))

    def _write_lines(self, each: PartRun, most: int | None) -> int:
        assert self._lines is not None
        pieces, size, printed = list[bytes](), 0, 0
        for line in islice(self._lines(each), most):
            pieces.append(line)
            size += len(line)
            printed += 1
            if size >= PRINTED_SIZE_BYTES_MAX:
                write_bytes(b"".join(pieces))
                pieces, size = [], 0
        write_bytes(b"".join(pieces))
        self._wrote(each, printed)
        return printed

    def _wrote(self, each: PartRun, messages: int) -> None:
        if len(each.run):
            self._messages += messages
            self.next_offset, self._part = int(each.run.offsets[-1]) + 1, each.part


def decoder_or_raw(state: CommandContext, name: str) -> Decoder | None:
    """Return the decoder that an argument names; None for `raw`."""
    return None if name == "raw" else state.decoder(name)
