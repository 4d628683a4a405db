"""Mutants of a tier beside those of the protocol, which histories find.

They are faults that users of such systems suffered from, steps in a wrong order, and rules of the sweep.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Final
from uuid import UUID, uuid5

import numpy as np
import numpy.typing as npt
from simulation import people
from simulation.store import Life

import offload.upkeep.rebuild.stream as rebuild_run
import offload.upkeep.rotate as rotate_run
import offload.upkeep.shred as shred_run
import offload.upkeep.verify.stream as verify_run
from mutants.mutant import Mutant, set_to
from mutants.protocol import check_no_totals
from offload.commit import log as commit
from offload.commit.applying import append_entries
from offload.commit.groups import GroupCache
from offload.commit.guest import Delete, Trim, TrimmedTotals, entries_before
from offload.commit.log import RootLog
from offload.commit.writer import Append, Claim, Resolve
from offload.formats.keys import StreamKeys
from offload.formats.sealing import KEY_SECTION
from offload.ground.errors import Denied, NotFound, OffloadError, TryAgain
from offload.model.attempt import Receipt
from offload.model.entry import NO_ENTRIES, Entries
from offload.model.manifest import Manifest, StreamState
from offload.model.tree import EntryTree, Tree
from offload.native import adoption, key_ring
from offload.native.key_objects import decode_key_object, unwrap_key
from offload.native.key_ring import KeyRing
from offload.native.offloader import ObjectStoreOffloader
from offload.native.stream_key import StreamEncryption
from offload.read.reader import StreamWindows
from offload.upkeep.sweep import page as sweep_page
from offload.upkeep.sweep import run as run_module
from offload.upkeep.sweep.notes import SeenCondemned, Times
from offload.upkeep.sweep.page import SweepPage, Why
from offload.write.job import Job
from offload.write.writer import StreamWriter, always

_JUDGE_PAGES, _LOAD, _JUDGE = run_module._StreamSweep._judge_pages, SweepPage.load, SweepPage.judge
_WHY_FRAGMENT, _WHY_GROUP = sweep_page._why_fragment, sweep_page._why_group
_GROUPS_IN, _JUDGE_ROOT, _MARK = sweep_page._groups_in, sweep_page._judge_root, sweep_page._mark
_TRIM, _CLAIM, _DELETE = Trim.apply, Claim.apply, Delete.apply
_LOAD_GROUP, _GO_ON = GroupCache.load, StreamWindows._go_on
_COMMIT = ObjectStoreOffloader.commit_manifest
_EDITED, _JOB_REPLACE = commit.edited, Job.replace
_RESOLVE_STREAM = StreamWriter._resolve
_KEY_FOR_WRITING = StreamEncryption.key_for_writing
_COMPLETE, _DATA_KEY = adoption.complete, KeyRing.data_key
_ROTATE_KEY, _ENDED = rotate_run._Rotation._replace, shred_run._ended


_ROOTS_LOADED_FIRST: dict[int, Manifest | None] = {}
"""The roots, by the log that loaded each."""


async def _load_then_list(self: Any, log: RootLog) -> bool:
    _ROOTS_LOADED_FIRST[id(log)] = await log.load_newest()
    return await _JUDGE_PAGES(self, log)


async def _loaded_already(self: SweepPage) -> None:
    if id(self.log) in _ROOTS_LOADED_FIRST:
        self.root = _ROOTS_LOADED_FIRST.pop(id(self.log))
    else:
        await _LOAD(self)


def _no_attempt_is_spared(root: Manifest, is_named: bool, first_offset: int, runs: bool) -> Why:
    return _WHY_FRAGMENT(root, is_named, first_offset, False)


def _no_group_is_undecided(root: Manifest, is_named: bool, first_offset: int, version: int) -> Why:
    return _WHY_GROUP(root, is_named, first_offset, min(version, root.version))


def _tombstones_go(newest: Manifest, row: Any, name: bytes, kept: int) -> Any:
    verdict = _JUDGE_ROOT(newest, row, name, kept)
    return verdict._replace(why=Why.DELETED) if newest.state is StreamState.DELETED else verdict


def _seen_for_ever(self: SeenCondemned, rows: Any) -> Times:
    return np.zeros(len(rows))


async def _groups_trimmed_in_part(tree: Tree, low: int, high: int) -> Any:
    async for run in _GROUPS_IN(tree, low, high):
        yield run[run["first_offset"] >= np.uint64(tree.manifest.first_offset)]


def _mark_any(named: npt.NDArray[np.bool_], rows: Any, entries: Entries) -> None:
    if len(entries):
        _MARK(named, rows, entries)


async def _nothing_there(self: GroupCache, store: Any, manifest: Manifest, entry: Entries) -> Entries:
    try:
        return await _LOAD_GROUP(self, store, manifest, entry)
    except TryAgain:
        return NO_ENTRIES


async def _unreadable_is_unnamed(self: SweepPage) -> None:
    try:
        await _JUDGE(self)
    except OffloadError:
        assert self.root is not None
        self.root = replace(self.root, entries=NO_ENTRIES, first_offset=self.root.next_offset)
        await _JUDGE(self)


def _totals_stay(self: Trim, base: Manifest) -> Manifest:
    none = TrimmedTotals(messages=0, data_size_bytes=0, stored_size_bytes=0, fragments=0, ledgers=0)
    return _TRIM(replace(self, dropped=none), base)


def _first_offset_may_fall(self: Trim, base: Manifest) -> Manifest:
    here = entries_before(base, self.first_offset)
    anywhere = replace(self, since=base.first_offset, counted=here)
    return replace(_TRIM(anywhere, base), first_offset=self.first_offset)


async def _delete_before_the_commit(
    self: ObjectStoreOffloader, stream: str, change: Any, *, base: Manifest | None, committer: Any
) -> Manifest:
    if isinstance(change, Trim) and base is not None:
        keys, rows = StreamKeys(stream), [row async for run in self.tree(base).walk() for row in run]
        names = [(int(row["first_offset"]), UUID(bytes=bytes(row["attempt"]))) for row in rows]
        gone = [keys.fragment(*name) for name in names if name[0] < change.first_offset]
        await self.store.delete(gone)
    return await _COMMIT(self, stream, change, base=base, committer=committer)


async def _prefix_goes_with_the_stream(
    self: ObjectStoreOffloader, stream: str, change: Any, *, base: Manifest | None, committer: Any
) -> Manifest:
    manifest = await _COMMIT(self, stream, change, base=base, committer=committer)
    if isinstance(change, Delete):
        keys = StreamKeys(stream)
        await self.store.delete([row.key async for row in self.store.list(keys.data)])
        await self.store.delete([row.key async for row in self.store.list(keys.roots)])
    return manifest


async def _walk_from_the_first_child(self: EntryTree, offset: int = 0) -> AsyncGenerator[Entries, None]:
    entries = self.committed.entries
    ends = entries["first_offset"] + entries["records"]
    holding = entries[ends > np.uint64(offset)][:1]
    begin = int(holding["first_offset"][0]) if len(holding) and holding["kind"][0] else offset
    start = max(begin, self.committed.first_offset)
    async for run in self._walk(entries, start):
        yield run


async def _last_of_a_group_by_time(self: EntryTree, timestamp_ms: int) -> Any:
    return await self._first(lambda entries: entries["first_timestamp_ms"] >= timestamp_ms)


async def _skip_silently(self: StreamWindows, absent: Any) -> None:
    self._reader.emit, emit = people.nobody, self._reader.emit
    await _GO_ON(self, absent)
    self._reader.emit = emit


async def _gone_is_the_end(self: StreamWindows, absent: Any) -> None:
    raise StopAsyncIteration


async def _sources_go_before_the_commit(self: Job, old: Any, receipts: Any) -> Manifest:
    keys = StreamKeys(self.manifest.stream)
    store = self.offloader.store  # type: ignore[attr-defined]
    await store.delete([keys.fragment(entry.first_offset, entry.attempt) for entry in old])
    return await _JOB_REPLACE(self, old, receipts)


async def _edited_for_this_number(tree: Tree, edit: Any, *, version: int, uuid: Any) -> Any:
    return await _EDITED(tree, edit, version=version - 1, uuid=uuid)


async def _failed_upload_is_skipped(self: StreamWriter, handle: Any, attempt: Any, extra: Any) -> Receipt:
    try:
        return await self.offloader.offload(handle, attempt, manifest=self.manifest, extra_metadata=extra)
    except OffloadError:
        return Receipt(attempt=attempt, entries=[])


def _append_anywhere(self: Append, base: Manifest) -> Manifest:
    owned = self._owned(base)
    try:
        appended = append_entries(owned, self.entries)
    except OffloadError:
        appended = append_entries(replace(owned, next_offset=self.entries[0].first_offset), self.entries)
    return replace(appended, running=tuple(r for r in base.running if r.attempt not in self.finished))


def _born_of_the_dead(self: Claim, base: Manifest | None) -> Manifest:
    changed = _CLAIM(self, base)
    return changed if base is None else replace(changed, incarnation=base.incarnation)


def _rebirth_restarts(self: Claim, base: Manifest | None) -> Manifest:
    changed = _CLAIM(self, base)
    if base is not None and base.state is StreamState.DELETED:
        return replace(changed, epoch=1)
    return changed


def _tombstone_keeps_its_writer(self: Delete, base: Manifest | None) -> Manifest:
    assert base is not None
    return replace(_DELETE(self, base), writer=base.writer)


def _resolve_keeps_attempts(self: Resolve, base: Manifest) -> Manifest:
    return append_entries(self._owned(base), self.adopted)


async def _look_at_nothing(self: RootLog, proposal: Manifest, reply: Any) -> None:
    return None


async def _data_is_no_stream(store: Any, *prefixes: str) -> str | None:
    return None


async def _nothing_proves_a_loss(page: SweepPage, going: Any) -> None:
    pass


def _proves_nothing(*args: Any, **options: Any) -> None:
    pass


async def _agree_always(self: StreamWriter, agree: Any) -> None:
    await _RESOLVE_STREAM(self, always)


async def _source_epoch_is_forgotten(self: Any, *args: Any) -> int:
    return 0


def _what_vanished_is_left_out(
    self: Life, there: dict[str, int], wanted: Any, since: int, chance: Any
) -> dict[str, int]:
    return {key: size for key, size in there.items() if self.born.get(key, 0) <= since}


def _born_of_the_claim_alone(self: Claim, base: Manifest | None) -> Manifest:
    changed = _CLAIM(self, base)
    is_birth = base is None or base.state is StreamState.DELETED
    return replace(changed, incarnation=uuid5(self.writer, "incarnation")) if is_birth else changed


async def _clear_if_the_service_fails(self: StreamEncryption, manifest: Manifest) -> Any:
    try:
        return await _KEY_FOR_WRITING(self, manifest)
    except OffloadError:
        return None


async def _denied_is_not_whole(*args: Any, **options: Any) -> Any:
    try:
        return await _COMPLETE(*args, **options)
    except (Denied, TryAgain):
        return None


async def _older_generations_first(self: Any, draft: Any, raw: bytes, service: Any) -> None:
    names = await self._generations(draft.stream, UUID(draft.incarnation), UUID(draft.uid))
    await self.tier.store.delete([*names])
    await _ROTATE_KEY(self, draft, raw, service)


async def _first_listing_decides(service: Any, store: Any, stream: str, incarnation: UUID, uid: UUID) -> Any:
    keys = StreamKeys(stream)
    names = [row.key async for row in store.list(f"{keys.keys_of_life(incarnation)}{uid}.")]
    try:
        found = decode_key_object(await store.get(max(names)), keys=keys, where=max(names))
    except (NotFound, ValueError) as exc:
        raise Denied(f"the key {uid} is lost") from exc
    return found, await unwrap_key(service, found)


_DATA_KEYS: dict[UUID, tuple[Any, bytes]] = {}
"""The first data key of each attempt."""


def _one_data_key_for_an_attempt(self: KeyRing, key: Any, *, attempt: UUID, first_offset: int) -> Any:
    made, _ = _DATA_KEYS.setdefault(attempt, _DATA_KEY(self, key, attempt=attempt, first_offset=first_offset))
    again = replace(made, first_offset=first_offset, _digests={})
    return again, KEY_SECTION.pack(stream_key=key.uid.bytes, wrapped=again.wrapped(key.raw))


async def _master_key_stays(key: Any, label: str, service: Any, *, own: bool) -> Any:
    return await _ENDED(key, label, service, own=False)


TIER: Final[dict[str, Mutant]] = {
    "birth: beside data": Mutant(
        "2.0",
        "no stream begins beside the data of another",
        set_to((commit, "first_object", _data_is_no_stream)),
        seed=254,
    ),
    "sweep: nothing proves a loss": Mutant(
        "2.8",
        "a sweep keeps the objects that prove a loss of roots",
        set_to((run_module, "_refuse_if_roots_are_lost", _nothing_proves_a_loss)),
        seed=730,
    ),
    "verify: nothing proves a loss": Mutant(
        "2.9",
        "verify reports lost roots",
        set_to(
            (verify_run, "loss_shown_by_base", _proves_nothing),
            (verify_run, "loss_shown_by_group", _proves_nothing),
        ),
        seed=236,
    ),
    "resolve: agree always": Mutant(
        "2.6",
        "data that the source has cut is not adopted",
        set_to((StreamWriter, "_resolve", _agree_always)),
        seed=40,
    ),
    "rebuild: the source epoch is forgotten": Mutant(
        "2.9",
        "a rebuild keeps the source epoch",
        set_to((rebuild_run._Rebuild, "_source_epoch", _source_epoch_is_forgotten)),
        seed=355,
    ),
    "listing: what vanished is left out": Mutant(
        "2.0",
        "a listing never ends below the newest root of its beginning",
        set_to((Life, "shown", _what_vanished_is_left_out)),
        seed=19610,
    ),
    "rebirth: an incarnation of the claim alone": Mutant(
        "2.7", "an incarnation lives only once", set_to((Claim, "apply", _born_of_the_claim_alone)), seed=19
    ),
    "sweep: root first": Mutant(
        "2.8",
        "the sweep lists before it loads",
        set_to(
            (run_module._StreamSweep, "_judge_pages", _load_then_list), (SweepPage, "load", _loaded_already)
        ),
        seed=430,
    ),
    "sweep: what is unnamed": Mutant(
        "2.8",
        "the sweep spares running attempts",
        set_to((sweep_page, "_why_fragment", _no_attempt_is_spared)),
        seed=10,
    ),
    "sweep: undecided groups": Mutant(
        "2.8",
        "the sweep spares a group whose number is not decided",
        set_to((sweep_page, "_why_group", _no_group_is_undecided)),
        seed=952,
    ),
    "sweep: tombstones": Mutant(
        "2.7", "a tombstone is never deleted", set_to((sweep_page, "_judge_root", _tombstones_go)), seed=2
    ),
    "sweep: no grace": Mutant(
        "2.8",
        "objects that a reader has seen stay for the grace",
        set_to((SeenCondemned, "since", _seen_for_ever)),
        needs="a trim and two sweeps during a read, and clocks that never jump",
    ),
    "sweep: groups trimmed in part": Mutant(
        "3",
        "a group with a live fragment is named",
        set_to((sweep_page, "_groups_in", _groups_trimmed_in_part), (sweep_page, "_mark", _mark_any)),
        seed=72,
    ),
    "sweep: what cannot be read names nothing": Mutant(
        "2.8",
        "a failed read does not mean that an object is absent",
        set_to((SweepPage, "judge", _unreadable_is_unnamed)),
        seed=917,
    ),
    "a failed fetch of a group is nothing there": Mutant(
        "2.8",
        "a failed read does not mean that an object is absent",
        set_to((GroupCache, "load", _nothing_there)),
        seed=101,
    ),
    "trim: totals stay": Mutant(
        "2.10",
        "a trim subtracts the totals of the fragments that it removes",
        set_to((Trim, "apply", _totals_stay), (Manifest, "_check_totals", check_no_totals)),
        seed=13,
    ),
    "trim: backwards": Mutant(
        "2.10",
        "the first offset never falls",
        set_to((Trim, "apply", _first_offset_may_fall), (Manifest, "_check_totals", check_no_totals)),
        seed=208,
    ),
    "trim: delete before the commit": Mutant(
        "2.10",
        "commit first, delete later",
        set_to((ObjectStoreOffloader, "commit_manifest", _delete_before_the_commit)),
        seed=9,
    ),
    "delete: the prefix goes": Mutant(
        "2.7",
        "a stream is deleted by the sweep's rules, never by its prefix",
        set_to((ObjectStoreOffloader, "commit_manifest", _prefix_goes_with_the_stream)),
        seed=7,
    ),
    "delete: the writer stays": Mutant(
        "2.7",
        "a tombstone fences every writer",
        set_to((Delete, "apply", _tombstone_keeps_its_writer)),
        seed=7,
    ),
    "rebirth: the old incarnation": Mutant(
        "2.7", "each rebirth has a new incarnation", set_to((Claim, "apply", _born_of_the_dead)), seed=2
    ),
    "rebirth: epochs begin again": Mutant(
        "2.7", "epochs continue after a rebirth", set_to((Claim, "apply", _rebirth_restarts)), seed=2
    ),
    "lookup: the first child of a group": Mutant(
        "-",
        "a lookup goes to the child that holds the target",
        set_to((EntryTree, "walk", _walk_from_the_first_child)),
        seed=27,
    ),
    "lookup: by first times": Mutant(
        "-",
        "a lookup finds a time between two fragments in the earlier one",
        set_to((EntryTree, "first_since", _last_of_a_group_by_time)),
        seed=9,
    ),
    "reader: skips silently": Mutant(
        "2.8",
        "a reader reports the offsets that it skips",
        set_to((StreamWindows, "_go_on", _skip_silently)),
        seed=2920,
    ),
    "reader: gone is the end": Mutant(
        "2.8",
        "a reader loads the newest root if an object is gone",
        set_to((StreamWindows, "_go_on", _gone_is_the_end)),
        seed=686,
    ),
    "replace: sources go before the commit": Mutant(
        "2.11",
        "a sweep deletes replaced fragments after the commit",
        set_to((Job, "replace", _sources_go_before_the_commit)),
        seed=30,
    ),
    "replace: groups of this number": Mutant(
        "2.11",
        "a replacement makes its groups for the next number",
        set_to((commit, "edited", _edited_for_this_number)),
        seed=30,
    ),
    "writer: a failed upload is skipped": Mutant(
        "2.5",
        "the entries of a stream have no gap",
        set_to((StreamWriter, "_upload", _failed_upload_is_skipped), (Append, "apply", _append_anywhere)),
        seed=20,
    ),
    "resolve: attempts stay": Mutant(
        "2.6",
        "a resolution condemns older attempts",
        set_to((Resolve, "apply", _resolve_keeps_attempts)),
        seed=3,
    ),
    "commit: no listing": Mutant(
        "2.1.3", "every create is followed by a listing", set_to((RootLog, "_look", _look_at_nothing)), seed=1
    ),
    "keys: in the clear if the service fails": Mutant(
        "-",
        "an encrypted stream is never continued in the clear",
        set_to((StreamEncryption, "key_for_writing", _clear_if_the_service_fails)),
        seed=516,
    ),
    "keys: one data key for an attempt": Mutant(
        "-",
        "a data key encrypts one fragment",
        set_to((KeyRing, "data_key", _one_data_key_for_an_attempt)),
        seed=12,
    ),
    "keys: the first listing decides": Mutant(
        "-",
        "a key that was rotated after a listing is not lost",
        set_to((key_ring, "open_key", _first_listing_decides)),
        seed=2137,
    ),
    "adoption: denied is not whole": Mutant(
        "2.6",
        "a missing key does not mean that a fragment is not whole",
        set_to((adoption, "complete", _denied_is_not_whole)),
        seed=40,
    ),
    "rotate: the older generation goes first": Mutant(
        "-",
        "a generation is deleted after the next one is stored",
        set_to((rotate_run._Rotation, "_replace", _older_generations_first)),
        seed=127,
    ),
    "shred: the master key stays": Mutant(
        "-",
        "a shred destroys a stream's own master key",
        set_to((shred_run, "_ended", _master_key_stays)),
        seed=760,
    ),
}
