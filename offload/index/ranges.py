"""Ranges: which keys are in which offsets, of a stream whose ledgers are in the order of a key.

Where an index of terms names the offsets of each term, an index of ranges has the first key of each chunk. So
it is small, and a reader that wants some keys leaves out nearly all other chunks (decision 46).

    ledger      chunks of one epoch, as `entries.ledger` writes them: it survives compaction and copies
    range       a chunk, as it was cut when its ledger was indexed. Later cuts do not matter: offsets stay
    key         what the decoder makes of a record's term. The core only compares keys

Names, validity and loss are those of other index objects (`index.rules`). Invariants: the keys of all records
of a ledger were compared before it was indexed, so no record lies outside of the keys of its range; what no
sound object covers is to be scanned.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Final

import numpy as np

from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoder
from offload.contracts.events import Event
from offload.contracts.store import Body, ObjectStore
from offload.formats.chunk import headers_at
from offload.formats.keys import IndexName, StreamKeys
from offload.formats.range_object import LedgerRanges, decode_ranges, encode_ranges
from offload.formats.records import record_runs
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Misuse
from offload.ground.tasks import run_each
from offload.index.build import Built, index_folder_of
from offload.index.find import LOOKUPS_AT_ONCE, FindReport, PartIndexes, part_indexes
from offload.index.objects import IndexObject
from offload.index.rules import uncovered
from offload.index.terms import Spec
from offload.model.manifest import CommittedStream
from offload.model.record_columns import RecordBytes
from offload.read.batches import Window
from offload.read.reader import StreamReader, warn_of_skips

__all__ = ["PartRanges", "build_ranges", "look_up_ranges", "merge_ranges", "store_ranges"]

LEDGER_TERMS_MAX: Final = 2**22
"""A ledger with more changes of the term from record to record is not in the order of a key."""


@dataclass(frozen=True, slots=True)
class PartRanges:
    """The ranges of one part of a stream."""

    reader: StreamReader
    """It was loaded after the indexes were listed."""
    ledgers: Sequence[LedgerRanges]
    """In order, without overlap, and not before what is committed."""
    to_scan: Sequence[range]
    """The committed offsets that no sound object covers, in order."""


async def look_up_ranges(
    catalogue: Catalogue,
    stream: str,
    *,
    by: Spec,
    report: FindReport | None = None,
    emit: Callable[[Event], None] = warn_of_skips,
) -> AsyncGenerator[PartRanges, None]:
    """Yield the ranges of each part of a stream, in order of parts, from one listing of its indexes.

    Reads indexes and no record. `report` has the requests and the damage. A tier of another layout has no
    indexes: all of it is to be scanned. Close the generator. Raises as `StreamReader.open` does.
    """
    report = FindReport() if report is None else report
    parts = await part_indexes(catalogue, stream, by=by, report=report, emit=emit)
    for part in parts:
        yield await part.ask(_read)


async def _read(part: PartIndexes) -> PartRanges:
    root, found = part.reader.manifest, dict[IndexName, list[LedgerRanges]]()

    async def ask(one: IndexObject) -> None:
        try:
            found[one.name] = decode_ranges(await one.whole(), one.stream, one.name)
        except Corrupt as damage:
            part.report.damages.append(damage)

    await run_each(ask, part.used(range(root.first_offset, root.next_offset)), at_once=LOOKUPS_AT_ONCE)
    ledgers = _joined([found[name] for name in sorted(found)], root.first_offset)
    to_scan = uncovered(sorted(found), root.first_offset, root.next_offset)
    return PartRanges(part.reader, ledgers, to_scan)


def _joined(objects: Sequence[Sequence[LedgerRanges]], begin: int) -> list[LedgerRanges]:
    """Return the ledgers of several objects from an offset on. Of what two of them have, the first counts."""
    found = list[LedgerRanges]()
    for each in chain.from_iterable(objects):
        if each.next_offset > begin:
            found.append(each if each.first_offset >= begin else _cut(each, begin))
            begin = each.next_offset
    return found


def _cut(ledger: LedgerRanges, begin: int) -> LedgerRanges:
    row = int(np.searchsorted(ledger.offsets, np.uint64(begin), side="right")) - 1
    offsets = ledger.offsets[row:].copy()
    offsets[0] = begin
    return replace(ledger, first_offset=begin, offsets=offsets, keys=ledger.keys[row:])


async def build_ranges(
    store: ObjectStore,
    reader: StreamReader,
    spec: Spec,
    decoder: Decoder,
    *,
    begin: int,
    end: int,
    env: Env,
) -> AsyncGenerator[Built, None]:
    """Index the ledgers in the committed offsets [begin, end) of the reader's part. Yield each object stored.

    Leaves out ledgers that are not in the order of their keys. Close the generator. Raises what reading does.
    """
    ledger: _Ledger | None = None
    async with aclosing(reader.windows(begin, until=end)) as windows:
        async for window in windows:
            starts = window.rows["position"] - window.rows["position"][0]
            epochs = headers_at(window.data, starts)["epoch"]
            cuts = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(epochs)]
            for first, stop in pairwise(cuts):
                if ledger is not None and ledger.epoch != epochs[first]:
                    ranges = await asyncio.to_thread(
                        ledger.ranges, int(window.rows["offset"][first]), decoder
                    )
                    if ranges is not None:
                        yield await store_ranges(store, reader.manifest, spec, [ranges], env=env)
                    ledger = None
                ledger = ledger or _Ledger(int(epochs[first]), max(int(window.rows["offset"][first]), begin))
                await asyncio.to_thread(ledger.add, window, slice(first, stop), spec, decoder)
    if ledger is not None:
        ranges = await asyncio.to_thread(ledger.ranges, end, decoder)
        if ranges is not None:
            yield await store_ranges(store, reader.manifest, spec, [ranges], env=env)


@dataclass(slots=True)
class _Ledger:
    """The terms of a ledger that is being read, and where its chunks begin among them."""

    epoch: int
    first_offset: int
    offsets: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    """The number of the term with which each of these offsets begins."""
    terms: list[bytes] = field(default_factory=list)
    """Those of the records, in order, without equal neighbours."""

    def add(self, window: Window, chunks: slice, spec: Spec, decoder: Decoder) -> None:
        """Add these chunks of a window."""
        rows, begin = window.rows[chunks], window.rows["position"][0]
        if len(self.terms) > LEDGER_TERMS_MAX:
            return
        stop = int(rows["position"][-1] + rows["size_bytes"][-1] - begin)
        data = memoryview(window.data)[int(rows["position"][0] - begin) : stop]
        for whole in record_runs(data, rows, where=window.where):
            run = whole.between(self.first_offset, 2**64 - 1)
            found = spec.terms(decoder, RecordBytes(np.frombuffer(run.data, np.uint8), run.starts, run.sizes))
            terms = np.full(len(run), b"", object)
            terms[found.rows] = found.values.to_list()
            is_new = np.append(True, terms[1:] != terms[:-1])[: len(terms)]
            if len(terms) and self.terms and terms[0] == self.terms[-1]:
                is_new[0] = False
            numbers = np.cumsum(is_new) + len(self.terms) - 1
            self.terms += terms[is_new].tolist()
            at = np.searchsorted(run.offsets, rows["offset"])
            at = np.unique(at[(at < len(run)) & (rows["offset"] + rows["records"] > run.offsets[:1])])
            self.firsts += numbers[at].tolist()
            self.offsets += run.offsets[at].tolist()

    def ranges(self, next_offset: int, decoder: Decoder) -> LedgerRanges | None:
        """Return the ranges up to the ledger's end. None if its records are not in the order of keys."""
        if not self.offsets or len(self.terms) > LEDGER_TERMS_MAX:
            return None
        about, keys = decoder.range_keys(self.terms)
        if any(key < before for before, key in pairwise(keys)):
            return None
        offsets = np.array([self.first_offset, *self.offsets[1:]], np.uint64)
        firsts = [keys[number] for number in self.firsts]
        return LedgerRanges(self.first_offset, next_offset, about, offsets, [*firsts, keys[-1]])


async def store_ranges(
    store: ObjectStore, root: CommittedStream, spec: Spec, ledgers: Sequence[LedgerRanges], *, env: Env
) -> Built:
    """Store ranges of neighbouring ledgers that are committed by `root`, and return the object.

    The keys must be those that `Decoder.range_keys` makes, and every record in the keys of its range.
    """
    first, following = ledgers[0].first_offset, ledgers[-1].next_offset
    if following > root.next_offset:
        raise Misuse(f"stream {root.stream!r}: offsets {first} to {following} are not committed")
    folder = index_folder_of(root.stream, spec)
    name = IndexName(folder, first, following, root.version, root.incarnation, env.uuid())
    raw = await asyncio.to_thread(encode_ranges, root.stream, name, ledgers)
    await store.put(StreamKeys(root.stream).index(name), Body.of(raw))
    return Built(name, sum(len(each.offsets) for each in ledgers), len(raw))


async def merge_ranges(
    store: ObjectStore, inputs: Sequence[IndexObject], root: CommittedStream, *, spec: Spec, env: Env
) -> Built:
    """Store one object with the ledgers of these neighbours. Raises as `merge.merge` does."""
    objects = [decode_ranges(await one.whole(), one.stream, one.name) for one in inputs]
    return await store_ranges(store, root, spec, _joined(objects, inputs[0].name.first_offset), env=env)
