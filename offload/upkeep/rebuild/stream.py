"""Rebuilding a stream's manifest from its data objects, if its roots are lost.

The steps (docs/commit-protocol.md, step "rebuild"), each in this order for a reason:

    look       list everything, read what each fragment says of itself
    fence      create a root far above every number that any object mentions
    look again what a writer may have stored since; from here on no other commit counts
    copy       only if a second history is joined (`upkeep.rebuild.joining`)
    commit     one root that names the chosen fragments

The operator asserts that no writer and no sweep of the stream is alive: a sweep in between could delete what
the rebuild names. Invariants: nothing is deleted; a sound manifest is replaced only if objects prove that
newer roots are lost, if what it names is gone, or if the operator names another incarnation; nothing is
committed over a hole, or short of what the manifest names, unless the operator says where the stream begins
or ends; a rebuild that was interrupted is begun again by the same command, above its own fence.

What comes back may be more than was committed: fragments that were trimmed, or whose attempt was dropped,
say nothing of that. Groups are not needed. Only the tails of fragments are read; `verify` reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from offload.commit.log import RootLog
from offload.commit.rebuild import JUMP, Fence, Rebuilt
from offload.env import Env
from offload.errors import Conflict, Corrupt, Misuse, NotOffloaded, RootsLost, UnsupportedFormat
from offload.formats.keys import StreamKeys
from offload.model.entry import Entry
from offload.model.found import FoundFragment
from offload.model.manifest import Manifest, StreamState
from offload.native.lost_anchors import restore_stream_anchor
from offload.native.lost_roots import old_life_in
from offload.native.offloader import ObjectStoreOffloader
from offload.upkeep.rebuild.choice import History, RebuildChoice, choose, continuing, histories
from offload.upkeep.rebuild.joining import (
    MissingPart,
    Side,
    copied_parts,
    fragments_of,
    last_leader_epoch,
    parts_to_copy,
)
from offload.upkeep.rebuild.report import RebuildReport, names
from offload.upkeep.rebuild.survey import ReadTails, Survey, read_tails

__all__ = ["rebuild"]


async def rebuild(
    offloader: ObjectStoreOffloader,
    stream: str,
    *,
    incarnation: UUID | None = None,
    begin: int | None = None,
    end: int | None = None,
    dry_run: bool = False,
    env: Env | None = None,
    read_tails: ReadTails = read_tails,
    progress: Callable[[int, int], None] = lambda read, listed: None,
) -> RebuildReport:
    """Rebuild a stream's manifest.

    `begin` and `end` are the operator's word on where its history begins and ends. `incarnation` names the
    history to bring back. It is needed if several are found, if the stream was deleted, or if it was begun
    again after its roots were lost: then what the manifest names now is joined to it. That of the manifest
    takes in what continues it, which was committed by a root that is lost, or by none; and gives up the other
    lives of a stream that was begun again, so that a sweep may take them. Without it nothing is committed in
    these cases, and the report says what can be chosen.

    With holes, and no word on them, nothing is committed: the report has no manifest. What the manifest
    names and no fragment holds is a hole as well. If the manifest is sound and only the stream's anchor is
    lost, the anchor is restored.

    Raises `Conflict` if nothing is lost, if two histories cannot be joined, or if another process commits
    meanwhile; `NotOffloaded` if no fragment is left; `Misuse` if no fragment begins at `begin` or ends at
    `end`, or is of `incarnation`; `Corrupt` if an object mentions a root number that no writer reaches.
    `read_tails` may have other machines read the tails; all that is decided is decided here. `progress` is
    told how many fragments were read, and how many are known.
    """
    await offloader.open()
    survey = Survey(store=offloader.store, keys=StreamKeys(stream), read_tails=read_tails, progress=progress)
    work = _Rebuild(offloader, stream, env or Env(), survey, begin=begin, end=end, dry_run=dry_run)
    return await work.run(incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One history, and what is copied to it from that of the manifest."""

    choice: RebuildChoice
    other: Side | None = None
    before: Sequence[MissingPart] = ()
    behind: Sequence[MissingPart] = ()


@dataclass(slots=True)
class _Rebuild:
    """One rebuild."""

    offloader: ObjectStoreOffloader
    stream: str
    env: Env
    survey: Survey
    begin: int | None
    end: int | None
    dry_run: bool

    async def run(self, asked: UUID | None) -> RebuildReport:
        log = self.offloader.log(self.stream)
        await self.survey.look()
        standing = await _newest(log)
        is_lost = standing is not None and await self._is_lost(log, standing)
        found = list(self.survey.found.values())
        target = self._target(standing, asked, found, is_lost=is_lost)
        report = RebuildReport(
            stream=self.stream,
            standing=standing,
            incarnation=target,
            damages=list(self.survey.damages.values()),
        )
        if target is None:
            return await self._without_target(report, histories(found))
        plan = await self._plan(standing, target)
        if self.dry_run or plan.choice.holes:
            return _with(report, plan)

        # 1. The fence. From here on no root of anybody else's can be the newest.
        fence = Fence(
            stream=self.stream,
            writer=self.env.uuid(),
            incarnation=target,
            epoch=self.survey.epoch + 1,
            above=self.survey.number,
            instead_of=None if standing is None else standing.commit_id,
        )
        if standing is not None and standing.state is not StreamState.REBUILDING:
            # First one that follows directly, so that no commit of a writer who lives is passed over.
            low = replace(fence, writer=self.env.uuid(), above=standing.version, jump=1)
            standing = await log.commit(low, base=standing, committer=low.writer)
            self.survey.roots.add(standing.version)
        fenced = await log.commit(fence, base=standing, committer=fence.writer)

        # 2. What was stored before the fence was there. A root below the fence's number that came since the
        # first look was passed over: only an author who knew other objects than we did made one there.
        seen, first_possible = set(self.survey.roots), fence.above + JUMP
        await self.survey.look()
        passed = {each for each in self.survey.roots - seen if each < first_possible}
        if passed:
            raise Conflict(
                f"stream {self.stream!r}: another process committed root {max(passed)} meanwhile: stop every "
                "writer and every other rebuild of the stream, and run again"
            )
        plan = await self._plan(fenced, target)
        if plan.choice.holes:
            return _with(report, plan)

        # 3. What the other history holds beyond this one, and the one commit.
        entries = await self._entries(plan, replace(fenced, incarnation=target))
        rebuilt = Rebuilt(
            writer=fence.writer,
            incarnation=target,
            entries=entries,
            source_epoch=await self._source_epoch(plan.choice.chosen, fenced, target),
        )
        anchor_restored = await restore_stream_anchor(self.offloader.store, self.stream, env=self.env)
        manifest = await log.commit(rebuilt, base=fenced, committer=fence.writer)
        return replace(_with(report, plan), manifest=manifest, anchor_restored=anchor_restored)

    async def _is_lost(self, log: RootLog, standing: Manifest) -> bool:
        """Whether newer roots are lost, or some of what this one names.

        A root that names what is gone may be an older one, which a sweep no longer kept anything for.
        """
        if standing.state is not StreamState.LIVE:
            return False
        if self.survey.proves_lost_roots(log, standing):
            return True
        if await self._holds(standing):
            return False
        await self.survey.look()  # what was committed since the first look is there by now
        return not await self._holds(standing)

    async def _holds(self, manifest: Manifest) -> bool:
        """Whether all that the manifest names was found sound, groups included."""
        named = await self._named(manifest, manifest.incarnation)
        names = {each.name for each in self.survey.found.values()}
        return named is not None and all((each.first_offset, each.attempt) in names for each in named)

    def _reach_behind(self, manifest: Manifest) -> int:
        """The offset to which fragments of the manifest's incarnation continue it; its end if none does."""
        ends: dict[int, int] = {}
        for each in self.survey.found.values():
            if each.incarnation == manifest.incarnation:
                first = each.entry.first_offset
                ends[first] = max(ends.get(first, 0), each.entry.next_offset)
        reach = manifest.next_offset
        while ends.get(reach, reach) > reach:
            reach = ends[reach]
        return reach

    def _target(
        self, standing: Manifest | None, asked: UUID | None, found: Sequence[FoundFragment], *, is_lost: bool
    ) -> UUID | None:
        """The incarnation to bring back, or None if the operator must name it or nothing is lost."""
        incarnations = {each.incarnation for each in found}
        if asked is not None and asked not in incarnations:
            known = ", ".join(sorted(map(str, incarnations))) or "none"
            raise Misuse(
                f"stream {self.stream!r} has no sound fragment of incarnation {asked}; found: {known}"
            )
        if standing is not None and standing.state is StreamState.LIVE:
            if asked not in (None, standing.incarnation):
                return asked
            others = incarnations - {standing.incarnation}
            is_told = asked is not None and (
                self._reach_behind(standing) > standing.next_offset
                or old_life_in(self.survey.found.items(), standing) is not None  # to give that one up
            )
            return standing.incarnation if is_told or (is_lost and (asked or not others)) else None
        if standing is not None and standing.state is StreamState.DELETED:
            return asked
        if not found:
            raise NotOffloaded(
                f"stream {self.stream!r} has no fragment that is sound; nothing can be rebuilt"
            )
        return asked or (min(incarnations) if len(incarnations) == 1 else None)

    async def _without_target(self, report: RebuildReport, rows: Sequence[History]) -> RebuildReport:
        """Nothing is rebuilt: restore the anchor if that is lost, and say what can be chosen."""
        standing = report.standing
        if standing is not None and standing.state is StreamState.LIVE:
            lost = await restore_stream_anchor(
                self.offloader.store, self.stream, env=self.env, dry_run=self.dry_run
            )
            report = replace(report, anchor_restored=lost, manifest=standing if lost else None)
        nothing_to_choose = all(names(standing, row) for row in rows)
        if not nothing_to_choose:
            return replace(report, histories=rows)
        if report.anchor_restored:
            return report
        assert standing is not None
        if standing.state is StreamState.DELETED:
            raise Conflict(f"stream {self.stream!r} was deleted, and no fragment of it is left")
        text = f"stream {self.stream!r} has a sound manifest, version {standing.version}; nothing is lost"
        if (reach := self._reach_behind(standing)) > standing.next_offset:
            text += (
                f". Fragments that it does not name continue it and reach to offset {reach}: a crash left "
                "them, and the next sync sees to them. If a newer root was lost instead, and the source no "
                f"longer has these offsets, take them in with --incarnation {standing.incarnation}"
            )
        raise Conflict(text)

    async def _plan(self, base: Manifest | None, target: UUID) -> _Plan:
        """What to commit on `base`, which is the newest root before the fence, or the fence itself."""
        found = list(self.survey.found.values())
        if base is None or base.state is StreamState.DELETED or not base.fragments:
            return _Plan(choice=self._chosen(found, target))
        named = await self._named(base, target)
        if base.incarnation == target:
            others = [each for each in found if each.incarnation != target]
            own = [each for each in found if each.incarnation == target]
            choice = self._chosen([*others, *continuing(own, base, named)], target)
            return _Plan(choice=self._with_edges(choice, base))
        assert named is not None
        if self.survey.proves_lost_roots(self.offloader.log(self.stream), base):
            raise Conflict(
                f"stream {self.stream!r}: newer roots than version {base.version} are lost as well. "
                f"First rebuild incarnation {base.incarnation}"
            )
        other = Side(manifest=base, entries=named)
        choice = self._chosen(found, target)
        if all(each.entry.next_offset <= other.next_offset for each in choice.beyond) and all(
            other.first_offset <= hole[0] for hole in choice.holes
        ):
            choice = replace(choice, holes=(), beyond=())  # the other history fills them
        if choice.holes:
            return _Plan(choice=choice)
        kept = Side(
            manifest=replace(base, incarnation=target), entries=[each.entry for each in choice.chosen]
        )
        before, behind = await parts_to_copy(self.offloader, kept, other)
        return _Plan(choice=choice, other=other, before=before, behind=behind)

    def _with_edges(self, choice: RebuildChoice, base: Manifest) -> RebuildChoice:
        """With holes where `base` begins earlier or ends later, unless the operator says where."""
        holes = list(choice.holes)
        first = choice.chosen[0].entry.first_offset
        last = max(each.entry.next_offset for each in (*choice.chosen, *choice.beyond))
        if self.begin is None and base.first_offset < first:
            holes.insert(0, (base.first_offset, first))
        if self.end is None and last < base.next_offset:
            holes.append((last, base.next_offset))
        return replace(choice, holes=holes)

    async def _named(self, base: Manifest, target: UUID) -> list[Entry] | None:
        """The fragments that `base` names. Of the history that is rebuilt, None if its groups are damaged."""
        try:
            return await fragments_of(self.offloader, base)
        except Corrupt:
            if base.incarnation != target:
                raise
            return None

    def _chosen(self, found: Sequence[FoundFragment], target: UUID) -> RebuildChoice:
        choice = choose(found, incarnation=target, begin=self.begin, end=self.end)
        if not any(each.incarnation == target for each in found):
            raise NotOffloaded(
                f"stream {self.stream!r} has no fragment that is sound; nothing can be rebuilt"
            )
        if not choice.chosen:
            starts = sorted({each.entry.first_offset for each in found if each.incarnation == target})
            near = ", ".join(map(str, starts[:5])) + (", …" if len(starts) > 5 else "")
            wanted = f"ends by offset {self.end}" if self.begin is None else f"begins at offset {self.begin}"
            raise Misuse(f"stream {self.stream!r}: no fragment {wanted}; some begin at {near}")
        if self.end is not None and choice.next_offset != self.end and not choice.holes:
            raise Misuse(f"stream {self.stream!r}: no fragment in line ends at offset {self.end}")
        return choice

    async def _entries(self, plan: _Plan, fenced: Manifest) -> list[Entry]:
        """The chosen fragments, between copies of what the other history holds beyond them."""
        entries = [each.entry for each in plan.choice.chosen]
        if plan.other is None:
            return entries

        async def copies(parts: Sequence[MissingPart]) -> list[Entry]:
            assert plan.other is not None
            uploads = copied_parts(
                self.offloader, parts, source=plan.other.manifest, target=fenced, env=self.env
            )
            return sorted([entry async for entry in uploads], key=lambda entry: entry.first_offset)

        before = await copies(plan.before[::-1])  # each touches what is there: see `upkeep.rebuild.joining`
        return [*before, *entries, *await copies(plan.behind)]

    async def _source_epoch(self, chosen: Sequence[FoundFragment], fenced: Manifest, target: UUID) -> int:
        """The highest leader epoch of the broker that the history mentions.

        Fragments record it. Of those that an older release wrote the last chunk tells: it was written by the
        leader of that epoch.
        """
        own = (each for each in self.survey.found.values() if each.incarnation == target)
        recorded = max(each.source_epoch for each in own)
        if recorded:
            return recorded
        return await last_leader_epoch(self.offloader, replace(fenced, incarnation=target), chosen[-1].entry)


def _with(report: RebuildReport, plan: _Plan) -> RebuildReport:
    return replace(report, choice=plan.choice, before=plan.before, behind=plan.behind)


async def _newest(log: RootLog) -> Manifest | None:
    """The newest root, or None if there is none. Raises `Conflict` if it is damaged."""
    try:
        return await log.load_newest()
    except RootsLost:
        return None
    except (Corrupt, UnsupportedFormat) as damage:
        raise Conflict(
            f"stream {log.stream!r}: its newest root is there, but is not sound ({damage}). If the data "
            "is to be believed instead, move that object away and run again"
        ) from damage
