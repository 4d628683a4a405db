"""Mutants of the commit protocol: without its rule, the replay of a counterexample shows the predicted harm.

Some of them change the sweep of the tests, `protocol_sweep`. `tier` has their counterparts in the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from protocol_sweep import Sweep

from mutants.mutant import Mutant, set_to
from offload.commit import applying as changes
from offload.commit import guest as guest_module
from offload.commit import job as job_module
from offload.commit import job as replacing
from offload.commit import log as commit
from offload.commit import writer as writer_module
from offload.commit.applying import append_entries, existing
from offload.commit.guest import Trim
from offload.commit.job import Contribute, Replace
from offload.commit.log import RootLog
from offload.commit.writer import Append, Claim, Prepare, Resolve
from offload.contracts.change import CommitVerdict
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body, Listed, ObjectStore
from offload.formats.checksums import crc32c
from offload.formats.fragment_trailer import TRAILER, FragmentTrailer
from offload.formats.group import Group
from offload.formats.keys import StreamKeys
from offload.ground.errors import Conflict, Fenced, NotFound
from offload.model.attempt import Attempt, Leftover
from offload.model.entry import Entries, Entry, joined_entries, rows_of_entries
from offload.model.manifest import AttemptKind, Manifest, Running
from offload.model.tree import Tree
from offload.native import adoption
from offload.native import offloader as object_store_offloader
from offload.native.fragment_writer import entry_of
from offload.native.offloader import ObjectStoreOffloader
from offload.read.reader import StreamWindows
from offload.store.wrap import StoreDecorator
from offload.upkeep import retention
from offload.write import job as guest
from offload.write.writer import StreamWriter


async def _load_unconfirmed(self: RootLog, *, known: int = 0) -> Manifest | None:
    while (highest := await self._highest(after=max(known - 1, 0))) is not None:
        try:
            return await self._read(highest)
        except NotFound:
            continue
    return None


async def _load_probing(self: RootLog, *, known: int = 0) -> Manifest | None:
    if not known:
        return await _load_unconfirmed(self)
    found = None
    try:
        found = await self._read(known)
        while True:
            found = await self._read(found.version + 1)
    except NotFound:
        return found or await _load_unconfirmed(self)


async def _trust_success(self: RootLog, proposal: Manifest, reply: Any) -> Any:
    if reply is commit._Reply.CREATED:
        return None
    return await _LOOK(self, proposal, reply)


async def _trust_own_id(self: RootLog, proposal: Manifest, reply: Any) -> Any:
    if reply is not commit._Reply.CREATED and await _own_id_unconfirmed(self, proposal):
        return None
    return await _LOOK(self, proposal, reply)


async def _own_id_unconfirmed(self: RootLog, proposal: Manifest) -> bool:
    try:
        return (await self._read(proposal.version)).commit_id == proposal.commit_id
    except NotFound:
        return False


async def _exists_is_loss(self: RootLog, proposal: Manifest, reply: Any) -> Any:
    if reply is commit._Reply.EXISTS:
        raise Conflict("the name was taken")
    return await _LOOK(self, proposal, reply)


async def _lost_is_not_landed(self: RootLog, proposal: Manifest, reply: Any) -> Any:
    if await self._highest(after=0) is None:
        return commit._NOT_LANDED
    return await _LOOK(self, proposal, reply)


def _claim_by_broker_epoch(self: Claim, base: Manifest | None) -> Manifest:
    changed = _CLAIM(self, base)
    return replace(changed, epoch=max(base.epoch if base else 0, self.source_epoch))


def _claim_any_source_epoch(self: Claim, base: Manifest | None) -> Manifest:
    return _CLAIM(replace(self, source_epoch=max(self.source_epoch, base.source_epoch if base else 0)), base)


def _owned_by_anyone(self: Any, base: Manifest) -> Manifest:
    return base


def _append_without_running(self: Append, base: Manifest) -> Manifest:
    appended = append_entries(self._owned(base), self.entries)
    return replace(appended, running=tuple(r for r in base.running if r.attempt not in self.finished))


def _resolve_without_running(self: Resolve, base: Manifest) -> Manifest:
    appended = append_entries(self._owned(base), self.adopted)
    return replace(appended, running=tuple(r for r in base.running if not self.settles(r)))


async def _never_in(self: Any, tree: Tree) -> CommitVerdict:
    return CommitVerdict.OUT


async def _adopt_any(store: Any, manifest: Manifest, ring: Any = None) -> list[Leftover]:
    keys = StreamKeys(manifest.stream)
    found: list[Leftover] = []
    next_offset = manifest.next_offset
    async for listed in store.list(keys.data):
        parsed = keys.parse_fragment(listed.key)
        if parsed is not None and parsed[0] == next_offset:
            of = {"stream": manifest.stream, "incarnation": manifest.incarnation}
            upload = await adoption.complete(store, listed, **of)
            if upload is not None:
                found.append(upload)
                next_offset = upload.entry.next_offset
    return found


async def _adopt_unchecked(
    store: Any, listed: Listed, *, stream: str, incarnation: UUID, ring: Any = None
) -> Leftover:
    raw = await store.get(listed.key)
    trailer = FragmentTrailer.decode(raw[-TRAILER.size_bytes :], where=listed.key)
    return Leftover(entry=entry_of(trailer, crc32c(raw)), last_chunk_offset=0, last_chunk_checksum=0)


async def _prepare_same_key(self: StreamWriter, ledger_ids: Sequence[int]) -> list[Attempt]:
    stream = self.manifest.stream
    attempts = [
        Attempt(stream=stream, ledger_id=i, uid=uuid5(NAMESPACE_URL, f"{stream}/{i}")) for i in ledger_ids
    ]
    await self._commit(Prepare(writer=self.writer, attempts=[(a.uid, a.ledger_id) for a in attempts]))
    return attempts


async def _offload_upload_first(
    self: StreamWriter, handles: Sequence[ReadHandle], *, extra_metadata: Mapping[str, str] | None = None
) -> None:
    uids = [self.env.uuid() for _ in handles]
    stream = self.manifest.stream
    receipts = []
    for handle, uid in zip(handles, uids, strict=True):
        attempt = Attempt(stream=stream, ledger_id=handle.ledger_id, uid=uid)
        running = Running(attempt=uid, ledger_id=0, epoch=0, writer=self.writer)
        seeming = replace(self.manifest, running=(running,))
        receipts.append(
            await self.offloader.offload(
                handle, attempt, manifest=seeming, extra_metadata=extra_metadata or {}
            )
        )
    await self._commit(Prepare(writer=self.writer, attempts=[(uid, 0) for uid in uids]))
    await self.append(receipts)


async def _offload_fenced_deletes(self: StreamWriter, handles: Sequence[ReadHandle], **options: Any) -> None:
    try:
        await _OFFLOAD(self, handles, **options)
    except Fenced:
        mine = [r.attempt for r in self.manifest.running if r.writer == self.writer]
        for uid in mine:
            await _delete_at_once(self.offloader, Attempt(stream=self.manifest.stream, ledger_id=0, uid=uid))
        raise


async def _delete_at_once(self: Any, attempt: Attempt) -> None:
    keys = StreamKeys(attempt.stream)
    listed = [row.key async for row in self._objects_of_attempt(keys, attempt.uid)]
    await self.store.delete(listed)


def _sweep_root_first(self: Sweep) -> Any:
    return self.load_root, self.list_objects, self.decide, self.delete


def _sweep_unnamed(self: Sweep, root: Manifest, key: str, attempt: UUID) -> bool:
    return key not in self.named


def _sweep_by_epoch(self: Sweep, root: Manifest, key: str, attempt: UUID) -> bool:
    raw = self.process.world.objects[key]
    epoch = FragmentTrailer.decode(raw[-TRAILER.size_bytes :], where=key).epoch
    return key not in self.named and epoch < root.epoch


def _sweep_undecided_groups(self: Sweep, root: Manifest, key: str, version: int) -> bool:
    return key not in self.named


def _purge(self: Sweep, key: str, newest: int) -> bool:
    return True


class _PutLater(StoreDecorator):
    """A store that keeps its puts back."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.puts: list[tuple[str, Body]] = []

    async def put(self, key: str, body: Body) -> None:
        self.puts.append((key, body))


def _groups_after_the_root(patch: pytest.MonkeyPatch) -> None:
    later: dict[UUID, list[tuple[str, Body]]] = {}

    async def propose(self: RootLog, change: Any, base: Manifest | None, committer: UUID) -> Manifest:
        store = _PutLater(self.store)
        proposal = await _PROPOSE(replace(self, store=store), change, base, committer)
        later[proposal.commit_id] = store.puts
        return proposal

    async def settle(self: RootLog, proposal: Manifest) -> Manifest | None:
        newest = await _SETTLE(self, proposal)
        for key, body in later.pop(proposal.commit_id):
            await self.store.put(key, body)
        return newest

    set_to((RootLog, "_propose", propose), (RootLog, "_settle", settle))(patch)


def _groups_made_once(patch: pytest.MonkeyPatch) -> None:
    made: dict[bytes, Any] = {}

    def collapse(manifest: Manifest, **options: Any) -> Any:
        entries = manifest.entries.tobytes()
        if entries not in made:
            made[entries] = _COLLAPSE(manifest, **options)
        collapsed, groups = made[entries]
        return replace(manifest, entries=collapsed.entries), groups

    patch.setattr(commit, "collapse", collapse)


def _entry_of_another_total(self: Group, raw: bytes) -> Entries:
    row = _ENTRY_OF(self, raw).copy()
    row["messages"] -= 1
    return row


def _entry_of_the_last_time(self: Group, raw: bytes) -> Entries:
    row = _ENTRY_OF(self, raw).copy()
    row["first_timestamp_ms"] = self.entries["first_timestamp_ms"][-1]
    return row


def check_no_totals(self: Manifest, where: str, *, trimmed: bool) -> None:
    pass


def _trim_from_anywhere(self: Trim, base: Manifest) -> Manifest:
    here = guest_module.entries_before(base, self.first_offset)
    return _TRIM(replace(self, since=base.first_offset, counted=here), base)


def _contribute_of(base: Manifest, change: Contribute) -> Manifest:
    appended = append_entries(base, change.entries)
    return replace(appended, running=tuple(r for r in base.running if r.attempt not in change.finished))


def _contribute_without_running(self: Contribute, base: Manifest) -> Manifest:
    return _contribute_of(self.begun_on(base), self)


def _contribute_what_runs_for_anyone(self: Contribute, base: Manifest) -> Manifest:
    for entry in self.entries:
        if not base.runs(entry.attempt):
            raise Conflict(f"attempt {entry.attempt} does not run")
    return _contribute_of(self.begun_on(base), self)


def _begun_on_any(self: Any, base: Manifest | None) -> Manifest:
    return existing(base)


async def _in_where_trimmed(self: Contribute, tree: Tree) -> CommitVerdict:
    found = await _CONTRIBUTED(self, tree)
    trimmed = tree.manifest.first_offset >= self.entries[-1].next_offset
    return CommitVerdict.IN if trimmed and found is CommitVerdict.UNKNOWN else found


def _replace_whatever_is_named(self: Replace, run: Entries) -> Entries:
    begin, end = self.old[0].first_offset, self.old[-1].next_offset
    inside = (run["first_offset"] >= begin) & (run["first_offset"] < end)
    before = run[run["first_offset"] < begin]
    ledgers = None if len(before) == 0 or run["ledgers"][inside][0] else self.new[0].ledger_id
    return joined_entries(
        before, rows_of_entries(self.new, after_ledger=ledgers), run[run["first_offset"] >= end]
    )


def _replace_without_running(self: Replace, base: Manifest) -> Manifest:
    own = tuple(
        Running(attempt=uid, ledger_id=0, epoch=0, writer=self.job, kind=AttemptKind.COPY)
        for uid in self.attempts
    )
    changed = _REPLACE(self, replace(base, running=own))
    return replace(changed, running=tuple(r for r in base.running if r.attempt not in self.attempts))


def _replace_what_was_trimmed(self: Replace, base: Manifest) -> Manifest:
    return replace(_REPLACE(self, replace(base, first_offset=0)), first_offset=base.first_offset)


def _replace_the_newest(self: Replace, base: Manifest) -> Manifest:
    return replace(_REPLACE(self, replace(base, next_offset=2**63)), next_offset=base.next_offset)


async def _no_copy_counts(tree: Tree, entries: Sequence[Entry], *, over: bool) -> CommitVerdict:
    found = await _NAMED(tree, entries, over=over)
    return CommitVerdict.OUT if found is CommitVerdict.UNKNOWN and await _is_copied(tree, entries) else found


async def _any_copy_counts(tree: Tree, entries: Sequence[Entry], *, over: bool) -> CommitVerdict:
    return (
        CommitVerdict.IN
        if over and await _is_copied(tree, entries)
        else await _NAMED(tree, entries, over=over)
    )


async def _is_copied(tree: Tree, entries: Sequence[Entry]) -> bool:
    found = await tree.find(entries[-1].first_offset) if entries else None
    return found is not None and bool(found.copied)


def _no_token(uid: UUID) -> bytes:
    return b""


def _trim_whatever_is_named(manifest: Manifest, offset: int) -> bytes:
    return b""


def _replaced_unsaid(self: Replace, run: Entries) -> Entries:
    edited = _REPLACED(self, run).copy()
    edited["copied"] = 0
    return edited


def _own_of_any_kind(self: Any, manifest: Manifest, kind: AttemptKind = AttemptKind.JOB) -> set[UUID]:
    return {each.attempt for each in manifest.running if each.writer == self.job}


async def _go_on_elsewhere(self: StreamWindows, *, behind: bool) -> None:
    entry = await self._view.find(self._next_offset)
    if entry is not None and entry.copied and entry.first_offset < self._next_offset:
        self._next_offset = entry.next_offset if behind else entry.first_offset
        await self.begin_anew(self._view, self._next_offset)


async def _copies_are_read_anew(self: StreamWindows, absent: Any) -> None:
    await _GO_ON(self, absent)
    await _go_on_elsewhere(self, behind=False)


async def _copies_are_left_out(self: StreamWindows, absent: Any) -> None:
    await _GO_ON(self, absent)
    await _go_on_elsewhere(self, behind=True)


def _settles_jobs_too(self: Resolve, running: Running) -> bool:
    return running.writer != self.writer


async def _adopt_of_jobs_too(store: Any, manifest: Manifest, ring: Any = None) -> list[Leftover]:
    as_writers = tuple(replace(running, kind=AttemptKind.STREAM) for running in manifest.running)
    return await _LEFTOVERS(store, replace(manifest, running=as_writers), ring)


_LEFTOVERS = adoption.find_leftovers
_LOOK, _CLAIM, _OFFLOAD = RootLog._look, Claim.apply, StreamWriter.offload
_PROPOSE, _SETTLE, _COLLAPSE = RootLog._propose, RootLog._settle, commit.collapse
_ENTRY_OF, _TRIM = Group.entry, Trim.apply
_REPLACE, _REPLACED = Replace.apply, Replace.replaced
_NAMED, _CONTRIBUTED = changes.verdict_on_entries, Contribute.verdict
_GO_ON = StreamWindows._go_on


PROTOCOL: Final[dict[str, Mutant]] = {
    "unconfirmed load": Mutant(
        "2.0",
        "a load is confirmed by a second listing",
        set_to((RootLog, "load_newest", _load_unconfirmed)),
        needs="a process that sleeps between a listing and a read, and a zombie at that name",
    ),
    "probing": Mutant(
        "2.0", "the newest root is found by listing", set_to((RootLog, "load_newest", _load_probing)), seed=8
    ),
    "success is accepted": Mutant(
        "2.1.4", "a success reply alone is never success", set_to((RootLog, "_look", _trust_success)), seed=33
    ),
    "own id is accepted": Mutant(
        "2.1.4",
        "the writer's own id under the number is not a proof",
        set_to((RootLog, "_look", _trust_own_id)),
        seed=2260,
    ),
    "own id unconfirmed": Mutant(
        "2.1.3",
        "the root that was read is the one that was listed",
        set_to((RootLog, "_is_ours", _own_id_unconfirmed)),
        needs="a create that lands late, as a zombie, between a listing and a read",
    ),
    "exists is loss": Mutant(
        "2.1.5", "`exists` is never loss without looking", set_to((RootLog, "_look", _exists_is_loss)), seed=9
    ),
    "lost roots are created again": Mutant(
        "2.1.3",
        "nothing is created if roots were lost",
        set_to((RootLog, "_look", _lost_is_not_landed)),
        needs="roots that are lost while a create is lost on its way",
    ),
    "doubt is not decided by content": Mutant(
        "2.1.3", "a change that is in is finished", set_to((Append, "verdict", _never_in)), seed=662
    ),
    "fence by epoch only": Mutant(
        "2.2",
        "the writer is compared, not the broker's epoch alone",
        set_to(
            (Claim, "apply", _claim_by_broker_epoch), (writer_module.OfWriter, "_owned", _owned_by_anyone)
        ),
        seed=0,
    ),
    "source epoch may fall": Mutant(
        "2.2", "a lower source epoch is fenced", set_to((Claim, "apply", _claim_any_source_epoch)), seed=0
    ),
    "upload first": Mutant(
        "2.3",
        "uploads begin after the prepare is accepted",
        set_to((StreamWriter, "offload", _offload_upload_first)),
        seed=0,
    ),
    "same key for another cut": Mutant(
        "2.4", "a new cut is a new attempt", set_to((StreamWriter, "prepare", _prepare_same_key)), seed=0
    ),
    "append without running": Mutant(
        "2.5",
        "only running attempts are appended",
        set_to((Append, "apply", _append_without_running)),
        seed=305,
    ),
    "adopt any": Mutant(
        "2.6",
        "only running attempts are adopted",
        set_to(
            (object_store_offloader, "find_leftovers", _adopt_any),
            (Resolve, "apply", _resolve_without_running),
        ),
        seed=12,
    ),
    "adopt unchecked": Mutant(
        "2.6", "only sound fragments are adopted", set_to((adoption, "complete", _adopt_unchecked)), seed=28
    ),
    "fenced deletes": Mutant(
        "2.7",
        "a fenced writer deletes nothing",
        set_to((StreamWriter, "offload", _offload_fenced_deletes)),
        seed=79,
    ),
    "delete without a commit": Mutant(
        "2.7",
        "deleting commits first, and judges",
        set_to((ObjectStoreOffloader, "delete_offloaded", _delete_at_once)),
        seed=10,
    ),
    "purge": Mutant(
        "2.7", "the newest root, tombstone included, is never deleted", set_to((Sweep, "goes", _purge))
    ),
    "root first": Mutant(
        "2.8", "the sweep lists before it loads", set_to((Sweep, "phases", _sweep_root_first))
    ),
    "sweep what is unnamed": Mutant(
        "2.8", "the sweep spares running attempts", set_to((Sweep, "condemns", _sweep_unnamed))
    ),
    "sweep by epoch": Mutant(
        "2.8", "an older epoch condemns nothing", set_to((Sweep, "condemns", _sweep_by_epoch))
    ),
    "sweep undecided groups": Mutant(
        "2.8",
        "the sweep spares a group whose number is not decided",
        set_to((Sweep, "condemns_group", _sweep_undecided_groups)),
    ),
    "groups after the root": Mutant(
        "2.1", "a group is stored before the root that names it is created", _groups_after_the_root, seed=0
    ),
    "groups made once": Mutant(
        "2.8", "a writer that loses a number makes its groups again for the next", _groups_made_once, seed=26
    ),
    "wrong total of a group": Mutant(
        "2.1",
        "the entry of a group agrees with the group",
        set_to((Group, "entry", _entry_of_another_total), (Manifest, "_check_totals", check_no_totals)),
        seed=0,
    ),
    "wrong time of a group": Mutant(
        "2.1",
        "the entry of a group has the group's first time",
        set_to((Group, "entry", _entry_of_the_last_time)),
        seed=0,
    ),
    "trim from anywhere": Mutant(
        "2.10",
        "a trim is valid only for the beginning that it was counted on",
        set_to((Trim, "apply", _trim_from_anywhere), (Manifest, "_check_totals", check_no_totals)),
        seed=208,
    ),
    "job: append without running": Mutant(
        "2.10",
        "a job appends only running attempts",
        set_to((Contribute, "apply", _contribute_without_running)),
        seed=27,
    ),
    "job: append what runs for another": Mutant(
        "2.10",
        "a job appends only its own running attempts",
        set_to((Contribute, "apply", _contribute_what_runs_for_anyone)),
        seed=27,
    ),
    "job: any incarnation": Mutant(
        "2.10",
        "a job belongs to the incarnation that it began on",
        set_to((job_module.OfJob, "begun_on", _begun_on_any)),
        needs="a deletion and a rebirth after a job began and before it announces",
    ),
    "job: doubt is not decided by content": Mutant(
        "2.1.3",
        "a job's append that is in is finished",
        set_to((Contribute, "verdict", _never_in)),
        needs="a job's append whose reply is lost, and a later commit",
    ),
    "job: what was trimmed was in": Mutant(
        "2.1.3",
        "a job gets no result for an append that nothing shows",
        set_to((Contribute, "verdict", _in_where_trimmed)),
        needs="an abort, a rival's append and a trim, during one append of a job",
    ),
    "job: dropped with older writers": Mutant(
        "2.10", "claims keep the attempts of jobs", set_to((Resolve, "settles", _settles_jobs_too)), seed=18
    ),
    "job: adopted": Mutant(
        "2.10",
        "a job's uploads are not adopted",
        set_to(
            (object_store_offloader, "find_leftovers", _adopt_of_jobs_too),
            (Resolve, "apply", _resolve_without_running),
        ),
        seed=100,
    ),
    "replace: whatever is named": Mutant(
        "2.11",
        "only the fragments that were copied are replaced",
        set_to(
            (Replace, "replaced", _replace_whatever_is_named), (Manifest, "_check_totals", check_no_totals)
        ),
        seed=298,
    ),
    "replace: without running": Mutant(
        "2.11",
        "only running copies replace anything",
        set_to((Replace, "apply", _replace_without_running)),
        seed=431,
    ),
    "replace: what was trimmed": Mutant(
        "2.11",
        "fragments that begin below the stream are not replaced",
        set_to((Replace, "apply", _replace_what_was_trimmed)),
        seed=84,
    ),
    "replace: the newest": Mutant(
        "2.11",
        "the newest fragment is not replaced",
        set_to((Replace, "apply", _replace_the_newest)),
        seed=14,
    ),
    "replace: a copy does not say so": Mutant(
        "2.11", "the entry of a copy is marked", set_to((Replace, "replaced", _replaced_unsaid)), seed=30
    ),
    "replace: copies are appended": Mutant(
        "2.11",
        "an attempt that was announced as a copy is not appended",
        set_to((job_module.OfJob, "own", _own_of_any_kind)),
        needs="a copy for the stream's end, which no offloader makes",
    ),
    "replace: what is replaced never was": Mutant(
        "2.11",
        "if a copy is in its place, no append is reported as not in",
        set_to(*((owner, "verdict_on_entries", _no_copy_counts) for owner in (writer_module, job_module))),
        needs="an append whose reply is lost, one behind it, and a copy of it",
    ),
    "replace: what is replaced was in": Mutant(
        "2.11",
        "if a copy is in its place, no append is reported as in",
        set_to(*((owner, "verdict_on_entries", _any_copy_counts) for owner in (writer_module, job_module))),
        needs="a dropped attempt, a rival's append, and a copy of it",
    ),
    "replace: copies of anybody's": Mutant(
        "2.11",
        "a copy keeps the token of its originals",
        set_to((replacing, "token_of", _no_token), (guest, "token_of", _no_token)),
        needs="jobs that name batches, which these do not",
    ),
    "reader: copies are read anew": Mutant(
        "2.11",
        "a reader continues at its offset in the copies",
        set_to((StreamWindows, "_go_on", _copies_are_read_anew)),
        needs="a replacement and a sweep during a read of the same range",
    ),
    "reader: copies are left out": Mutant(
        "2.11",
        "a reader continues at its offset in the copies",
        set_to((StreamWindows, "_go_on", _copies_are_left_out)),
        needs="a replacement and a sweep during a read of the same range",
    ),
    "trim: counted before a replacement": Mutant(
        "2.11",
        "a trim is valid only for the entries that it was counted on",
        set_to(
            (guest_module, "entries_before", _trim_whatever_is_named),
            (retention, "entries_before", _trim_whatever_is_named),
            (Manifest, "_check_totals", check_no_totals),
        ),
        seed=269,
    ),
}
