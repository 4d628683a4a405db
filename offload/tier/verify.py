"""Verifying a tier: its objects against checksums, against their keys, and against the manifest.

Objects are judged in order of their keys, page by page: a page is listed first and judged afterwards by the
newest root, as in the sweep. So a verify that runs beside a sync neither calls a fresh upload damage nor
misses what was committed meanwhile; and one that was interrupted goes on behind the last key it judged.

Invariants: nothing is changed; what a manifest names is looked for, at every level; an object that nobody
names is explained, not blamed, unless it proves that newer roots existed. At the level of bytes every object
is read whole, with superseded roots, and fragments and groups that no root names; below it, of fragments the
trailers of those that no root names, and of groups those that are named.
Memory is what `tier.verify_page` and `tier.verify_groups` say, a few windows, and the report.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, cast
from uuid import UUID

from offload.catalogue import Catalogue
from offload.env import Env
from offload.errors import (
    Absent,
    AnchorLost,
    Corrupt,
    Misuse,
    NotFound,
    NotOffloaded,
    OffloadError,
    RootsLost,
    TryAgain,
    UnsupportedFormat,
    rebuild_command,
)
from offload.formats.anchor import TierAnchor
from offload.formats.group import Group
from offload.formats.keys import TIER_ANCHOR, TIER_PREFIX, StreamKeys, escape, is_of_a_stream
from offload.formats.manifest import CommittedStream, Entries, Entry, Manifest, State
from offload.manifest.commit import RootLog, decode_root
from offload.manifest.groups import fetch_group
from offload.manifest.tree import LoadGroup
from offload.store.checked import checked
from offload.store.limit import LimitedStore, Limits
from offload.store.port import Listed, ObjectStore
from offload.tasks import in_order
from offload.tier.fragment_check import check_fragment
from offload.tier.fragments import check_entry
from offload.tier.lost_roots import (
    Trailers,
    loss_shown_by_base,
    loss_shown_by_group,
    loss_shown_by_old_life,
    trailers_of,
)
from offload.tier.native import native_or_none
from offload.tier.pages import ListedPage, pages
from offload.tier.place import read_anchor
from offload.tier.stream_names import stream_under
from offload.tier.verify_entries import EntryVerifier
from offload.tier.verify_groups import ReadGroups
from offload.tier.verify_page import PAGE_ROWS, NamedHere, named_in
from offload.tier.verify_report import Unreferenced, VerifyLevel, VerifyReport

T = TypeVar("T")

OBJECTS_AT_ONCE: Final = 4

Judge = Callable[[VerifyReport], Awaitable[None]]
"""Judges one object, and says in its report what there is to say."""


async def verify(
    tier: Catalogue | ObjectStore,
    *,
    stream: str | None = None,
    level: VerifyLevel = VerifyLevel.BYTES,
    after: str = "",
    bytes_per_second_max: float | None = None,
    page_rows_max: int = PAGE_ROWS,
    env: Env | None = None,
    report: VerifyReport | None = None,
    progress: Callable[[VerifyReport], None] = lambda report: None,
) -> VerifyReport:
    """Check a tier, or one stream of it, from behind the key `after`. `progress` is told after every object.

    `bytes_per_second_max` bounds what is read, on average. Whoever gives an empty `report` has it also where
    an error or a cancellation ends this: it then says up to where everything was judged.
    A tier that keeps no objects of our layout is verified by its contract: see `verify_entries`. Raises
    `NotOffloaded` if the place is no tier or has no such stream, and `Misuse` for an `after` outside the
    stream; damage is reported, not raised.
    """
    env, report = env or Env(), VerifyReport() if report is None else report
    report.level = level
    if isinstance(tier, Catalogue):
        objects = native_or_none(tier)
        if objects is None:
            entries = EntryVerifier(
                tier, report=report, progress=progress, bytes_per_second_max=bytes_per_second_max, env=env
            )
            await entries.run(stream, after)
            return report
        with suppress(Corrupt, NotOffloaded, UnsupportedFormat):  # which are found again, and reported
            await objects.open()
        tier = objects.store
    store: ObjectStore = tier
    if bytes_per_second_max is not None:
        limits = Limits(down_bytes_per_second_max=bytes_per_second_max, deadline_seconds=None)
        store = LimitedStore(store, limits, clock=env.monotonic, sleep=env.sleep)
    verifier = _Verifier(store=store, env=env, report=report, progress=progress, page_rows_max=page_rows_max)
    await verifier.run(stream, after)
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What stands under one first part of keys: a stream, or strangers."""

    part: str
    stream: str | None
    """None: nobody knows whose objects these are."""

    groups: ReadGroups

    anchor: VerifyReport | None = None
    """What is to be said of the stream's anchor, in its turn."""

    @property
    def anchor_key(self) -> str:
        return f"{self.part}stream.anchor"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """An object and how to judge it. What is raised is its damage."""

    key: str
    stream: str | None
    judge: Judge
    offsets: range = range(0)
    """What is committed of the stream, if that is known."""

    @property
    def reached(self) -> int:
        """The first of these offsets that this object, or one behind it, may hold. Data comes first."""
        if self.stream is None:
            return 0
        fragment = StreamKeys(self.stream).parse_fragment(self.key)
        return self.offsets.stop if fragment is None else fragment[0]


@dataclass(kw_only=True)
class _Verifier:
    store: ObjectStore
    env: Env
    report: VerifyReport
    progress: Callable[[VerifyReport], None]
    page_rows_max: int

    async def run(self, stream: str | None, after: str) -> None:
        prefix = "" if stream is None else escape(stream) + "/"
        if after and not after.startswith(prefix):
            raise Misuse(f"{after!r} is no object of stream {stream!r}")
        await self._check_tier_anchor(stream, is_first=not after)
        objects = self._objects(prefix, after, stream)
        verdicts = in_order(self._judged, objects, at_once=OBJECTS_AT_ONCE)
        async with aclosing(objects), aclosing(verdicts):
            async for one, found in verdicts:
                self.report.add(found)
                self.report.judged_to, self.report.stream = one.key, one.stream
                self.report.offsets, self.report.reached = one.offsets, one.reached
                self.progress(self.report)

    async def _judged(self, one: _Object) -> VerifyReport:
        report = VerifyReport()
        try:
            await one.judge(report)
        except (Corrupt, UnsupportedFormat) as exc:
            report.damages.append(_as_damage(exc, one.key, one.stream))
        return report

    async def _check_tier_anchor(self, stream: str | None, *, is_first: bool) -> None:
        """It is needed first, so it is judged first, and not reported again by a run that was resumed."""
        found = await self._judged(_Object(key=TIER_ANCHOR, stream=None, judge=self._judge_tier_anchor))
        if is_first:
            self.report.add(found)
            self.progress(self.report)

    async def _judge_tier_anchor(self, report: VerifyReport) -> None:
        decode = partial(TierAnchor.decode, where=TIER_ANCHOR)
        try:
            await read_anchor(self.store, TIER_ANCHOR, _counting(report, decode))
        except NotFound as exc:
            if not await self._holds_a_stream():
                raise NotOffloaded(
                    f"{self.store.url} is no tier: it has no {TIER_ANCHOR}; "
                    f"`{rebuild_command(self.store.url)}` restores one that was lost"
                ) from exc
            if await self._has_a_tier_anchor():  # this run cannot know on which store the roots are
                raise NotOffloaded(
                    f"{self.store.url} became a tier while it was verified: run again"
                ) from exc
            raise AnchorLost(TIER_ANCHOR, tier=self.store.url) from exc

    async def _has_a_tier_anchor(self) -> bool:
        try:
            await self.store.get(TIER_ANCHOR)
        except NotFound:
            return False
        return True

    async def _holds_a_stream(self) -> bool:
        async for listed in self.store.list(""):
            if listed.key.endswith("/stream.anchor") or is_of_a_stream(listed.key):
                return True
        return False

    async def _objects(self, prefix: str, after: str, stream: str | None) -> AsyncGenerator[_Object, None]:
        """All that is listed or named, in order of keys, each with its judge."""
        here = self._part("", None)
        rows = self.store.list(prefix, after=after)
        async with aclosing(pages(rows, after=after, rows_max=self.page_rows_max)) as listing:
            async for page in listing:
                if page.part != here.part:
                    here = await self._open(page.part)
                    if stream is not None and here.anchor is None:
                        break
                offsets = range(0)
                if here.stream is None:
                    strangers = [row.key for row in page.rows if row.key != TIER_ANCHOR]
                    judges: dict[str, Judge] = {key: partial(_explain_strange, key) for key in strangers}
                else:
                    judges, offsets = await self._judges(page, here, here.stream)
                if here.anchor is not None and page.holds(here.anchor_key):
                    judges[here.anchor_key] = partial(_repeat, here.anchor)
                for key in sorted(judges):
                    yield _Object(key=key, stream=here.stream, judge=judges[key], offsets=offsets)
        if stream is not None and here.anchor is None:
            raise NotOffloaded(f"{self.store.url} has no stream {stream!r}; `offload ls` shows which it has")

    async def _open(self, part: str) -> _Part:
        """Find out whose objects these are. Without a sound anchor the name is taken from elsewhere."""
        if not part:
            return self._part(part, None)
        found = VerifyReport()
        here = await stream_under(self.store, part[:-1], counted=partial(_counting, found))
        if here is None:
            return self._part(part, None)
        if here.damage is not None:
            found.damages.append(_as_damage(here.damage, f"{part}stream.anchor", None))
        return self._part(part, here.stream, found)

    def _part(self, part: str, stream: str | None, anchor: VerifyReport | None = None) -> _Part:
        if anchor is not None:
            anchor.streams = int(stream is not None)
        return _Part(part=part, stream=stream, groups=ReadGroups(store=self.store), anchor=anchor)

    async def _newest(self, stream: str) -> Manifest | None:
        """The newest root, or None if it is damaged: it is among the objects, and reported as one of them."""
        try:
            newest = await RootLog(store=self.store, stream=stream, env=self.env).load_newest()
        except RootsLost:
            raise
        except (Corrupt, UnsupportedFormat):
            return None
        if newest is None:
            raise NotOffloaded(f"nothing was ever committed to stream {stream!r}")
        return newest

    async def _judges(self, page: ListedPage, here: _Part, stream: str) -> tuple[dict[str, Judge], range]:
        """How to judge what is listed in a page of a stream, and what is named there; and its offsets."""
        keys, newest, lost = StreamKeys(stream), None, dict[str, Judge]()
        try:
            newest = await self._newest(stream)
        except RootsLost as loss:
            if page.holds(keys.roots):  # said once, where roots would be listed
                lost[keys.roots] = partial(_raise, loss)
        except NotOffloaded:
            if here.anchor is not None and page.holds(here.anchor_key):
                here.anchor.streams = 0
                _explain(here.anchor, here.anchor_key, reason="nothing was ever committed to this stream")
        named = NamedHere()
        if newest is not None:
            named = await named_in(page, newest, here.groups.load)
        judge = _StreamJudge(
            store=self.store,
            log=RootLog(store=self.store, stream=stream, env=self.env),
            level=self.report.level,
            keys=keys,
            newest=newest,
            named=named,
            groups=here.groups,
            reload=partial(self._newest, stream),
        )
        listed = {row.key: row for row in page.rows}
        judges: dict[str, Judge] = {
            key: partial(judge.judge, key, listed.get(key))
            for key in listed.keys() | named.fragments.keys() | named.groups.keys()
        }
        offsets = range(0) if newest is None else range(newest.first_offset, newest.next_offset)
        return lost | judges, offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamJudge:
    """Judges objects of one stream's page by the root that was the newest after the page was listed."""

    store: ObjectStore
    log: RootLog
    level: VerifyLevel
    keys: StreamKeys
    newest: Manifest | None
    named: NamedHere
    groups: ReadGroups
    reload: Callable[[], Awaitable[Manifest | None]]

    async def judge(self, key: str, listed: Listed | None, report: VerifyReport) -> None:
        """Judge one object that is listed or named, or both."""
        if (entry := self.named.fragments.get(key)) is not None:
            await self._named(key, listed, entry, report)
        elif (group := self.named.groups.get(key)) is not None:
            await self._group(key, listed, group, report)
        elif listed is None or key == self.keys.anchor:
            return  # the anchor was judged to find the stream's name
        elif (version := self.keys.parse_root(key)) is not None:
            await self._root(key, version, report)
        elif (fragment := self.keys.parse_fragment(key)) is not None:
            await self._unnamed(listed, *fragment, report)
        elif (parsed := self.keys.parse_group(key)) is not None:
            await self._unnamed_group(key, first_offset=parsed[0], version=parsed[1], report=report)
        elif self.keys.parse_sighting(key) is not None:
            _explain(report, key, reason="a sweep's note of what it found; a later sweep uses and removes it")
        else:
            await _explain_strange(key, report)

    async def _root(self, key: str, version: int, report: VerifyReport) -> None:
        """Below the level of bytes, a root that was superseded is not read: nothing rests on it."""
        if self.level is not VerifyLevel.BYTES and self.newest is not None and version < self.newest.version:
            return
        decode = partial(decode_root, stream=self.keys.stream, version=version, where=key)
        with suppress(NotFound):  # superseded, and swept since it was listed
            await checked(self.store, key, _counting(report, decode))

    async def _group(self, key: str, listed: Listed | None, entry: Entries, report: VerifyReport) -> None:
        """What is not listed was committed since, or is gone though it was read: it is asked for now."""
        assert self.newest is not None
        groups = self.groups if listed is not None else ReadGroups(store=self.store)
        try:
            size_bytes = await groups.size_bytes(self.newest, entry)
        except Absent:
            if await self._is_still_named(key):
                raise Absent(key, self.keys.stream, tier=self.store.url) from None
            return
        _count(report, size_bytes)
        if listed is not None and listed.size_bytes != size_bytes:
            raise Corrupt("object size", key, expected=size_bytes, found=listed.size_bytes)

    async def _named(self, key: str, listed: Listed | None, entry: Entry, report: VerifyReport) -> None:
        try:
            # What was committed since the listing is named and not listed.
            await self._check_named((listed or await self._list_now(key)).size_bytes, key, entry, report)
        except NotFound:
            if await self._is_still_named(key):
                raise Absent(key, self.keys.stream, tier=self.store.url) from None

    async def _list_now(self, key: str) -> Listed:
        async with aclosing(cast("AsyncGenerator[Listed, None]", self.store.list(key))) as rows:
            async for row in rows:
                if row.key == key:
                    return row
        raise NotFound(key, store=self.store.url)

    async def _check_named(self, size_bytes: int, key: str, entry: Entry, report: VerifyReport) -> None:
        if size_bytes != entry.stored_size_bytes:
            report.objects += 1
            raise Corrupt("object size", key, expected=entry.stored_size_bytes, found=size_bytes)
        if self.level is VerifyLevel.BYTES:
            await self._check_bytes(size_bytes, key, entry, report)
            return
        stored = await self.store.stored_crc32c(key) if self.level is VerifyLevel.CHECKSUM else entry.checksum
        report.objects += 1
        if stored is None:
            report.not_compared += 1
        elif stored != entry.checksum:
            raise Corrupt("stored checksum", key, expected=entry.checksum, found=stored)

    async def _check_bytes(self, size_bytes: int, key: str, entry: Entry, report: VerifyReport) -> None:
        assert self.newest is not None
        try:
            checked = await check_fragment(self.store, key, size_bytes=size_bytes)
        except Corrupt:
            _count(report, size_bytes)
            raise
        _count(report, size_bytes)
        if checked.checksum != entry.checksum:
            raise Corrupt("object checksum", key, expected=entry.checksum, found=checked.checksum)
        check_entry(checked.tail.trailer, self.newest, entry, where=key)

    async def _unnamed(self, listed: Listed, first_offset: int, attempt: UUID, report: VerifyReport) -> None:
        reason = _reason(attempt, self.newest)
        if self.named.hides(first_offset):
            reason = "the group that would say whether it is named is damaged"
        _explain(report, listed.key, attempt=attempt, reason=reason)
        trailers = await self._trailers(listed, report)
        if self.newest is None:
            return
        for _, trailer in trailers:
            loss = loss_shown_by_base(self.log, listed.key, trailer.base_version, self.newest)
            if loss is None:
                with suppress(Corrupt, TryAgain):  # of the first fragment named, which is judged in its turn
                    loss = await loss_shown_by_old_life(self.log, trailers, self.newest)
            if loss is not None:
                report.unreferenced.clear()  # a lost root may have named it
                raise loss

    async def _trailers(self, listed: Listed, report: VerifyReport) -> Trailers:
        """What the fragment says of itself; nothing if it cannot be read."""
        if self.level is not VerifyLevel.BYTES:
            return await trailers_of(self.log, [listed], at_once=1)
        try:
            checked = await check_fragment(self.store, listed.key, size_bytes=listed.size_bytes)
        except NotFound:  # swept since it was listed
            return []
        _count(report, listed.size_bytes)
        return [(listed.key, checked.tail.trailer)]

    async def _unnamed_group(
        self, key: str, *, first_offset: int, version: int, report: VerifyReport
    ) -> None:
        if self.newest is not None and (loss := loss_shown_by_group(self.log, key, self.newest)) is not None:
            raise loss
        _explain(report, key, reason=self._why_group(first_offset=first_offset, version=version))
        if self.level is not VerifyLevel.BYTES:
            return
        decode = partial(Group.decode, stream=self.keys.stream, where=key)
        with suppress(NotFound):  # swept since it was listed
            group = await checked(self.store, key, _counting(report, decode))
            if group.key != key:
                raise Corrupt("key", key, expected=key, found=group.key)

    def _why_group(self, *, first_offset: int, version: int) -> str:
        if self.newest is None:
            return "no sound root says whether it is named"
        if self.named.hides(first_offset):
            return "the group that would say whether it is named is damaged"
        if version > self.newest.version:
            return "a commit is under way, or the next one supersedes what a crash left"
        if first_offset < self.newest.first_offset:
            return "what it names was trimmed, or a commit that lost made it; nothing is read by it any more"
        return "a commit that lost, or one that was superseded, made it; nothing will ever name it"

    async def _is_still_named(self, key: str) -> bool:
        """Asked of what is gone: by a root that was read after it was missed."""
        try:
            newest = await self.reload()
        except NotOffloaded:
            return False
        if newest is None:
            return False
        load: LoadGroup = partial(_load_group, self.store)
        just_it = ListedPage(part="", after=key[:-1], rows=[Listed(key, 0)], is_last=False)
        named = await named_in(just_it, newest, load)
        return key in named.fragments or key in named.groups


async def _load_group(store: ObjectStore, committed: CommittedStream, entry: Entries) -> Entries:
    return (await fetch_group(store, committed, entry)).entries


async def _raise(error: Corrupt, _: VerifyReport) -> None:
    """Report in an object's turn what was found before."""
    raise error


async def _repeat(found: VerifyReport, report: VerifyReport) -> None:
    """Say in an object's turn what was found of it before."""
    report.add(found)


def _count(report: VerifyReport, size_bytes: int) -> None:
    report.objects += 1
    report.bytes += size_bytes


def _counting(report: VerifyReport, decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """`decode`, which then also counts the one object of `report`: of two replies, the last one."""

    def counted(raw: bytes) -> T:
        report.objects, report.bytes = 1, len(raw)
        return decode(raw)

    return counted


async def _explain_strange(key: str, report: VerifyReport) -> None:
    reason = "not an object of this format; nothing here will ever touch it"
    if key.startswith(TIER_PREFIX):
        reason = "left by a trial of the store that was interrupted; nothing reads it, and it may go"
    _explain(report, key, reason=reason)


def _explain(report: VerifyReport, key: str, *, reason: str, attempt: UUID | None = None) -> None:
    report.unreferenced.append(Unreferenced(key=key, attempt=attempt, reason=reason))


def _as_damage(error: OffloadError, key: str, stream: str | None) -> Corrupt:
    if isinstance(error, Corrupt):
        return error.within(key, stream=stream)
    return Corrupt(
        "format version", key, expected="one that this program knows", found=str(error), stream=stream
    )


def _reason(attempt: UUID, newest: Manifest | None) -> str:
    if newest is None:
        return "no sound root says whether it is named"
    if newest.state is State.DELETED:
        return "the stream was deleted; nothing will ever name it again"
    if newest.runs(attempt):
        return "its attempt runs: an upload is under way, or the next sync adopts or drops what a crash left"
    return "its attempt was dropped or superseded and can never be committed"
