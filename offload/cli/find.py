"""`offload find`: print the messages that have a term, by the indexes of their streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, StreamOrGlob, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.indexes import By, no_value, spec_of
from offload.cli.kit.names import streams_meant
from offload.cli.kit.output import counted, print_note, size_text
from offload.cli.kit.reading import printed
from offload.cli.kit.state import CommandContext, position_of, run_async
from offload.cli.read import At, Decode, Limit, Print, To
from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoder
from offload.contracts.events import Event, Skipped
from offload.ground.errors import NotOffloaded
from offload.index.find import FindReport
from offload.index.find import find as find_in
from offload.index.terms import Spec
from offload.model.position import Position
from offload.read.batches import PartRun
from offload.read.reader import reason_of
from offload.showing.lines import Format
from offload.showing.message_output import MessageOutput

GivenTerms = Annotated[
    list[str] | None,
    typer.Option("--term", metavar="T", help="Find the messages with this term. Repeat it for several."),
]
TermsFrom = Annotated[
    Path | None,
    typer.Option("--terms-from", metavar="FILE", help="Find also the terms of this file, one on each line."),
]
IndexedOnly = Annotated[
    bool,
    typer.Option(
        "--indexed-only",
        help="Scan nothing. If a part of STREAM is not indexed, it is left out, and the exit code is 1.",
    ),
]


def find(
    context: typer.Context,
    tier: Tier,
    stream: StreamOrGlob,
    by: By,
    term: GivenTerms = None,
    terms_from: TermsFrom = None,
    start: At = "first",
    to: To = None,
    limit: Limit = None,
    decode: Decode = "raw",
    how: Print = Format.JSONL,
    indexed_only: IndexedOnly = False,
    keys: Keys = None,
    encrypted_only: EncryptedOnly = False,
    option: Options = None,
) -> int:
    """Print the messages of STREAM that have a TERM, such as a message id. STREAM may be a glob.

    What `offload index` has not indexed is scanned. All parts of a stream are searched.
    """
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    spec, decoder = spec_of(state, by)
    search = _Search(
        state=state,
        by=spec,
        decoder=decoder,
        terms=_terms(term, terms_from),
        start=position_of(start),
        until=None if to is None else position_of(to),
        left=limit,
        indexed_only=indexed_only,
    )

    make = partial(printed, state, decode, how)
    try:
        run_async(partial(search.run, tier, option, stream, make))
    finally:
        search.tell()
    return 1 if search.report.left_out else 0


def _terms(given: list[str] | None, path: Path | None) -> list[bytes]:
    found = [os.fsencode(term) for term in given or ()]
    if path is not None:
        try:
            raw = path.read_bytes()
        except FileNotFoundError as error:
            raise Usage(f"--terms-from: there is no file {str(path)!r}") from error
        except OSError as error:
            raise Usage(f"--terms-from: {str(path)!r} cannot be read: {error.strerror}") from error
        found += [line for line in raw.split(b"\n") if line]
    if not found or b"" in found:
        raise Usage("a find takes --term or --terms-from, and no term is empty")
    return found


@dataclass(kw_only=True)
class _Search:
    """One search through the streams of a command, and what it has read so far."""

    state: CommandContext
    by: Spec
    decoder: Decoder
    terms: list[bytes]
    start: Position
    until: Position | None
    left: int | None
    """How many messages may still be printed; None for any number."""
    indexed_only: bool
    report: FindReport = field(default_factory=FindReport)

    async def run(
        self, tier: str, option: list[str] | None, stream: str, make: Callable[..., MessageOutput]
    ) -> None:
        """Print the messages of all streams that an argument means."""
        async with self.state.opened_to_read(tier, option) as catalogue:
            names = await streams_meant(catalogue, stream)
            for name in names:
                try:
                    await self._run(catalogue, name, make(stream=name))
                except NotOffloaded as error:
                    if not names[1:]:
                        raise
                    print_note(str(error))  # such as a deleted stream, which a glob matches too

    async def _run(self, catalogue: Catalogue, stream: str, output: MessageOutput) -> None:
        found = find_in(
            catalogue,
            stream,
            self.terms,
            by=self.by,
            decoder=self.decoder,
            start=self.start,
            until=self.until,
            indexed_only=self.indexed_only,
            report=self.report,
            emit=self._emit,
        )
        try:
            async with aclosing(found) as runs:
                while self.left != 0 and (each := await anext(runs, None)) is not None:
                    printed = output.write(PartRun(each.part, each.run), self.left)
                    self.left = None if self.left is None else self.left - printed
        finally:
            output.flush()

    def tell(self) -> None:
        """Print what was read, and what was left out."""
        report = self.report
        for stream, offsets in report.left_out:
            print_note(f"stream {stream!r}: left out [{offsets.start}, {offsets.stop}), which is not indexed")
        for damage in report.damages:
            print_note(f"{damage}; what this index object covers counts as not indexed")
        if report.scanned and not report.terms:
            print_note(no_value(report.scanned))
        if not (report.requests or report.scanned):  # an error came before
            return
        objects, requests = counted(report.objects, "index object"), counted(report.requests, "request")
        print_note(
            f"{objects}, {requests} and {size_text(report.bytes)} of indexes; "
            f"{counted(report.records, 'record')} read by them, {report.scanned} scanned"
        )

    def _emit(self, event: Event) -> None:
        if isinstance(event, Skipped):
            print_note(f"{reason_of(event)}; the search continues at offset {event.to_offset}")
        self.state.plugins.emit(event)
