"""`ObjectStoreOffloader`: the contract of offloaders on top of any `ObjectStore`.

This module joins the others, and limits the number of uploads at once: `formats` has the bytes, `commit.log`
the protocol, `native.place` the choice of stores, `native.fragment_reader` and `native.fragment_writer` the
data path, `native.adoption` the search for uploads that a crash left.

Invariant: the stores hold all state of the tier. An instance keeps its anchor, the names of streams whose
anchors it read, immutable groups, and in `native.stream_key` the streams that had no key when they were
claimed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from offload.commit.groups import GroupCache
from offload.commit.guest import Abort, Delete, Trim
from offload.commit.job import Announce
from offload.commit.log import RootLog, Step, no_witness
from offload.commit.writer import Claim
from offload.contracts.attempts import check_copied, prepared_kind
from offload.contracts.catalogue import StreamView
from offload.contracts.change import Change
from offload.contracts.events import (
    CommitFailed,
    CommitInDoubt,
    DamageFound,
    Event,
    FragmentUploaded,
    ManifestCommitted,
)
from offload.contracts.ledger import ReadHandle
from offload.contracts.metrics import StoreMetrics
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import Listed, ObjectStore
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.fragment_trailer import CHUNKS_MAX
from offload.formats.keys import TIER_ANCHOR, StreamKeys, looks_escaped
from offload.ground.env import Env
from offload.ground.errors import (
    Absent,
    AnchorLost,
    BeingRebuilt,
    Conflict,
    Corrupt,
    Denied,
    Misuse,
    NotFound,
    NotOffloaded,
    OffloadError,
    OutcomeUnknown,
    StoreDenied,
    StreamDeleted,
    TryAgain,
    UnsupportedFormat,
    rebuild_command,
)
from offload.ground.tasks import in_order, one_by_one, run_each
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import cut
from offload.model.compression import Compression, check_compression
from offload.model.entry import Entries, Entry
from offload.model.manifest import AttemptKind, CommittedStream, Manifest, StreamState
from offload.model.part import StreamPart
from offload.model.tree import EntryTree
from offload.native.adoption import find_leftovers
from offload.native.anchors import create_anchor
from offload.native.fragment_reader import FragmentHandle, load_tail, open_attempt
from offload.native.fragment_writer import FragmentWriter, covering_table
from offload.native.key_ring import KeyRing
from offload.native.lost_anchors import restore_tier_anchor
from offload.native.lost_roots import loss_shown_by_base, newest_base, refuse_to_overtake
from offload.native.place import TierPlace, TierPlan, no_other_store
from offload.native.spool import spooled
from offload.native.stream_key import StreamEncryption
from offload.native.stream_names import (
    StreamUnder,
    find_stream_anchor,
    list_parts,
    read_stream_anchor,
    stream_under,
    was_deleted,
)
from offload.native.upload_turns import UploadTurns
from offload.native.view import ObjectView
from offload.store.metrics import MeteredStore
from offload.store.probe import make_sure_of_create

__all__ = ["ObjectStoreOffloader", "TierOptions"]


ANCHORS_AT_ONCE: Final = 32
"""The number of anchors that are read at once to find the names of streams."""

FIRST_CHANGES: Final = (Abort, Announce, Claim, Delete, Trim)
"""The changes that a writer or a guest commits first, on a manifest that it has just loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """The options of an offloader. The defaults suit a local disk as well as a distant bucket."""

    fragment_size_bytes: int = 64 * 1024 * 1024
    """A fragment ends after the chunk that brings it to this many bytes of chunks."""

    uploads_max: int = 2
    """The number of fragments that are uploaded at once, over all ledgers.

    Each takes 64 MiB of memory if the store takes objects whole. Beside a broker, memory and CPU count more
    than the last seventh of the rate: docs/benchmarks.md compares two uploads with four.
    """

    compression: Compression | None = None
    """The compression of new fragments. None: that of the tier's anchor, fixed when the tier was made."""

    encrypt: str | None = None
    """The master key for streams that have no key yet, as `MasterKey.parse` reads it. Needs a key service.

    None: such a stream is not encrypted. A stream that has a key is encrypted in any case.
    """

    encrypted_only: bool = False
    """Refuse plain fragments, to read (`Corrupt`) and to write (`Denied`). Needs a key service."""

    coding_threads_max: int = max(1, (os.cpu_count() or 1) // 2)
    """The number of threads that check and compress at once: by default as many as half of the processors."""

    def __post_init__(self) -> None:
        check_compression(self.compression)


class ObjectStoreOffloader(LedgerOffloader):
    """An offloader that keeps every clause of `LedgerOffloader` on any `ObjectStore`.

    `store` is used as given, so wrap it in retries and limits first (`open_tier` does). The offloader owns
    the store and the ring, and closes both.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        env: Env | None = None,
        options: TierOptions | None = None,
        emit: Callable[[Event], None] = lambda event: None,
        witness: Callable[[Step], None] = no_witness,
        plan: TierPlan | None = None,
        open_store: Callable[[str], ObjectStore] = no_other_store,
        groups: GroupCache | None = None,
        ring: KeyRing | None = None,
    ) -> None:
        """`open_store` opens the URL of a commit store, if `plan` or the tier's anchor names one.

        Tiers that are given the same `groups` share its memory.
        """
        self._env: Final = env or Env()
        self._data = MeteredStore(store, clock=self._env.monotonic)
        self._metrics = metrics = self._data.metrics
        self._place = TierPlace(
            data=self._data,
            env=self._env,
            plan=plan or TierPlan(),
            open_store=lambda url: MeteredStore(open_store(url), metrics, clock=self._env.monotonic),
        )
        self._options: Final = options or TierOptions()
        self._emit = emit
        self._witness = witness
        self._uploads = UploadTurns(self._options.uploads_max)
        self._coding = asyncio.Semaphore(self._options.coding_threads_max)
        # One at a time: two threads would pass the interpreter's lock to and fro at each chunk.
        self._checking = asyncio.Semaphore(1)
        self._groups = groups or GroupCache()
        self.ring: Final = ring
        self._found: tuple[TierAnchor, ObjectStore] | None = None
        self._anchored: dict[str, StreamUnder] = {}
        self._was_absent = False
        self._opening, self._probing = asyncio.Lock(), asyncio.Lock()
        self._encryption = StreamEncryption(self, ring)

    @property
    def url(self) -> str:
        """See `Catalogue.url`."""
        return self._data.url

    @property
    def data(self) -> ObjectStore:
        """The store as it was given, without the arrangement of the anchor. For tools."""
        return self._data

    @property
    def store(self) -> ObjectStore:
        """The tier's store as its anchor arranges it: with a commit store, or hashed keys. For tools.

        Raises `Misuse` before the offloader is open, because the anchor is not known then.
        """
        return self._opened()[1]

    @property
    def metrics(self) -> StoreMetrics:
        """The counts of requests to the tier's stores, and of damaged replies that a second read mended."""
        return self._metrics

    async def open(self, *, create: bool = False) -> None:
        """See `LedgerOffloader.open`."""
        # One at a time: every method opens the tier, and several may run at once. Each would open a commit
        # store of its own, and only the last would ever be closed.
        async with self._opening:
            if self._found is not None:
                return
            try:
                # The anchor was absent a moment ago, so it is not requested again. If a rival has made the
                # tier since, `make` finds its anchor.
                if create and self._was_absent:
                    raise NotFound(TIER_ANCHOR, store=self.url)
                self._found = await self._place.find()
            except NotFound as exc:
                self._was_absent = True
                if not create:
                    await self._place.check_absence()
                    raise NotOffloaded(
                        f"{self.url} is no tier: it has no {TIER_ANCHOR}; `offload sync` makes one, "
                        f"and `{rebuild_command(self.url)}` restores one that was lost"
                    ) from exc
                self._found = await self._place.make()

    @property
    def is_open(self) -> bool:
        """Whether the place was found to be a tier, or was made one."""
        return self._found is not None

    @property
    def default_compression(self) -> Compression:
        """The compression of new fragments if a writer names none. Raises `Misuse` before `open`."""
        return self._opened()[0].default_compression

    async def restore_anchor(self, *, dry_run: bool = False) -> TierAnchor | None:
        """Restore the tier's anchor if it is lost. See `lost_anchors.restore_tier_anchor`. For tools."""
        return await restore_tier_anchor(self._place, dry_run=dry_run)

    async def streams(self) -> list[str]:
        """See `Catalogue.streams`. Raises the first error of `find_streams`."""
        names, errors = await self.find_streams()
        if errors:
            raise errors[0]
        return names

    async def find_streams(self) -> tuple[list[str], list[Corrupt | UnsupportedFormat | Denied]]:
        """Return the names of `streams`, and an error for each folder whose anchor has no name. For tools.

        A folder that may not be read, perhaps a stranger's, is such an error too.

        One listing, and one request for each stream whose sound anchor this instance has not read yet.
        """
        await self.open()
        names, errors = list[str](), list[Corrupt | UnsupportedFormat | Denied]()
        parts = [name[:-1] async for name in self.store.level("") if name.endswith("/")]
        # Several at a time: a tier of a thousand streams would take a thousand round trips one by one.
        work = in_order(self._seen_under, one_by_one(filter(looks_escaped, parts)), at_once=ANCHORS_AT_ONCE)
        async with aclosing(work) as found:
            async for _, here in found:
                if here is None:  # no stream was begun there
                    continue
                if isinstance(here, Denied):
                    errors.append(here)
                    continue
                # If the anchor is lost, the name is still known, and an operator needs the stream in the list
                # to rebuild it.
                if here.damage is not None and not here.is_lost:
                    errors.append(here.damage)
                elif here.stream is not None:
                    names.append(here.stream)
        return sorted(names), errors

    async def _seen_under(self, part: str) -> StreamUnder | Denied | None:
        try:
            return await self._stream_under(part)
        except StoreDenied:  # the other folders cannot be read either
            raise
        except Denied as error:
            return error

    async def _stream_under(self, part: str) -> StreamUnder | None:
        # A folder is named after its stream, so the name in a sound anchor never changes.
        if (known := self._anchored.get(part)) is not None:
            return known
        here = await stream_under(self.store, part)
        if here is not None and here.damage is None:
            self._anchored[part] = here
        return here

    async def parts(self, stream: str, *, after: int = 1) -> list[StreamPart]:
        """See `Catalogue.parts`. One listing, and two requests for each part."""
        await self.open()
        return await list_parts(self.store, stream, after=after)

    async def begin_part(self, part: StreamPart, *, before: Manifest | None) -> None:
        """See `Committer.begin_part`."""
        await self.open()
        await self._make_sure_of_create()
        # Before the part has a root: its first fragment must not be plain if the part before is encrypted.
        is_plain = self.ring is None or self.ring.new is None
        if before is not None and is_plain and await self.encrypts(before):
            raise Denied(
                f"stream {before.stream!r} is encrypted, and its next part has a key of its own: "
                "name its master key with --encrypt"
            )
        # A root without an anchor has lost it: whose stream it is, nobody knows.
        await find_stream_anchor(self.store, StreamKeys(part.name))
        anchor = StreamAnchor.of(part)
        if await self._create_stream_anchor(anchor) != anchor:
            raise Conflict(
                f"stream {part.name!r} is not part {part.number} of {part.first!r}: it was there before"
            )

    async def load_manifest(self, stream: str) -> Manifest:
        """See `Committer.load_manifest`."""
        await self.open()
        keys = StreamKeys(stream)
        manifest = await self.log(stream).load_newest()
        if manifest is None:
            raise NotOffloaded(f"{self.url} has no stream {stream!r}; `offload ls` shows which it has")
        if manifest.state is StreamState.DELETED:
            deleted = was_deleted(stream, self.url)
            raise StreamDeleted(deleted, epoch=manifest.epoch, source_epoch=manifest.source_epoch)
        if manifest.state is StreamState.REBUILDING:
            raise BeingRebuilt(f"stream {stream!r} is being rebuilt; wait until the rebuild is done")
        # A stream's anchor is created before its first root. So it is read after the root: the other way
        # round, a stream that is born in between would seem to have lost its anchor.
        try:
            await read_stream_anchor(self.store, keys)
        except NotFound as exc:
            raise AnchorLost(keys.anchor, tier=self.url, stream=stream) from exc
        return manifest

    async def load_group(self, committed: CommittedStream, entry: Entries) -> Entries:
        """See `Committer.load_group`. One request, unless the group was used lately."""
        await self.open()
        return await self._groups.load(self.store, committed, entry)

    async def newer_view(self, known: CommittedStream) -> StreamView | None:
        """See `Catalogue.newer_view`. One listing if there is nothing newer."""
        await self.open()
        if await self.log(known.stream).is_newest(known.version):
            return None
        return await super().newer_view(known)

    def view_of(self, committed: CommittedStream) -> ObjectView:
        """See `Catalogue.view_of`."""
        return self._objects_of(committed)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        """See `Committer.commit_manifest`."""
        began, name = self._env.monotonic(), type(change).__name__.lower()
        try:
            manifest = await self._committed(stream, change, base=base, committer=committer)
        except OffloadError as error:
            kind = CommitInDoubt if isinstance(error, OutcomeUnknown) else CommitFailed
            seconds = self._env.monotonic() - began
            self._emit(kind(stream=stream, change=name, error=error, seconds=seconds))
            raise
        self._emit(ManifestCommitted(manifest=manifest, change=name))
        return manifest

    async def _committed(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        # Before anything is written: a first run that cannot encrypt leaves no tier behind.
        if self._was_absent and self._found is None and self.ring is not None:
            await self.ring.try_new(stream)
        try:
            base = await self._base_for(stream, change, base)
        except TryAgain as exc:
            # `TryAgain` promises that the change is not in. An earlier call may have sent the same change,
            # and this call has not asked the roots yet.
            raise OutcomeUnknown(f"{exc}; if this change was sent before, it may be committed") from exc
        return await self.log(stream).commit(change, base=base, committer=committer)

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        """See `LedgerOffloader.offload`."""
        kind = prepared_kind(handle, attempt, manifest)
        await self.open()
        copied_epoch = await self._epoch_to_copy(handle, manifest) if kind is AttemptKind.COPY else None
        table = await covering_table(handle)
        compression = self._options.compression or self.default_compression
        stream_key = await self._encryption.key_for_writing(manifest)
        writers = []
        for rows in cut(table, size_bytes=self._options.fragment_size_bytes, count_max=CHUNKS_MAX):
            key, key_section = self._encryption.data_key(stream_key, attempt, int(rows["offset"][0]))
            writer = FragmentWriter(
                handle=handle,
                rows=rows,
                attempt=attempt,
                manifest=manifest,
                metadata=extra_metadata,
                compression=compression,
                turns=self._coding if compression.codec or key else nullcontext(),
                key=key,
                key_section=key_section,
                copied_epoch=copied_epoch,
            )
            writers.append(writer)
        try:
            await self._upload_all(writers, StreamKeys(attempt.stream))
        except Corrupt as damage:
            self._emit(DamageFound(damage=damage))
            raise
        return Receipt(attempt=attempt, entries=[writer.entry for writer in writers if writer.entry])

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        """See `LedgerOffloader.read_offloaded`."""
        await self.open()
        manifest = manifest or await self.load_manifest(attempt.stream)
        return await open_attempt(self._objects_of(manifest), attempt, only)

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        """See `LedgerOffloader.leftovers`."""
        await self.open()
        found = await find_leftovers(self.store, manifest, self.ring)
        plain = next((number for number, each in enumerate(found) if not each.entry.encrypted), None)
        if plain is None or await self._encryption.key_for_writing(manifest) is None:
            return found
        # Uploaded before the stream had a key. The source still has these records: they are copied again.
        return found[:plain]

    async def delete_offloaded(self, attempt: Attempt) -> None:
        """See `LedgerOffloader.delete_offloaded`."""
        await self.open()
        # This call commits, and finds the objects to delete by listing. So the store must pass the same test
        # as for any other commit.
        await self._make_sure_of_create()
        log = self.log(attempt.stream)
        manifest = await log.load_newest()
        _refuse_while_rebuilding(manifest)
        if manifest is not None and manifest.runs(attempt.uid):
            change = Abort(attempts=frozenset({attempt.uid}))
            await log.commit(change, base=manifest, committer=self._env.uuid())
        # The attempt is aborted first: an object of a running attempt may still be named. Then the objects
        # are listed, and then the newest root judges them. A root from before the listing would not know what
        # was uploaded and committed in between. No later root names what this one neither names nor runs, so
        # a stall before the delete does no harm.
        keys = StreamKeys(attempt.stream)
        listed = [row async for row in self._objects_of_attempt(keys, attempt.uid)]
        condemned = [row.key for row in listed]
        manifest = await self._newest_without(attempt, keys, condemned)
        # If the newest roots are lost, one of them may name the attempt. The trailers are the proof, so they
        # are read before they are deleted.
        if manifest is not None:
            fragments = [row for row in listed if keys.parse_fragment(row.key) is not None]
            version, key = await newest_base(log, fragments, at_once=1)
            if (loss := loss_shown_by_base(log, key, version, manifest)) is not None:
                raise loss
        await self.store.delete(condemned)

    async def aclose(self) -> None:
        """See `Catalogue.aclose`."""
        try:
            await (self._found[1] if self._found else self._data).aclose()
        finally:
            if self.ring is not None:
                await self.ring.aclose()

    def log(self, stream: str) -> RootLog:
        """Return the root sequence of a stream. For tools that need more than the contract.

        Raises `Misuse` before the offloader is open, because the anchor says how many entries a group takes.
        """
        anchor, store = self._opened()
        return RootLog(
            store=store,
            stream=stream,
            env=self._env,
            witness=self._witness,
            groups=self._groups,
            factor=anchor.branching_factor,
        )

    def _opened(self) -> tuple[TierAnchor, ObjectStore]:
        if self._found is None:
            raise Misuse(f"open {self.url} before its objects are used")
        return self._found

    async def _newest_without(
        self, attempt: Attempt, keys: StreamKeys, fragments: list[str]
    ) -> Manifest | None:
        """Return the newest manifest. Raises `Conflict` if it runs the attempt or names a fragment of it."""
        looked_at = 0
        while True:
            manifest = await self.log(keys.stream).load_newest()
            _refuse_while_rebuilding(manifest)
            try:
                if manifest is not None and (
                    manifest.runs(attempt.uid) or await self._names_any(manifest, keys, fragments)
                ):
                    raise Conflict(
                        f"stream {attempt.stream!r} still names attempt {attempt.uid}; trim it first"
                    )
            except Absent:
                # A group is gone. If a compaction replaced it and a sweep deleted it, a newer root names
                # other groups. If the newest root is still the same, the group is damage.
                if manifest is None or manifest.version == looked_at:
                    raise
                looked_at = manifest.version
            else:
                return manifest

    async def _base_for(self, stream: str, change: Change, base: Manifest | None) -> Manifest | None:
        """Return the base of a commit, after every check and step that must come before it."""
        await self.open(create=isinstance(change, Claim))
        await self._make_sure_of_create()
        log = self.log(stream)
        if base is None and isinstance(change, Claim):
            # The load refuses to begin a stream whose roots are lost, before anything is written. The anchor
            # comes before the first root, so that a stream with a root and without an anchor has lost it. A
            # crash in between leaves an anchor alone, and the next claim continues from there.
            base = await log.load_newest()
            await self._create_stream_anchor(StreamAnchor(stream=stream))
        if base is not None and isinstance(change, FIRST_CHANGES):
            await refuse_to_overtake(log, base)
        return base

    async def _names_any(self, manifest: Manifest, keys: StreamKeys, fragments: list[str]) -> bool:
        tree = self.tree(manifest)
        for key in fragments:
            parsed = keys.parse_fragment(key)
            if parsed is not None and await tree.names(*parsed):
                return True
        return False

    def _objects_of(self, committed: CommittedStream) -> ObjectView:
        return ObjectView(EntryTree(committed, self.load_group), partial(self._open_entry, committed))

    async def _open_entry(self, committed: CommittedStream, entry: Entry) -> ReadHandle:
        await self.open()
        try:
            return await FragmentHandle.open(
                self.store, committed, entry, emit=self._emit, ring=self.ring, checking=self._checking
            )
        except Denied as refused:
            await self._encryption.refuse_if_over(committed, refused)
            raise

    async def _epoch_to_copy(self, handle: ReadHandle, manifest: Manifest) -> int:
        """Return the epoch of the first fragment that a copy copies: a rebuild ranks the two alike."""
        view = self.view_of(manifest)
        first = await check_copied(view, handle)
        try:
            return (await load_tail(self.store, manifest, first)).trailer.epoch
        except Corrupt:
            # A repair copies it from elsewhere. Epochs do not fall along a stream, so the fragment behind has
            # the same or a later one, and the copy outranks every upload that was given up at its offset.
            with suppress(Corrupt):
                if (behind := await view.find(first.next_offset)) is not None:
                    return (await load_tail(self.store, manifest, behind)).trailer.epoch
            return manifest.epoch

    async def encrypts(self, manifest: Manifest) -> bool:
        """Return True if new fragments of this stream are encrypted. Raises as `offload` does. For tools."""
        await self.open()
        return await self._encryption.key_for_writing(manifest) is not None

    async def _upload_all(self, writers: list[FragmentWriter], keys: StreamKeys) -> None:
        """Upload every fragment. The first error cancels the others, waits for them, and is raised alone."""

        # The semaphore limits uploads over all ledgers that are offloaded at once, `at_once` those of this
        # one.
        async def upload(writer: FragmentWriter) -> None:
            async with self._uploads.turn(keys.stream, writer.chunk_size_bytes_max):
                key, body = keys.fragment(writer.first_offset, writer.attempt.uid), writer.body()
                if body.is_bound and not self.store.capabilities.unsized_put:
                    async with spooled(body) as body:
                        await self.store.put(key, body)
                else:
                    await self.store.put(key, body)
            assert writer.entry is not None
            self._emit(FragmentUploaded(stream=keys.stream, entry=writer.entry))

        await run_each(upload, writers, at_once=self._options.uploads_max)

    async def _make_sure_of_create(self) -> None:
        """Probe create-if-absent once per instance, before its first commit.

        Reads, and a sync with nothing to do, never probe.
        """
        # One at a time: streams that are synced at the same time would each send the probe.
        async with self._probing:
            if not self._place.is_probed:
                await make_sure_of_create(self.store, self._env)
                self._place.is_probed = True

    async def _create_stream_anchor(self, anchor: StreamAnchor) -> StreamAnchor:
        """Create a stream's anchor if it is absent. Return the one that is there."""
        # An anchor that exists is read, because it may be damaged or name another stream. No root may be
        # created under it then.
        keys = StreamKeys(anchor.stream)
        if await create_anchor(self.store, keys.anchor, anchor.encode(), self._env):
            return anchor
        return await read_stream_anchor(self.store, keys)

    async def _objects_of_attempt(self, keys: StreamKeys, attempt: UUID) -> AsyncIterator[Listed]:
        async for listed in self.store.list(keys.data):
            parsed = keys.parse_data(listed.key)
            if parsed is not None and parsed[1] == attempt:
                yield listed


def _refuse_while_rebuilding(manifest: Manifest | None) -> None:
    """Raise `Conflict` during a rebuild: its fence may name nothing yet, which condemns no object."""
    if manifest is not None and manifest.state is StreamState.REBUILDING:
        raise Conflict(f"stream {manifest.stream!r} is being rebuilt; wait until the rebuild is done")
