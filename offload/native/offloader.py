"""`ObjectStoreOffloader`: the contract on top of any `ObjectStore`. The bucket is the whole truth.

What is where: `formats` holds the bytes, `commit.log` the protocol, `native.place` which store
holds what, `native.fragment_reader` and `native.fragment_writer` the data path, `native.adoption` the
finding of what a crash left. This module only puts them together, and bounds how many uploads run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
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
from offload.contracts.change import Change
from offload.contracts.events import DamageFound, Event, FragmentUploaded, ManifestCommitted
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.opening import StoreMetrics
from offload.contracts.store import Listed, ObjectStore
from offload.env import Env
from offload.errors import (
    Absent,
    AnchorLost,
    Conflict,
    Corrupt,
    Misuse,
    NotFound,
    NotOffloaded,
    OutcomeUnknown,
    StreamDeleted,
    TryAgain,
    rebuild_command,
)
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.keys import TIER_ANCHOR, StreamKeys, looks_escaped
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import cut
from offload.model.entry import Entries, Entry
from offload.model.manifest import AttemptKind, CommittedStream, Manifest, StreamState
from offload.model.tree import EntryTree
from offload.native.adoption import find_leftovers
from offload.native.anchors import create_anchor, read_anchor
from offload.native.fragment_reader import FragmentHandle, load_tail, open_attempt
from offload.native.fragment_writer import INDEX_COUNT_MAX, FragmentWriter, covering_table
from offload.native.lost_anchors import restore_tier_anchor
from offload.native.lost_roots import loss_shown_by_base, newest_base, refuse_to_overtake
from offload.native.place import TierPlace, TierPlan, no_other_store
from offload.native.stream_names import check_stream_anchor, stream_under
from offload.native.view import ObjectView
from offload.store.metrics import MeteredStore
from offload.store.probe import make_sure_of_create
from offload.tasks import run_each

__all__ = ["ObjectStoreOffloader", "TierOptions"]


FIRST_CHANGES: Final = (Abort, Announce, Claim, Delete, Trim)
"""What a writer or a guest commits first, on a manifest that it has just loaded. Others follow on these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """How an offloader works. The defaults suit a local disk as well as a distant bucket."""

    fragment_size_bytes: int = 64 * 1024 * 1024
    """A fragment ends behind the chunk that brings it to this many chunk bytes."""

    uploads_max: int = 4
    """How many fragments are on their way at once, over all ledgers."""


class ObjectStoreOffloader(LedgerOffloader):
    """Every clause of `LedgerOffloader`, for a backend that implements the `ObjectStore` port.

    `store` is used as given; wrap it in retries and limits first (`open_tier` does). The
    offloader owns it and closes it.
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
    ) -> None:
        """`open_store` opens the URL of a commit store, where `plan` or the tier's anchor names one.

        Tiers that are given the same `groups` share its memory.
        """
        self._env: Final = env or Env()
        self._data = MeteredStore(store)
        self._metrics = metrics = self._data.metrics
        self._place = TierPlace(
            data=self._data,
            env=self._env,
            plan=plan or TierPlan(),
            open_store=lambda url: MeteredStore(open_store(url), metrics),
        )
        self._options: Final = options or TierOptions()
        self._emit = emit
        self._witness = witness
        self._uploads = asyncio.Semaphore(self._options.uploads_max)
        self._groups = groups or GroupCache()
        self._found: tuple[TierAnchor, ObjectStore] | None = None
        self._was_absent = False
        self._opening = asyncio.Lock()

    @property
    def url(self) -> str:
        """See `Catalogue.url`."""
        return self._data.url

    @property
    def data(self) -> ObjectStore:
        """The store that the tier was made of, under the keys that objects have there. For tools."""
        return self._data

    @property
    def store(self) -> ObjectStore:
        """The tier's store as its anchor arranges it: with a commit store, or hashed keys. For tools.

        Raises `Misuse` before the offloader is open, because nothing is known of the anchor then.
        """
        return self._opened()[1]

    @property
    def metrics(self) -> StoreMetrics:
        """What was asked of the tier's stores so far, and how many damaged replies a second one mended."""
        return self._metrics

    async def open(self, *, create: bool = False) -> None:
        """See `LedgerOffloader.open`."""
        async with self._opening:
            if self._found is not None:
                return
            try:
                if create and self._was_absent:
                    raise NotFound(TIER_ANCHOR, store=self.url)  # to make a tier finds a rival's anchor too
                self._found = await self._place.find()
            except NotFound as exc:
                self._was_absent = True
                if not create:
                    raise NotOffloaded(
                        f"{self.url} is no tier: it has no {TIER_ANCHOR}; `offload sync` makes one, "
                        f"and `{rebuild_command(self.url)}` restores one that was lost"
                    ) from exc
                self._found = await self._place.make()

    async def restore_anchor(self, *, dry_run: bool = False) -> TierAnchor | None:
        """Restore the tier's anchor if it is lost: see `anchors.restore_tier_anchor`. For tools."""
        return await restore_tier_anchor(self._place, dry_run=dry_run)

    async def streams(self) -> list[str]:
        """See `Catalogue.streams`."""
        await self.open()
        folders = [name[:-1] async for name in self.store.level("") if name.endswith("/")]
        names = [await self._name_of(part) for part in folders if looks_escaped(part)]
        return sorted(name for name in names if name is not None)

    async def load_manifest(self, stream: str) -> Manifest:
        """See `Committer.load_manifest`."""
        await self.open()
        keys = StreamKeys(stream)
        manifest = await self.log(stream).load_newest()
        if manifest is None:
            raise NotOffloaded(f"{self.url} has no stream {stream!r}; `offload ls` shows which it has")
        if manifest.state is StreamState.DELETED:
            gone = f"stream {stream!r} of {self.url} was deleted; a sync begins it anew"
            raise StreamDeleted(gone, epoch=manifest.epoch)
        if manifest.state is StreamState.REBUILDING:
            raise NotOffloaded(f"stream {stream!r} is being rebuilt; wait until the rebuild is done")
        try:
            await read_anchor(self.store, keys.anchor, partial(check_stream_anchor, keys=keys))
        except NotFound as exc:
            raise AnchorLost(keys.anchor, tier=self.url, stream=stream) from exc
        return manifest

    async def load_group(self, committed: CommittedStream, entry: Entries) -> Entries:
        """See `Committer.load_group`. One request, unless the group was used lately."""
        await self.open()
        return await self._groups.load(self.store, committed, entry)

    def view_of(self, committed: CommittedStream) -> ObjectView:
        """See `Catalogue.view_of`."""
        return self._objects_of(committed)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        """See `Committer.commit_manifest`."""
        try:
            base = await self._base_for(stream, change, base)
        except TryAgain as exc:  # "nothing was committed" would deny an earlier call of the same change
            raise OutcomeUnknown(f"{exc}; if this change was sent before, it may be committed") from exc
        manifest = await self.log(stream).commit(change, base=base, committer=committer)
        self._emit(ManifestCommitted(manifest=manifest, change=type(change).__name__.lower()))
        return manifest

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        """See `LedgerOffloader.offload`."""
        kind = prepared_kind(handle, attempt, manifest)
        await self.open()
        copied_epoch = await self._epoch_to_copy(handle, manifest) if kind is AttemptKind.COPY else None
        table = await covering_table(handle)
        writers = [
            FragmentWriter(
                handle=handle,
                rows=rows,
                attempt=attempt,
                manifest=manifest,
                metadata=extra_metadata,
                copied_epoch=copied_epoch,
            )
            for rows in cut(table, size_bytes=self._options.fragment_size_bytes, count_max=INDEX_COUNT_MAX)
        ]
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
        return await find_leftovers(self.store, manifest)

    async def delete_offloaded(self, attempt: Attempt) -> None:
        """See `LedgerOffloader.delete_offloaded`."""
        await self.open()
        await self._make_sure_of_create()  # it commits, and what it condemns it finds by listing
        log = self.log(attempt.stream)
        manifest = await log.load_newest()
        _refuse_while_rebuilding(manifest)
        if manifest is not None and manifest.runs(attempt.uid):
            change = Abort(attempts=frozenset({attempt.uid}))
            await log.commit(change, base=manifest, committer=self._env.uuid())
        # Listed first, judged afterwards by the newest root: what is condemned then stays so for ever.
        keys = StreamKeys(attempt.stream)
        listed = [row async for row in self._fragments_of(keys, attempt.uid)]
        condemned = [row.key for row in listed]
        manifest = await self._newest_without(attempt, keys, condemned)
        if manifest is not None:  # a lost root may name it
            version, key = await newest_base(log, listed, at_once=1)
            if (loss := loss_shown_by_base(log, key, version, manifest)) is not None:
                raise loss
        await self.store.delete(condemned)

    async def aclose(self) -> None:
        """See `Catalogue.aclose`."""
        await (self._found[1] if self._found else self._data).aclose()

    def log(self, stream: str) -> RootLog:
        """The root sequence of a stream, for tools beside the contract.

        Raises `Misuse` before the offloader is open: the anchor says how many entries a group takes.
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
            raise Misuse(f"open {self.url} before its objects are asked for")
        return self._found

    async def _newest_without(
        self, attempt: Attempt, keys: StreamKeys, fragments: list[str]
    ) -> Manifest | None:
        """The newest manifest. Raises `Conflict` if it runs the attempt or names one of its fragments."""
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
            except Absent:  # unless it is damage, a compaction replaced the group, and a sweep took it
                if manifest is None or manifest.version == looked_at:
                    raise
                looked_at = manifest.version
            else:
                return manifest

    async def _base_for(self, stream: str, change: Change, base: Manifest | None) -> Manifest | None:
        """The base of a commit, after all that must hold before it."""
        await self.open(create=isinstance(change, Claim))
        await self._make_sure_of_create()
        log = self.log(stream)
        if base is None and isinstance(change, Claim):
            base = await log.load_newest()  # refuses to begin a stream whose roots are lost
            await self._create_stream_anchor(StreamKeys(stream))
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
        return await FragmentHandle.open(self.store, committed, entry, emit=self._emit)

    async def _epoch_to_copy(self, handle: ReadHandle, manifest: Manifest) -> int:
        """That of the fragment with which the handle begins: a rebuild ranks a copy with what it copies."""
        first = await check_copied(self.view_of(manifest), handle)
        return (await load_tail(self.store, manifest, first)).trailer.epoch

    async def _upload_all(self, writers: list[FragmentWriter], keys: StreamKeys) -> None:
        """Upload every fragment; at the first error cancel the rest, wait for them, and raise it alone."""

        async def upload(writer: FragmentWriter) -> None:
            async with self._uploads:
                await self.store.put(keys.fragment(writer.first_offset, writer.attempt.uid), writer.body())
            assert writer.entry is not None
            self._emit(FragmentUploaded(stream=keys.stream, entry=writer.entry))

        await run_each(upload, writers, at_once=self._options.uploads_max)

    async def _make_sure_of_create(self) -> None:
        """Once per instance, and only before a commit: reads and a sync with nothing to do never probe."""
        if not self._place.is_probed:
            await make_sure_of_create(self.store, self._env)
            self._place.is_probed = True

    async def _create_stream_anchor(self, keys: StreamKeys) -> None:
        anchor = StreamAnchor(stream=keys.stream)
        if not await create_anchor(self.store, keys.anchor, anchor.encode(), self._env):
            await read_anchor(self.store, keys.anchor, partial(check_stream_anchor, keys=keys))

    async def _name_of(self, part: str) -> str | None:
        """The true name of the stream under this part, or None where no stream was begun there."""
        here = await stream_under(self.store, part)
        if here is None:
            return None
        if here.damage is not None and not here.is_lost:
            raise here.damage
        return here.stream

    async def _fragments_of(self, keys: StreamKeys, attempt: UUID) -> AsyncIterator[Listed]:
        async for listed in self.store.list(keys.data):
            parsed = keys.parse_fragment(listed.key)
            if parsed is not None and parsed[1] == attempt:
                yield listed


def _refuse_while_rebuilding(manifest: Manifest | None) -> None:
    """A root that is being rebuilt names nothing yet, so it condemns nothing."""
    if manifest is not None and manifest.state is StreamState.REBUILDING:
        raise Conflict(f"stream {manifest.stream!r} is being rebuilt; wait until the rebuild is done")
