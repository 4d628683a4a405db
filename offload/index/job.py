"""Indexing a stream: check the objects, build what is not indexed, merge small ones, delete what is unused.

    stopped                  left behind                        cured by
    before a put             nothing                            the next run
    between put and delete   objects within the new one         the next run, or a sweep: they are unused

Two processes may index one stream at the same time. Both store objects of the same offsets, and the rules
choose the same ones (`index.rules`). A reader needs no order of puts and deletes: what it misses, it scans.

The header and the directory of each object that counts are checked, by two requests for most. A damaged
object is deleted, and what it covered is indexed again. Damaged rows are found by a merge, by a lookup of
their terms, and by `verify`, which reads all of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from offload.contracts.decoder import Decoder
from offload.formats.keys import IndexName, StreamKeys
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Denied, NotFound, StoreDenied
from offload.ground.tasks import run_each
from offload.index.build import Built, build_range, index_folder_of
from offload.index.merge import merge
from offload.index.objects import IndexObject, check_index, list_indexes
from offload.index.ranges import build_ranges, merge_ranges
from offload.index.rules import Judged, judged, merges, uncovered
from offload.index.terms import Spec
from offload.model.manifest import Manifest
from offload.native.lost_roots import loss_shown_by_base
from offload.native.offloader import ObjectStoreOffloader
from offload.parts.whole_stream import WholeStream
from offload.read.reader import StreamReader

__all__ = ["IndexReport", "index", "index_part", "unindexed"]

CHECKS_AT_ONCE: Final = 8
MERGED_RANGES_SIZE_BYTES_MAX: Final = 8 * 2**20


@dataclass(slots=True)
class IndexReport:
    """The result of indexing one part of a stream, final or so far."""

    stream: str
    """The name of the part."""
    built: int = 0
    """Objects that were built."""
    rows: int = 0
    """Rows of these objects: a row is a term of a record."""
    records: int = 0
    """Offsets that these objects cover."""
    bytes: int = 0
    """Bytes of these objects."""
    merged: int = 0
    """Objects that were made of others."""
    merged_rows: int = 0
    deleted: int = 0
    """Unused objects that were deleted."""
    objects: int = 0
    """Objects that count now."""
    size_bytes: int = 0
    """Bytes of the objects that count now."""
    next_offset: int = 0
    """The first offset that was not indexed."""
    damages: list[Corrupt] = field(default_factory=list)
    """Damage of index objects. They were deleted, and what they covered was indexed again."""

    def as_json(self) -> dict[str, object]:
        """Return a line of `offload index --json`."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "damages": [str(damage) for damage in self.damages]}


OnIndexed = Callable[[IndexReport], None]


async def index(
    tier: ObjectStoreOffloader,
    stream: str,
    spec: Spec,
    decoder: Decoder,
    *,
    is_checked: bool = True,
    env: Env | None = None,
    progress: OnIndexed = lambda report: None,
) -> AsyncGenerator[IndexReport, None]:
    """Index what is committed of a stream and not indexed, in all of its parts. Yield a report of each part.

    With `is_checked`, damaged objects are found first, by a request or two for each object.
    Safe beside writers, readers, sweeps and other runs. A run that is killed keeps the objects that it
    stored. Calls `progress` from time to time. Close the generator.

    Raises `NotOffloaded` and `StreamDeleted` as a reader does, `Denied` for an encrypted stream, `RootsLost`
    if an index object proves that roots are lost, `Misuse` if the decoder has no section that the SPEC names,
    and what reading raises.
    """
    await tier.open()
    for number, view in await WholeStream(tier, stream).views():
        reader = StreamReader(tier, view.committed, part=number)
        yield await index_part(tier, reader, spec, decoder, is_checked=is_checked, env=env, progress=progress)


async def index_part(
    tier: ObjectStoreOffloader,
    reader: StreamReader,
    spec: Spec,
    decoder: Decoder,
    *,
    is_checked: bool = True,
    env: Env | None = None,
    progress: OnIndexed = lambda report: None,
) -> IndexReport:
    """Index one part of a stream, as `index` does, up to where it ended when the reader was opened."""
    env, name = env or Env(), reader.manifest.stream
    run = _Indexing(tier, name, spec, env, IndexReport(name))
    state = await run.look()
    if is_checked and await run.drop_damaged(state):
        state = await run.look()
    end = state.root.next_offset
    for _ in range(2):  # twice if a merge meets damage, and deletes the object
        reader = StreamReader(tier, state.root, part=reader.part)
        for left in state.uncovered(end):
            build = build_ranges if spec.is_of_ranges else build_range
            built = build(tier.store, reader, spec, decoder, begin=left.start, end=left.stop, env=env)
            async with aclosing(built):
                async for each in built:
                    run.add(each)
                    progress(run.report)
        if run.report.built:
            state = await run.look()
        while await run.merge(state):
            progress(run.report)
            state = await run.look()
        if not state.uncovered(end):
            break
    await run.delete_unused(state)
    return run.report


async def unindexed(tier: ObjectStoreOffloader, stream: str, spec: Spec) -> tuple[Manifest, list[range]]:
    """Return the newest root of one part, and its offsets that are not indexed. Raises as `index` does."""
    state = await _Indexing(tier, stream, spec, Env(), IndexReport(stream)).look()
    return state.root, state.uncovered(state.root.next_offset)


@dataclass(frozen=True, slots=True)
class _State:
    """The index objects of a part by name, and the root that was loaded after they were listed."""

    root: Manifest
    objects: dict[IndexName, IndexObject]
    judged: Judged

    def uncovered(self, end: int) -> list[range]:
        """Return the committed offsets before `end` that are not indexed."""
        return uncovered(self.judged.used, self.root.first_offset, min(end, self.root.next_offset))


@dataclass(slots=True)
class _Indexing:
    tier: ObjectStoreOffloader
    stream: str
    spec: Spec
    env: Env
    report: IndexReport

    async def look(self) -> _State:
        """List the index objects, and then load the root. Refuse a stream that cannot be indexed."""
        listed = await list_indexes(self.tier.store, self.stream, index_folder_of(self.stream, self.spec))
        root = await self.tier.load_manifest(self.stream)
        await _refuse_if_encrypted(self.tier, root)
        found = judged([each.name for each in listed], root)
        refuse_if_above(self.tier, root, found)
        return _State(root, {each.name: each for each in listed}, found)

    def add(self, built: Built) -> None:
        """Count an object that was built."""
        self.report.built += 1
        self.report.rows += built.rows
        self.report.records += built.name.records
        self.report.bytes += built.size_bytes
        self.report.next_offset = built.name.next_offset

    async def drop_damaged(self, state: _State) -> bool:
        """Delete the objects whose header or directory is damaged. Return whether there were any."""

        async def check(name: IndexName) -> None:
            try:
                await check_index(state.objects[name], reads_rows=False)
            except NotFound:  # another process merged it
                pass
            except Corrupt as damage:
                await self._drop(damage)

        await run_each(check, state.judged.used, at_once=CHECKS_AT_ONCE)
        return bool(self.report.damages)

    async def _drop(self, damage: Corrupt) -> None:
        """Delete a damaged object, which is of no use to anybody."""
        self.report.damages.append(damage)
        await self.tier.store.delete([damage.where])

    async def merge(self, state: _State) -> bool:
        """Merge each eight neighbours of a class. Return whether there were any: look again then."""
        most = self.tier.store.capabilities.put_size_bytes_max
        if self.spec.is_of_ranges:  # they are merged in memory
            most = min(MERGED_RANGES_SIZE_BYTES_MAX, most or MERGED_RANGES_SIZE_BYTES_MAX)
        groups = [[state.objects[name] for name in group] for group in merges(state.judged.used)]
        groups = [each for each in groups if most is None or sum(one.size_bytes for one in each) <= most]
        for inputs in groups:
            try:
                work = partial(merge_ranges, spec=self.spec) if self.spec.is_of_ranges else merge
                made = await work(self.tier.store, inputs, state.root, env=self.env)
            except NotFound:  # another process merged them
                continue
            except Corrupt as damage:
                if damage.where not in {each.key for each in inputs}:
                    raise
                await self._drop(damage)
                continue
            self.report.merged += 1
            self.report.merged_rows += made.rows
        return bool(groups)

    async def delete_unused(self, state: _State) -> None:
        """Delete what no lookup uses any more, and count what is left."""
        unused = [StreamKeys(self.stream).index(name) for name in state.judged.unused]
        if unused:
            await self.tier.store.delete(unused)
        used = [state.objects[name] for name in state.judged.used]
        self.report.deleted = len(unused)
        self.report.objects, self.report.size_bytes = len(used), sum(each.size_bytes for each in used)
        left = state.uncovered(state.root.next_offset)
        self.report.next_offset = left[0].start if left else state.root.next_offset


def refuse_if_above(tier: ObjectStoreOffloader, root: Manifest, found: Judged) -> None:
    """Raise `RootsLost` if an index object was made on a root above the newest one."""
    keys = StreamKeys(root.stream)
    for name in found.above:
        loss = loss_shown_by_base(tier.log(root.stream), keys.index(name), name.version, root)
        if loss is not None:
            raise loss


async def _refuse_if_encrypted(tier: ObjectStoreOffloader, root: Manifest) -> None:
    try:
        if not await tier.encrypts(root):
            return
    except StoreDenied:
        raise
    except Denied:  # it is encrypted, and no keys were given
        pass
    raise Denied(f"stream {root.stream!r} is encrypted: an index would show which records have the same key")
