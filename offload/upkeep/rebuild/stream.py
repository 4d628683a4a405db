"""Rebuilding a stream's manifest from its data objects, after its roots were lost.

The steps (docs/commit-protocol.md, step "rebuild"):

    look        list everything, and read the tail of each fragment
    fence       create a root far above every number that any object mentions
    look again  find what a writer stored since the first look. From here on no other commit counts
    copy        only if a second history is joined (`upkeep.rebuild.joining`)
    commit      create one root that names the chosen fragments

The operator asserts that no writer and no sweep of the stream is alive: a sweep in between could delete what
the rebuild names.

Invariants:

- Nothing is deleted. No key is made, and none is needed, unless two histories are joined.
- A sound manifest is replaced only if objects prove that newer roots are lost, if a fragment that it names is
  gone, or if the operator names another incarnation.
- Nothing is committed over a hole, or short of what the manifest names, unless the operator says where the
  stream begins or ends.
- The same command begins an interrupted rebuild again, above its own fence.

The result may hold more than was committed: a fragment does not record that it was trimmed, or that its
attempt was dropped. Groups are not needed. Only the tails of fragments are read; `verify` reads the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from offload.commit.log import RootLog
from offload.commit.rebuild import JUMP, Fence, Rebuilt
from offload.formats.anchor import StreamAnchor
from offload.formats.keys import StreamKeys
from offload.ground.env import Env
from offload.ground.errors import Conflict, Corrupt, Misuse, NotOffloaded, RootsLost, UnsupportedFormat
from offload.model.entry import Entry
from offload.model.found import FoundFragment
from offload.model.manifest import Manifest, StreamState
from offload.native.key_objects import search_key
from offload.native.lost_anchors import lost_stream_anchor, restore_stream_anchor
from offload.native.lost_roots import old_life_in
from offload.native.offloader import ObjectStoreOffloader
from offload.upkeep.rebuild.choice import History, RebuildChoice, choose, continuing, histories
from offload.upkeep.rebuild.joining import (
    MissingOffsets,
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
    is_part: bool | None = None,
    dry_run: bool = False,
    env: Env | None = None,
    read_tails: ReadTails = read_tails,
    progress: Callable[[int, int], None] = lambda read, listed: None,
) -> RebuildReport:
    """Rebuild a stream's manifest.

    `begin` and `end` say where the operator wants the history to begin and end. `incarnation` names the
    history to bring back. The operator must name it if

    - several histories are found,
    - the stream was deleted, or
    - the stream was begun again after its roots were lost. The data of the manifest is then joined to it.

    Without `incarnation`, nothing is committed in these cases, and the report lists the histories. The
    manifest's own incarnation may be named too. The rebuild then takes in the fragments that continue the
    manifest, whether a lost root committed them or none did. It gives up the other lives of a stream that was
    begun again, so that a sweep may delete them.

    If there are holes that neither `begin` nor `end` excludes, nothing is committed, and the report has no
    manifest. Offsets that the manifest names and no fragment holds are a hole as well. If the manifest is
    sound and only the stream's anchor is lost, the anchor is restored. `is_part` says if the stream is a part
    of another one. It must be said if the anchor is lost and the name looks like that of a part.

    `read_tails` may let other machines read the tails; every decision is made here. `progress` is called with
    the number of fragments that were read, and the number that are known.

    Raises `Conflict` if nothing is lost, if two histories cannot be joined, or if another process commits
    meanwhile; `NotOffloaded` if no fragment is left; `Misuse` if no fragment begins at `begin` or ends at
    `end`, or is of `incarnation`; `Corrupt` if an object mentions a root number that no writer reaches.
    """
    await offloader.open()
    survey = Survey(store=offloader.store, keys=StreamKeys(stream), read_tails=read_tails, progress=progress)
    lost_anchor = await lost_stream_anchor(offloader.store, stream, is_part=is_part)
    work = _Rebuild(
        offloader,
        stream,
        env or Env(),
        survey,
        begin=begin,
        end=end,
        dry_run=dry_run,
        lost_anchor=lost_anchor,
    )
    return await work.run(incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """One history, and the parts that are copied to it from the manifest's own history."""

    choice: RebuildChoice
    other: Side | None = None
    before: Sequence[MissingOffsets] = ()
    behind: Sequence[MissingOffsets] = ()


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
    lost_anchor: StreamAnchor | None
    """The anchor that is restored; None if it is sound."""

    async def run(self, asked: UUID | None) -> RebuildReport:
        log = self.offloader.log(self.stream)
        # Objects are listed before the root is loaded, as in a sweep. If an object proves a root above
        # `standing`, that root existed before the load, so it is lost. In the other order it might be new.
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
        if self.dry_run or plan.choice.holes:  # before the fence: the stream stays as it was
            return await self._with(report, plan)

        # 1. Create the fence. From here on no root of another process can be the newest.
        fence, fenced = await self._fenced(log, standing, target)

        # 2. Look again. An append between the first look and the fence stored fragments that the first look
        # did not see.
        await self._look_again(fence)
        plan = await self._plan(fenced, target)
        report = await self._with(report, plan)
        if plan.choice.holes:  # the second look found more. The fence stays; the next run begins above it
            return report

        # 3. Copy what the other history holds beyond this one, then commit once.
        return await self._committed(log, report, plan, fence, fenced)

    async def _fenced(self, log: RootLog, standing: Manifest | None, target: UUID) -> tuple[Fence, Manifest]:
        """Create the fence above every number that any object mentions. Return it, and its root."""
        fence = Fence(
            stream=self.stream,
            writer=self.env.uuid(),
            incarnation=target,
            epoch=self.survey.epoch + 1,
            above=self.survey.number,
            instead_of=None if standing is None else standing.commit_id,
        )
        if standing is not None and standing.state is not StreamState.REBUILDING:
            # First a fence at the very next number. If a writer is still alive and commits there, this commit
            # fails. A jump at once would pass over that commit in silence. While the fence of an earlier
            # rebuild is the newest root, no writer commits, so this step is not needed.
            low = replace(fence, writer=self.env.uuid(), above=standing.version, jump=1)
            standing = await log.commit(low, base=standing, committer=low.writer)
            self.survey.roots.add(standing.version)
        return fence, await log.commit(fence, base=standing, committer=fence.writer)

    async def _look_again(self, fence: Fence) -> None:
        """Look for what was stored since the first look. Raises `Conflict` if another process committed."""
        # If a root has appeared below the fence's number, it may name objects that this rebuild did not see.
        seen, first_possible = set(self.survey.roots), fence.above + JUMP
        await self.survey.look()
        passed = {each for each in self.survey.roots - seen if each < first_possible}
        if passed:
            raise Conflict(
                f"stream {self.stream!r}: another process committed root {max(passed)} meanwhile: stop every "
                "writer and every other rebuild of the stream, and run again"
            )

    async def _committed(
        self, log: RootLog, report: RebuildReport, plan: _Plan, fence: Fence, fenced: Manifest
    ) -> RebuildReport:
        """Copy the parts of the plan, and commit the one root that names everything."""
        # While the fence is the newest root no sweep condemns anything, so the copies need not be announced.
        target = fence.incarnation
        entries = await self._entries(plan, replace(fenced, incarnation=target))
        rebuilt = Rebuilt(
            writer=fence.writer,
            incarnation=target,
            entries=entries,
            source_epoch=await self._source_epoch(plan.choice.chosen, fenced, target),
        )
        # The anchor comes before the commit: a stream that is live and has no anchor would be damage, while a
        # rebuild that dies here is begun again anyway.
        anchor_restored = await self._restore_anchor()
        manifest = await log.commit(rebuilt, base=fenced, committer=fence.writer)
        return replace(report, manifest=manifest, anchor_restored=anchor_restored)

    async def _is_lost(self, log: RootLog, standing: Manifest) -> bool:
        """Return whether newer roots are lost, or a fragment or group that this root names.

        A root that names a missing object may be an older one: sweeps delete what only an old root names.
        """
        if standing.state is not StreamState.LIVE:  # a tombstone names nothing, a fence is no history yet
            return False
        if self.survey.proves_lost_roots(log, standing):
            return True
        if await self._holds(standing):
            return False
        await self.survey.look()  # a fragment that was committed since the first look is no loss
        return not await self._holds(standing)

    async def _holds(self, manifest: Manifest) -> bool:
        """Return whether every fragment and group that the manifest names was found sound."""
        named = await self._named(manifest, manifest.incarnation)
        names = {each.name for each in self.survey.found.values()}
        return named is not None and all((each.first_offset, each.attempt) in names for each in named)

    def _reach_behind(self, manifest: Manifest) -> int:
        """Return the offset up to which fragments of its incarnation continue the manifest.

        That is the manifest's own end if none continues it.
        """
        ends: dict[int, int] = {}  # of rivals at one offset the longest counts: this is only an estimate
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
        """Return the incarnation to bring back; None if the operator must name it, or if nothing is lost."""
        incarnations = {each.incarnation for each in found}
        if asked is not None and asked not in incarnations:
            known = ", ".join(sorted(map(str, incarnations))) or "none"
            raise Misuse(f"stream {self.stream!r} has no sound fragment of history {asked}; found: {known}")
        if standing is not None and standing.state is StreamState.LIVE:
            if asked not in (None, standing.incarnation):  # `_plan` joins what the manifest names to it
                return asked
            # Fragments of another incarnation may be what was lost: then only the operator can choose.
            others = incarnations - {standing.incarnation}
            is_told = asked is not None and (
                self._reach_behind(standing) > standing.next_offset
                or old_life_in(self.survey.found.items(), standing) is not None  # the operator gives it up
            )
            return standing.incarnation if is_told or (is_lost and (asked or not others)) else None
        if standing is not None and standing.state is StreamState.DELETED:
            return asked  # nobody brings back a deleted stream by accident
        if not found:
            raise NotOffloaded(
                f"stream {self.stream!r} has no fragment that is sound; nothing can be rebuilt"
            )
        return asked or (min(incarnations) if len(incarnations) == 1 else None)

    async def _restore_anchor(self) -> bool:
        """Restore the anchor, except in a dry run. Return whether it was lost."""
        if self.lost_anchor is not None and not self.dry_run:
            await restore_stream_anchor(self.offloader.store, self.lost_anchor, env=self.env)
        return self.lost_anchor is not None

    async def _without_target(self, report: RebuildReport, rows: Sequence[History]) -> RebuildReport:
        """Rebuild nothing. Restore the anchor if it is lost, and report the histories to choose from."""
        standing = report.standing
        if standing is not None and standing.state is StreamState.LIVE:
            lost = await self._restore_anchor()
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
                "them, and the next sync commits or replaces them. If a newer root was lost instead, and the "
                f"source no longer has these offsets, add them with --incarnation {standing.incarnation}"
            )
        raise Conflict(text)

    async def _plan(self, base: Manifest | None, target: UUID) -> _Plan:
        """Return what to commit on `base`, which is the newest root before the fence, or the fence itself."""
        found = list(self.survey.found.values())
        if base is None or base.state is StreamState.DELETED or not base.fragments:
            return _Plan(choice=self._chosen(found, target))
        named = await self._named(base, target)
        if base.incarnation == target:
            # The manifest was committed once: its own fragments win over any rival at these offsets.
            others = [each for each in found if each.incarnation != target]
            own = [each for each in found if each.incarnation == target]
            choice = self._chosen([*others, *continuing(own, base, named)], target)
            return _Plan(choice=self._with_edges(choice, base))
        assert named is not None
        # What `base` names would be joined as if it were all of its history, and the rest would be given up.
        if self.survey.proves_lost_roots(self.offloader.log(self.stream), base):
            raise Conflict(
                f"stream {self.stream!r}: newer roots than version {base.version} are lost as well. "
                f"First rebuild that history: --incarnation {base.incarnation}"
            )
        other = Side(manifest=base, entries=named)
        choice = self._chosen(found, target)
        if all(each.entry.next_offset <= other.next_offset for each in choice.beyond) and all(
            other.first_offset <= hole[0] for hole in choice.holes
        ):
            choice = replace(choice, holes=(), beyond=())  # the other history fills them
        if choice.holes:
            return _Plan(choice=choice)
        # A reader checks a fragment's incarnation against its manifest: the kept ones are of `target`.
        kept = Side(
            manifest=replace(base, incarnation=target), entries=[each.entry for each in choice.chosen]
        )
        before, behind = await parts_to_copy(self.offloader, kept, other)
        return _Plan(choice=choice, other=other, before=before, behind=behind)

    def _with_edges(self, choice: RebuildChoice, base: Manifest) -> RebuildChoice:
        """Add a hole at each edge where `base` reaches further, unless the operator moved that edge."""
        holes = list(choice.holes)
        first = choice.chosen[0].entry.first_offset
        last = max(each.entry.next_offset for each in (*choice.chosen, *choice.beyond))
        if self.begin is None and base.first_offset < first:
            holes.insert(0, (base.first_offset, first))
        if self.end is None and last < base.next_offset:
            holes.append((last, base.next_offset))
        return replace(choice, holes=holes)

    async def _named(self, base: Manifest, target: UUID) -> list[Entry] | None:
        """Return the fragments that `base` names; None if a group of the rebuilt history is damaged."""
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
        """Return the chosen fragments, between copies of what the other history holds beyond them."""
        entries = [each.entry for each in plan.choice.chosen]
        if plan.other is None:
            return entries

        async def copies(parts: Sequence[MissingOffsets]) -> list[Entry]:
            assert plan.other is not None
            uploads = copied_parts(
                self.offloader, parts, source=plan.other.manifest, target=fenced, env=self.env
            )
            return sorted([entry async for entry in uploads], key=lambda entry: entry.first_offset)

        # The parts before the history are copied from its beginning backwards, those behind it forwards. So
        # each copy touches existing data, and a rebuild that is killed leaves a longer history and no hole.
        before = await copies(plan.before[::-1])
        return [*before, *entries, *await copies(plan.behind)]

    async def _source_epoch(self, chosen: Sequence[FoundFragment], fenced: Manifest, target: UUID) -> int:
        """Return the highest leader epoch of the broker that the history mentions.

        Fragments record it, except those that an older release wrote. If none does, it is the leader epoch in
        the header of the last chunk.
        """
        own = (each for each in self.survey.found.values() if each.incarnation == target)
        recorded, last = max(each.source_epoch for each in own), chosen[-1].entry
        # No older release encrypted. So if an encrypted fragment records no epoch, its writer knew of none.
        if recorded or last.encrypted:
            return recorded
        return await last_leader_epoch(self.offloader, replace(fenced, incarnation=target), last)

    async def _with(self, report: RebuildReport, plan: _Plan) -> RebuildReport:
        lost = await self._lost_keys(plan.choice.chosen)
        return replace(report, choice=plan.choice, before=plan.before, behind=plan.behind, lost_keys=lost)

    async def _lost_keys(self, chosen: Sequence[FoundFragment]) -> dict[UUID, int]:
        """Return each key of the stream that is lost, and how many of these fragments need it."""
        needs = Counter((each.incarnation, each.stream_key) for each in chosen)
        lost, store = dict[UUID, int](), self.offloader.store
        for (life, uid), fragments in needs.items():
            with suppress(UnsupportedFormat):  # a newer program rotated it, so it is there
                if uid and (await search_key(store, self.stream, life, uid)).loss:
                    lost[uid] = fragments
        return lost


async def _newest(log: RootLog) -> Manifest | None:
    """Return the newest root, or None if there is none. Raises `Conflict` if it is damaged."""
    try:
        return await log.load_newest()
    except RootsLost:
        return None
    except Corrupt as damage:
        raise Conflict(
            f"stream {log.stream!r}: its newest root is there, but is not sound ({damage}). To rebuild from "
            "the data alone, move that object away and run again"
        ) from damage
