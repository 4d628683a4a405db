"""One run of a sweep: stream after stream, and page after page within a stream.

`upkeep.sweep.tier` states the rules and the reasons for the order of the steps.

Invariants: the newest root is loaded after the page was listed, never before; nothing of a stream is deleted
before its last page was judged; an error in finding out deletes nothing of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

import numpy as np

from offload.commit.groups import GroupCache
from offload.commit.log import RootLog
from offload.contracts.store import ObjectStore
from offload.formats.keys import TIER_ANCHOR, TIER_PREFIX, VERIFY_NOTES, StreamKeys, escape
from offload.formats.sighting import SightingRows
from offload.ground.env import Env
from offload.ground.errors import Absent, Corrupt, Denied, NotOffloaded, OffloadError, StoreDenied, TryAgain
from offload.model.manifest import Manifest, StreamState
from offload.native.lost_roots import (
    loss_shown_by_base,
    loss_shown_by_group,
    loss_shown_by_old_life,
    newest_base_in,
    refuse_if_absent,
    trailers_of,
)
from offload.native.stream_names import list_parts, stream_under
from offload.store.probe import is_left_behind
from offload.upkeep.pages import pages
from offload.upkeep.sweep.notes import SeenCondemned, SweepNotes, Times, joined_rows
from offload.upkeep.sweep.page import STAYS, Going, SweepPage, SweepVerdict, Why, rows_named
from offload.upkeep.sweep.report import Condemned, StreamSweep, SweepReport

DELETE_BATCH: Final = 1_000
"""Objects per delete, for a store that takes any number."""

TRAILERS_AT_ONCE: Final = 16

LOADS_MAX: Final = 8
"""How often the root is loaded for one page, if it is superseded while its groups are read."""


OnProgress = Callable[[SweepReport], None]
OnCondemned = Callable[[Condemned], None]


@dataclass(kw_only=True)
class TierSweep:
    """One sweep."""

    store: ObjectStore
    env: Env
    notes: SweepNotes
    groups: GroupCache
    page_keys_max: int
    roots_kept: int
    uploads_seconds: float
    report: SweepReport
    progress: OnProgress
    tell: OnCondemned

    async def run(self, stream: str | None) -> None:
        """Sweep all streams, or one with its parts. Stops at an error that every stream would have."""
        with suppress(_Stopped):
            await self._run(stream)

    async def _run(self, stream: str | None) -> None:
        if stream is not None:
            return await self._run_one(stream)
        names = [name async for name in self.store.level("")]  # one level: the streams list their own objects
        await self._remove_trials([name for name in names if is_left_behind(name, self.env)])
        for name in names:
            if name.endswith("/"):  # a stream or strangers: the anchor in it decides
                await self._sweep_part(name[:-1])
            # A trial that began less than a day ago may still run, so it is only reported.
            elif name not in (TIER_ANCHOR, VERIFY_NOTES) and not is_left_behind(name, self.env):
                self.report.stranger(name, _strange(name))
        return None

    async def _remove_trials(self, keys: Sequence[str]) -> None:
        """Remove objects of interrupted trials of the store. Nothing reads them, so there is no grace."""
        try:
            if keys and not self.report.dry_run:
                await self.store.delete(keys)
            self.report.trials_deleted = len(keys)
        except OffloadError as error:
            self.report.streams.append(StreamSweep(stream=TIER_PREFIX, state="unknown", errors=[error]))
            _stop_if_every_stream_would_fail(error)

    async def _run_one(self, stream: str) -> None:
        part = escape(stream)
        if not await self._sweep_part(part):
            raise NotOffloaded(f"{self.store.url} has no stream {stream!r}; `offload ls` shows which it has")
        for name in await self._later_parts(stream):
            await self._sweep_part(escape(name))

    async def _later_parts(self, stream: str) -> list[str]:
        """Return the names of the parts behind the first. An error that hides them is reported."""
        try:
            return [part.name for part in await list_parts(self.store, stream)]
        except OffloadError as error:
            # A row of its own: the first part was swept, and this error is none of its sweep.
            hidden = error.stream if isinstance(error, Corrupt) else None
            self.report.streams.append(StreamSweep(stream=hidden or stream, state="unknown", errors=[error]))
            _stop_if_every_stream_would_fail(error)
            return []

    async def _sweep_part(self, part: str) -> bool:
        """Sweep the stream below this part. Return False if there is none."""
        try:
            keys = await self._stream_of(part)
        except OffloadError as error:
            self.report.streams.append(StreamSweep(stream=part, state="unknown", errors=[error]))
            _stop_if_every_stream_would_fail(error)
            return True
        if keys is None:
            self.report.stranger(f"{part}/", _strange(part))
            return False
        row = StreamSweep(stream=keys.stream)
        self.report.streams.append(row)  # before its sweep: an error that ends the run keeps the counts
        await _StreamSweep(sweep=self, keys=keys, row=row).run()
        return True

    async def _stream_of(self, part: str) -> StreamKeys | None:
        """Return the stream that the anchor names; None if nothing says that there is one."""
        here = await stream_under(self.store, part)
        if here is None:
            return None
        # The anchor is lost. If the roots are lost as well, that is the graver error: this load raises it.
        if here.is_lost and here.stream is not None:
            await RootLog(store=self.store, stream=here.stream, env=self.env).load_newest()
        if here.damage is not None:  # it is not certain to which stream the objects belong: delete none
            raise here.damage
        assert here.stream is not None, "a sound anchor names its stream"
        return StreamKeys(here.stream)


@dataclass(kw_only=True)
class _StreamSweep:
    """The sweep of one stream: its pages one after another, then the deletes, then the note."""

    sweep: TierSweep
    keys: StreamKeys
    row: StreamSweep
    seen: SeenCondemned | None = None
    version: int = 0
    """The version of the root by which the first page was judged."""
    sound: bool = True
    """Whether everything was listed and judged, and every object whose grace was over was deleted."""
    waiting: list[tuple[SightingRows, Times]] = field(default_factory=list)
    """Condemned objects whose grace is not over, and when each was first seen."""
    going: list[Going] = field(default_factory=list)
    unused: list[SweepVerdict] = field(default_factory=list)
    """The unused index objects of all pages."""
    """Objects that are deleted once all pages were judged."""

    async def run(self) -> None:
        log = RootLog(
            store=self.sweep.store, stream=self.keys.stream, env=self.sweep.env, groups=self.sweep.groups
        )
        is_judged = await self._judge_pages(log)
        try:
            if is_judged:
                await self._delete()
        except OffloadError as error:
            self._failed(error)
        # The note comes after the deletes. It removes old sightings only if `sound` says that this run judged
        # and deleted everything that they name. It is written after errors too: the grace of the objects that
        # this run saw first begins with this note.
        if self.seen is not None and not self.sweep.report.dry_run:
            await self._remember(self.seen)
        # Without a root, nothing says which attempts run, so no upload may be aborted.
        if is_judged and self.row.version is not None:
            try:
                await self._sweep_uploads(log)
            except OffloadError as error:
                self._failed(error)

    async def _judge_pages(self, log: RootLog) -> bool:
        """Return whether anything may be deleted.

        The last page may prove that the first was judged by an old root, so all pages come before any delete.
        """
        prefix = self.keys.prefix
        listed = pages(self.sweep.store.list(prefix), rows_max=self.sweep.page_keys_max, part=prefix)
        try:
            async with aclosing(listed):
                async for listing in listed:
                    page = SweepPage(log=log, listing=listing, roots_kept=self.sweep.roots_kept)
                    goes_on = await self._sweep_page(page)
                    self.sweep.progress(self.sweep.report)
                    if not goes_on:
                        return False
        # The listing broke off. The pages that are missing might have shown that roots are lost, so nothing
        # of the pages before is deleted either.
        except OffloadError as error:
            self._failed(error)
            return False
        return True

    async def _sweep_page(self, page: SweepPage) -> bool:
        """Do steps 2 to 4 for a page. Return False if nothing of the stream may be deleted."""
        try:
            self.row.listed += len(page.listing.rows)
            self.row.listed_bytes += sum(listed.size_bytes for listed in page.listing.rows)
            # The page is complete by now. Were the root loaded first, an object that is uploaded and
            # committed in between would be listed, and the root would not know it.
            await page.load()
            await self._recall(page.root)
        except OffloadError as error:
            self._failed(error)
            return False
        try:
            await self._judge(page)
        except OffloadError as error:
            # A group could not be read: nothing of this page is condemned, and the next pages are still
            # judged. If a group is gone, the root itself may be an old one, so no page can be trusted.
            self._failed(error)
            return not isinstance(error, Absent)
        for key in page.strangers:
            self.sweep.report.stranger(key, _strange(key))
        going = self._due(page.verdicts)
        try:
            # Both checks come after the judgement, which finds the unlisted fragments. Trailers are read only
            # of the fragments that are due.
            for key in page.unlisted():
                await refuse_if_absent(page.log, key)
            await _refuse_if_roots_are_lost(page, going)
        except OffloadError as error:
            self._failed(error)
            return False
        self.going.append(Going.of(going))
        self.unused += page.unused
        return True

    async def _judge(self, page: SweepPage) -> None:
        """Judge by the newest root. Load it again if it was superseded while it was read.

        A superseded root may name a group that another sweep deleted since. That is no damage.
        """
        for _ in range(LOADS_MAX):
            judged = page.root
            try:
                return await page.judge()
            except Corrupt as damage:
                # The root is loaded again after the group was found missing. If the same root is still the
                # newest, all that it names must exist, so the damage is real.
                await page.load()
                if judged is None or page.root is None or page.root.version == judged.version:
                    if isinstance(damage, Absent):
                        raise Absent(damage.where, self.keys.stream, tier=self.sweep.store.url) from None
                    raise
        raise TryAgain(
            f"stream {self.keys.stream!r}: its manifest changes faster than it can be read; run again"
        )

    async def _recall(self, root: Manifest | None) -> None:
        """Load the notes of earlier sweeps, once the first page has found a root."""
        if root is None:
            return
        self.row.version, self.row.state = root.version, root.state.name.lower()
        # During a rebuild nothing is condemned, so the absence of an object from `waiting` says nothing.
        self.sound &= root.state is not StreamState.REBUILDING
        if self.seen is None:
            self.version = root.version
            self.seen = await self.sweep.notes.recall(self.keys, version=root.version, tell=self.row.notes)

    def _due(self, verdicts: Sequence[SweepVerdict]) -> list[SweepVerdict]:
        """Return what was condemned for the whole grace. Count the rest as waiting."""
        for verdict in verdicts:
            if verdict.why in STAYS:
                self.row.stays.add(verdict.why, verdict.listed.size_bytes)
        condemned = [verdict for verdict in verdicts if verdict.why not in STAYS]
        if not condemned or self.seen is None:
            return []
        grace = self.sweep.report.grace_seconds
        rows = rows_named([verdict.name or b"" for verdict in condemned])  # a condemned object has a name
        since = self.seen.since(rows)
        # NaN is an object that is condemned for the first time: it waits the whole grace.
        waits = np.nan_to_num(grace - (self.sweep.notes.now() - since), nan=grace).clip(0)
        for verdict, wait in zip(condemned, waits.tolist(), strict=True):
            if wait:
                self._tell(verdict, waits_seconds=wait)
                self.row.waits.add(verdict.why, verdict.listed.size_bytes)
                self.row.waits_seconds = max(self.row.waits_seconds, wait)
        # With the time when they were first seen, not that of this sweep: a grace begins only once.
        self.waiting.append((rows[waits > 0], since[waits > 0]))
        return [verdict for verdict, wait in zip(condemned, waits, strict=True) if not wait]

    async def _delete(self) -> None:
        """5. Delete the objects that are due, of all pages."""
        batch_max = self.sweep.store.capabilities.delete_batch_max or DELETE_BATCH
        # Keys are made batch by batch: until here each object took 50 bytes, a key takes several hundred.
        condemned = (verdict for going in self.going for verdict in going.verdicts(self.keys))
        due = chain(self.unused, condemned)
        while batch := [*islice(due, batch_max)]:
            if not self.sweep.report.dry_run:
                await self.sweep.store.delete([verdict.listed.key for verdict in batch])
            for verdict in batch:  # counted after the delete: a batch that failed is not reported as deleted
                self._tell(verdict, waits_seconds=0.0)
                self.row.deleted.add(verdict.why, verdict.listed.size_bytes)
            self.sweep.progress(self.sweep.report)

    def _tell(self, verdict: SweepVerdict, *, waits_seconds: float) -> None:
        key, size_bytes = verdict.listed.key, verdict.listed.size_bytes
        self.sweep.tell(
            Condemned(key=key, size_bytes=size_bytes, why=verdict.why, waits_seconds=waits_seconds)
        )

    async def _sweep_uploads(self, log: RootLog) -> None:
        """Abort the uploads of attempts that do not run.

        As with objects, uploads are listed first and judged afterwards. No reader sees an upload, so there is
        no grace.
        """
        store, keys = self.sweep.store, self.keys
        try:
            uploads = await store.unfinished_uploads(keys.data)
        except StoreDenied:
            raise
        except Denied as error:  # credentials often lack this one permission: it ends nothing else
            self.row.notes.append(f"unfinished uploads are left to the bucket's own rules: {error}")
            return
        # The root is loaded after the uploads were listed. The root of the pages does not know an attempt
        # that was announced since, and its upload would be aborted.
        root = await log.load_newest() if uploads else None
        if root is None or root.state is StreamState.REBUILDING:
            return
        for upload in uploads:
            fragment = keys.parse_data(upload.key)
            age_seconds = (self.sweep.env.now_ms() - upload.started_ms) / 1000
            if fragment is None or root.runs(fragment[1]):  # not of this format, or its attempt still runs
                continue
            if age_seconds < self.sweep.uploads_seconds:  # safe to abort, but people may want to look at it
                self.row.stays.add(Why.YOUNG, 0)
                continue
            self.sweep.tell(Condemned(key=upload.key, size_bytes=0, why=Why.UNFINISHED, waits_seconds=0.0))
            if not self.sweep.report.dry_run:
                await store.abort_upload(upload)
            self.row.deleted.add(Why.UNFINISHED, 0)

    async def _remember(self, seen: SeenCondemned) -> None:
        rows = joined_rows([rows for rows, _ in self.waiting])
        since = np.concatenate([np.empty(0), *(since for _, since in self.waiting)])
        try:
            # The version of the first page: if a rebuild came during this sweep, the note is void afterwards.
            await self.sweep.notes.remember(
                self.keys, seen, rows, since, version=self.version, sound=self.sound
            )
        except OffloadError as error:
            self._failed(error)

    def _failed(self, error: OffloadError) -> None:
        self.sound = False  # notes of earlier sweeps stay, so that the next one finds the same objects due
        self.row.errors.append(error)
        _stop_if_every_stream_would_fail(error)


class _Stopped(Exception):
    """The run ends: its report has an error that every other stream would have too."""


def _stop_if_every_stream_would_fail(error: OffloadError) -> None:
    if isinstance(error, StoreDenied):
        raise _Stopped from error


async def _refuse_if_roots_are_lost(page: SweepPage, going: Sequence[SweepVerdict]) -> None:
    """Raise `RootsLost` if a group, a key or a note of the page, or a fragment that goes, proves newer roots.

    Roots 6 to 8 may be lost, and 8 named a fragment. By root 5 nothing names it and its attempt does not run.
    Its trailer mentions root 7, which is the only trace of the loss.
    """
    if page.root is None:
        return
    for listed in page.listing.rows:  # names alone say for which root a group was made: no request is needed
        if (loss := loss_shown_by_group(page.log, listed.key, page.root)) is not None:
            raise loss
        index = page.log.keys.parse_index(listed.key)
        loss = index and loss_shown_by_base(page.log, listed.key, index.version, page.root)
        if loss is not None:
            raise loss
    # A key or a note of a life that only lost roots knew looks like one of an ended life.
    version, key = max(page.bases, default=(0, ""))
    if (loss := loss_shown_by_base(page.log, key, version, page.root)) is not None:
        raise loss
    # Only the trailers of what goes: a fragment that stays is still there when its turn comes.
    fragments = [verdict.listed for verdict in going if page.log.keys.parse_fragment(verdict.listed.key)]
    trailers = await trailers_of(page.log, fragments, at_once=TRAILERS_AT_ONCE)
    version, key = newest_base_in(trailers)
    loss = loss_shown_by_base(page.log, key, version, page.root)
    if loss is None:  # the stream may have been begun again after all its roots were lost
        loss = await loss_shown_by_old_life(page.log, trailers, page.root)
    if loss is not None:
        raise loss


def _strange(key: str) -> str:
    if key.startswith(TIER_PREFIX):
        return "left by a trial of the store; nothing reads it, and a sweep removes it after a day"
    return "not an object of this format; a sweep never touches it"
