"""Mutants of the rules of use and of the merge of index objects, which replays of `tests/index` find."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from mutants.mutant import Mutant, set_to
from offload.formats import index_object
from offload.formats.checksums import crc32c
from offload.formats.index_object import INDEX_OBJECT_MAGIC, Hashes, Offsets
from offload.formats.keys import IndexName, StreamKeys
from offload.formats.records import RecordRun
from offload.ground.errors import Corrupt, NotFound
from offload.index import find, job, merge, rules
from offload.index.objects import IndexObject
from offload.index.rules import Judged
from offload.model.manifest import CommittedStream
from offload.upkeep.rebuild.survey import Survey

_JUDGED, _OFFSETS_IN, _MENTIONS = rules.judged, find._offsets_in, Survey._mentions
_BUILD, _LIST, _LOAD = job.build_range, job.list_indexes, job.ObjectStoreOffloader.load_manifest
_ROWS = merge._Input.rows
_NOTHING: Final = np.zeros(0, np.uint32)


def _any_life(names: Iterable[IndexName], root: CommittedStream, *, is_live: bool = True) -> Judged:
    """Judge as if every object were of the root's life, and return the names as they are."""
    own = {name._replace(incarnation=root.incarnation): name for name in names}
    found = _JUDGED(own, root, is_live=is_live)
    return replace(found, used=[own[name] for name in found.used], unused={}, above=[])


def _equals_go(names: Iterable[IndexName], root: CommittedStream, *, is_live: bool = True) -> Judged:
    names = [*names]
    found = _JUDGED(names, root, is_live=is_live)
    twice = [one for one in found.used if any(one != each and one[:3] == each[:3] for each in names)]
    return Judged(
        [one for one in found.used if one not in twice],
        found.unused | dict.fromkeys(twice, rules.WhyUnused.WITHIN),
        found.above,
    )


def _one_row(used: Sequence[IndexName]) -> list[list[IndexName]]:
    return [[*used]]


def _numbers_of_indexes_do_not_count(self: Survey, number: int, key: str) -> None:
    if "/index/" not in key:
        _MENTIONS(self, number, key)


async def _damaged_has_nothing(one: IndexObject, hashes: Hashes) -> npt.NDArray[np.uint32]:
    try:
        return await _OFFSETS_IN(one, hashes)
    except Corrupt:
        return _NOTHING


async def _gone_has_nothing(one: IndexObject, hashes: Hashes) -> npt.NDArray[np.uint32]:
    try:
        return await _OFFSETS_IN(one, hashes)
    except NotFound:
        return _NOTHING


def _every_hit(run: RecordRun, *others: Any) -> RecordRun:
    return run


async def _root_before_listing(self: Any) -> Any:
    root = await self.tier.load_manifest(self.stream)
    listed = await _LIST(self.tier.store, self.stream, job.index_folder_of(self.stream, self.spec))
    found = _JUDGED([each.name for each in listed], root)
    job.refuse_if_above(self.tier, root, found)
    return job._State(root, {each.name: each for each in listed}, found)


async def _unmoved(self: Any) -> AsyncGenerator[tuple[Hashes, Offsets], None]:
    async for hashes, offsets in self.one.all_rows():
        yield hashes, offsets


async def _all_of_each(self: Any) -> AsyncGenerator[tuple[Hashes, Offsets], None]:
    async for piece in _ROWS(replace(self, begin=0)):
        yield piece


def _later_inputs_first(pieces: Sequence[tuple[Hashes, Offsets]]) -> tuple[Hashes, Offsets]:
    return _SORTED([*reversed(pieces)])


_SORTED = merge._sorted


def _any_key(key: str) -> int:
    return crc32c(INDEX_OBJECT_MAGIC)


async def _ends_where_it_should(*args: Any, end: int, **options: Any) -> AsyncGenerator[Any, None]:
    """Cover the whole range, even if reading failed."""
    try:
        async for each in _BUILD(*args, end=end, **options):
            yield each
    except Corrupt:
        store, reader, spec = args[:3]
        name = IndexName(
            job.index_folder_of(reader.manifest.stream, spec),
            options["begin"],
            end,
            reader.manifest.version,
            reader.manifest.incarnation,
            options["env"].uuid(),
        )
        writer = index_object.IndexWriter(reader.manifest.stream, name, 0)
        await store.put(StreamKeys(reader.manifest.stream).index(name), job.Body.of(writer.end()))
        raise


def _no_loss(*args: Any) -> None:
    return None


INDEXES: Final = {
    "index: of any life": Mutant(
        "-",
        "an object counts only in the life of the stream in which it was made",
        set_to((find, "judged", _any_life), (job, "judged", _any_life)),
    ),
    "index: of any time": Mutant(
        "-", "an object does not count after a rebuild", set_to((rules, "JUMP", 2**64))
    ),
    "index: numbers of indexes do not count": Mutant(
        "-",
        "a rebuild goes above the root numbers in the keys of index objects",
        set_to((Survey, "_mentions", _numbers_of_indexes_do_not_count)),
    ),
    "index: above the root is nothing": Mutant(
        "-",
        "an object above the newest root proves that roots are lost",
        set_to((job, "refuse_if_above", _no_loss)),
    ),
    "index: root before listing": Mutant(
        "-",
        "objects are listed before the root is loaded",
        set_to((job._Indexing, "look", _root_before_listing)),
    ),
    "index: equal ones go": Mutant(
        "-",
        "of equal objects one stays",
        set_to((job, "judged", _equals_go), (find, "judged", _equals_go)),
    ),
    "find: damaged has nothing": Mutant(
        "-", "what a damaged object covers is scanned", set_to((find, "_offsets_in", _damaged_has_nothing))
    ),
    "find: gone has nothing": Mutant(
        "-", "a lookup whose object is gone lists again", set_to((find, "_offsets_in", _gone_has_nothing))
    ),
    "find: every hit": Mutant(
        "-", "a record is compared with the wanted terms", set_to((find, "with_terms", _every_hit))
    ),
    "find: another key": Mutant(
        "-", "an object under another key is damage", set_to((index_object, "_salt", _any_key))
    ),
    "merge: across a hole": Mutant(
        "-", "only neighbours become one object", set_to((rules, "_rows", _one_row))
    ),
    "merge: offsets stay": Mutant(
        "-", "offsets are those of the new object", set_to((merge._Input, "rows", _unmoved))
    ),
    "merge: overlaps twice": Mutant("-", "no row occurs twice", set_to((merge._Input, "rows", _all_of_each))),
    "merge: later inputs first": Mutant(
        "-", "rows of one hash ascend by offset", set_to((merge, "_sorted", _later_inputs_first))
    ),
}
