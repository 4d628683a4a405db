"""Verifying a tier: compare its objects with their checksums, their keys and the manifest.

Objects are judged in order of their keys, page by page. As in the sweep, a page is listed first, and then
judged by the newest root. So a verify that runs beside a sync neither reports a fresh upload as damage nor
misses a commit; and an interrupted verify resumes behind the last key that it judged.

Invariants:

- Nothing is changed.
- At every level, each object that a manifest names is looked for.
- An object that no root names is explained and is no damage, unless it proves that newer roots existed.
- At the level `bytes`, every object is read whole, including superseded roots and unreferenced fragments and
  groups. Below it, only the trailers of unreferenced fragments and the named groups are read.
- Memory is bounded by what `upkeep.verify.page` and `upkeep.verify.groups` hold, a few windows, and the
  report.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from offload.commit.log import RootLog
from offload.contracts.catalogue import Catalogue
from offload.contracts.opening import RequestLimits
from offload.contracts.store import ObjectStore
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR, StreamKeys, escape, is_of_a_stream
from offload.ground.env import Env
from offload.ground.errors import (
    AnchorLost,
    Corrupt,
    Misuse,
    NotFound,
    NotOffloaded,
    RootsLost,
    UnsupportedFormat,
    rebuild_command,
)
from offload.ground.tasks import in_order
from offload.model.manifest import Manifest
from offload.native.anchors import read_anchor
from offload.native.key_ring import KeyRing
from offload.native.layout_check import native_or_none
from offload.native.stream_names import list_parts, stream_under
from offload.store.limit import LimitedStore
from offload.upkeep.pages import ListedPage, pages
from offload.upkeep.verify.entries import EntryVerifier
from offload.upkeep.verify.groups import ReadGroups
from offload.upkeep.verify.keys import ReadKeys
from offload.upkeep.verify.page import PAGE_ROWS, NamedHere, named_in
from offload.upkeep.verify.report import VerifyLevel, VerifyReport, counting, explain
from offload.upkeep.verify.stream import Judge, StreamJudge, explain_strange

__all__ = ["verify"]


OBJECTS_AT_ONCE: Final = 4


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
    """Check a tier, or one stream of it with its parts, from behind the key `after`.

    Calls `progress` after every object.

    `bytes_per_second_max` limits how much is read, on average. A caller may pass an empty `report`. If an
    error or a cancellation ends the verify, that report says up to which object everything was judged. A tier
    that keeps no objects of our layout is verified by its contract (`verify.entries`).

    Damage is reported, not raised. Raises `NotOffloaded` if the place is no tier or has no such stream, and
    `Misuse` for an `after` outside the stream. With `encrypted_only`, levels below `bytes` raise `Misuse`.
    """
    env, report, ring = env or Env(), VerifyReport() if report is None else report, None
    report.level = level
    if isinstance(tier, Catalogue):
        objects = native_or_none(tier)
        if objects is None:
            entries = EntryVerifier(
                tier, report=report, progress=progress, bytes_per_second_max=bytes_per_second_max, env=env
            )
            await entries.run(stream, after)
            return report
        tier, ring = objects.data, objects.ring
        if ring is not None and ring.encrypted_only and level is not VerifyLevel.BYTES:
            raise Misuse(f"level {level.value} reads no fragment, and finds no plain one: use level bytes")
        with suppress(Corrupt, NotOffloaded, UnsupportedFormat):  # the verify finds and reports them again
            await objects.open()
            tier = objects.store
    store: ObjectStore = tier
    if bytes_per_second_max is not None:
        limits = RequestLimits(down_bytes_per_second_max=bytes_per_second_max, deadline_seconds=None)
        store = LimitedStore(store, limits, clock=env.monotonic, sleep=env.sleep)
    verifier = _Verifier(
        store=store, env=env, report=report, progress=progress, page_rows_max=page_rows_max, ring=ring
    )
    await verifier.run(stream, after)
    return report


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyPrefix:
    """The objects under one first part of keys: those of a stream, or strangers."""

    part: str
    stream: str | None
    """The stream's name; None if nothing says to which stream the objects belong."""

    groups: ReadGroups
    keys: ReadKeys

    anchor: VerifyReport | None = None
    """The findings on the stream's anchor. They are reported when its key comes."""

    @property
    def anchor_key(self) -> str:
        return f"{self.part}stream.anchor"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """An object, and the function that judges it. An error that the function raises is its damage."""

    key: str
    stream: str | None
    judge: Judge
    offsets: range = range(0)
    """The committed offsets of the stream, if they are known."""

    @property
    def reached(self) -> int:
        """The first of these offsets that this object, or a later one, may hold. Data keys come first."""
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
    ring: KeyRing | None

    async def run(self, stream: str | None, after: str) -> None:
        await self._check_tier_anchor(stream, is_first=not after)
        if stream is None:
            await self._run("", after, None)
            return
        names = [stream, *await self._later_parts(stream)]
        begins = [number for number, name in enumerate(names) if after.startswith(escape(name) + "/")]
        if after and not begins:
            raise Misuse(f"{after!r} is no object of stream {stream!r}")
        for name in names[begins[0] if after else 0 :]:
            await self._run(escape(name) + "/", after, name)
            after = ""

    async def _later_parts(self, stream: str) -> list[str]:
        """Return the names of the parts behind the first. Damage that hides them is reported."""
        try:
            return [part.name for part in await list_parts(self.store, stream)]
        except (Corrupt, UnsupportedFormat) as error:
            where = error.where if isinstance(error, Corrupt) else stream
            self.report.add_error(error, where, stream)
            return []

    async def _run(self, prefix: str, after: str, stream: str | None) -> None:
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
            report.add_error(exc, one.key, one.stream)
        return report

    async def _check_tier_anchor(self, stream: str | None, *, is_first: bool) -> None:
        """Judge the tier's anchor. It is needed first; a resumed run does not report it again."""
        found = await self._judged(_Object(key=TIER_ANCHOR, stream=None, judge=self._judge_tier_anchor))
        if is_first:
            self.report.add(found)
            self.progress(self.report)

    async def _judge_tier_anchor(self, report: VerifyReport) -> None:
        decode = partial(TierAnchor.decode, where=TIER_ANCHOR)
        try:
            await read_anchor(self.store, TIER_ANCHOR, counting(report, decode))
        except NotFound as exc:
            if not await self._holds_a_stream():
                raise NotOffloaded(
                    f"{self.store.url} is no tier: it has no {TIER_ANCHOR}; "
                    f"`{rebuild_command(self.store.url)}` restores one that was lost"
                ) from exc
            # A sync made the tier meanwhile. This run opened the place without its anchor, so it does not
            # know on which store the roots are, and would call them lost.
            if await self._has_a_tier_anchor():
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
        """Yield every object that is listed or named, in order of keys, each with its judge."""
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
                    judges: dict[str, Judge] = {key: partial(explain_strange, key) for key in strangers}
                else:
                    judges, offsets = await self._judges(page, here, here.stream)
                if here.anchor is not None and page.holds(here.anchor_key):
                    judges[here.anchor_key] = partial(_repeat, here.anchor)
                for key in sorted(judges):
                    yield _Object(key=key, stream=here.stream, judge=judges[key], offsets=offsets)
        if stream is not None and here.anchor is None:
            raise NotOffloaded(f"{self.store.url} has no stream {stream!r}; `offload ls` shows which it has")

    async def _open(self, part: str) -> _KeyPrefix:
        """Find out to which stream the objects belong. Without a sound anchor, other objects name it."""
        if not part:
            return self._part(part, None)
        found = VerifyReport()
        here = await stream_under(self.store, part[:-1], counted=partial(counting, found))
        if here is None:
            return self._part(part, None)
        if here.damage is not None:
            found.add_error(here.damage, f"{part}stream.anchor", None)
        return self._part(part, here.stream, found)

    def _part(self, part: str, stream: str | None, anchor: VerifyReport | None = None) -> _KeyPrefix:
        if anchor is not None:
            anchor.streams = int(stream is not None)
        groups, keys = ReadGroups(store=self.store), ReadKeys(store=self.store, ring=self.ring)
        return _KeyPrefix(part=part, stream=stream, groups=groups, keys=keys, anchor=anchor)

    async def _newest(self, stream: str) -> Manifest | None:
        """Return the newest root; None if it is damaged. Its damage is reported in the turn of its key."""
        try:
            newest = await RootLog(store=self.store, stream=stream, env=self.env).load_newest()
        except RootsLost:
            raise
        except (Corrupt, UnsupportedFormat):
            return None
        if newest is None:
            raise NotOffloaded(f"nothing was ever committed to stream {stream!r}")
        return newest

    async def _judges(
        self, page: ListedPage, here: _KeyPrefix, stream: str
    ) -> tuple[dict[str, Judge], range]:
        """Return a judge for each object that is listed or named in a page, and the stream's offsets."""
        keys, newest, lost = StreamKeys(stream), None, dict[str, Judge]()
        try:
            newest = await self._newest(stream)
        except RootsLost as loss:
            if page.holds(keys.roots):  # said once, where roots would be listed
                lost[keys.roots] = partial(_raise, loss)
        except NotOffloaded:
            if here.anchor is not None and page.holds(here.anchor_key):
                here.anchor.streams = 0
                explain(here.anchor, here.anchor_key, reason="nothing was ever committed to this stream")
        named = NamedHere()
        if newest is not None:
            named = await named_in(page, newest, here.groups.load)
        judge = StreamJudge(
            store=self.store,
            log=RootLog(store=self.store, stream=stream, env=self.env),
            level=self.report.level,
            keys=keys,
            newest=newest,
            named=named,
            groups=here.groups,
            reload=partial(self._newest, stream),
            read_keys=here.keys,
        )
        listed = {row.key: row for row in page.rows}
        judges: dict[str, Judge] = {
            key: partial(judge.judge, key, listed.get(key))
            for key in listed.keys() | named.fragments.keys() | named.groups.keys()
        }
        offsets = range(0) if newest is None else range(newest.first_offset, newest.next_offset)
        return lost | judges, offsets


async def _raise(error: Corrupt, _: VerifyReport) -> None:
    """Raise an error that was found before, in the turn of its object."""
    raise error


async def _repeat(found: VerifyReport, report: VerifyReport) -> None:
    """Add findings that were made before, in the turn of their object."""
    report.add(found)
