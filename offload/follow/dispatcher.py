"""Following all streams of a source in one process.

Each stream has a follower, in a task of its own. A follower that has something to copy waits for a turn.
Turns are taken in the order in which they were asked for, and one turn is bounded (`follow.due`). So a
stream with a huge backlog, or a slow one, holds back others for one turn at most. Streams that share a log
take their turns in the order of the log (`copy.log_order`).

Invariants:

- At most `turns_max` streams are copied at once. Together with the uploads of the offloaders, that bounds the
  memory, however many streams there are.
- One stream's error stops no other stream.
- After `stopping` is set nothing new is begun. What is in flight is committed, unless it takes longer than
  `stop_seconds`.
- What a person asks of a stream (`retry`, `hurry`, `hold`, `let_go`) happens in the stream's own task, after
  the copy that is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from offload.contracts.events import Event, RecordsLost
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Source, SourceStream
from offload.copy.instance import Instance
from offload.copy.log_order import LogTurns
from offload.follow.follower import Follower
from offload.follow.gaps import SeenTail, lost_of
from offload.follow.pauses import LookAtPlace, PausedBefore, look_nowhere
from offload.follow.rules import FollowRules, FollowStatus
from offload.ground.env import Env
from offload.ground.errors import NotOffloaded, OffloadError

__all__ = ["Dispatcher"]


START_SECONDS_MAX: Final = 1.0
START_SECONDS_PER_STREAM: Final = 0.01
"""The time over which the first looks of all streams are spread."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """A follower and its task."""

    follower: Follower
    ending: asyncio.Event
    """Set if the task is to end."""
    waking: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if the next step is to begin at once."""
    asked: list[asyncio.Future[None]] = field(default_factory=list)
    """Those who wait for the end of the next step."""

    def end(self) -> None:
        """Let the task end after the step that is under way."""
        self.ending.set()
        self.waking.set()

    async def status_after_step(self, patience_seconds: float) -> FollowStatus:
        """Begin the next step, wait for its end, but not longer, and return the status."""
        stepped = asyncio.get_running_loop().create_future()
        self.asked.append(stepped)
        self.waking.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await stepped
        return self.follower.status


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Follows the streams of a source until it is stopped."""

    source: Source
    plan_of: Callable[[str], tuple[LedgerOffloader, FollowRules] | None]
    """Returns the offloader and the rules for a stream of the source, or None if it is left out.

    Several offloaders of one tier differ in what they do to new fragments: compress or encrypt them.
    """
    env: Env = field(default_factory=Env)
    emit: Callable[[Event], None] = lambda event: None
    instance: Instance | None = None
    """The identity of this process. None: it does not take over from its earlier lives at once."""
    turns_max: int = 4
    discover_seconds: float = 30.0
    """The time between two looks for streams that were created or deleted."""
    stop_seconds: float = 20.0
    place: LookAtPlace = look_nowhere
    """Looks at the place of the tier, for the streams that are paused."""
    paused_before: Callable[[str], PausedBefore | None] = lambda stream: None
    """Returns how the process before left a stream. None if it was not paused."""
    error: OffloadError | None = None
    """The error of the last look for streams."""

    lost_tails: dict[str, int] = field(default_factory=dict)
    """For each stream that was deleted from the source, the number of its last records that were seen there
    and are not on the tier."""

    tails: dict[str, SeenTail] = field(default_factory=dict)
    """What streams lack, as of the last look for streams, and what those lack that were deleted. At the start
    it is what the process before has noted: a stream may be deleted while no process runs."""
    note_tails: Callable[[Mapping[str, SeenTail]], None] = lambda tails: None
    """Notes the tails for the next process."""

    _deleted: set[str] = field(default_factory=set)
    """The streams that were deleted from the source and whose followers are about to end."""
    _followers: dict[str, _Followed] = field(default_factory=dict)
    """The followers by stream."""

    @property
    def statuses(self) -> list[FollowStatus]:
        """The status of each stream, in order of names. No request is sent."""
        return [each.follower.status for _, each in sorted(self._followers.items())]

    async def retry(self, stream: str, *, patience_seconds: float) -> FollowStatus:
        """Look at a stream at once, also if it is paused, and return its status after that look.

        If the look takes longer, the status is that of this moment. Raises `NotOffloaded` if the stream is
        not followed.
        """
        followed = self._followed(stream)
        followed.follower.retry()
        return await followed.status_after_step(patience_seconds)

    async def hurry(self, stream: str, *, patience_seconds: float) -> FollowStatus:
        """Copy what a stream has in the source now, whatever its rules say. Otherwise as `retry`."""
        followed = self._followed(stream)
        followed.follower.hurry()
        return await followed.status_after_step(patience_seconds)

    async def hold(self, stream: str, *, patience_seconds: float) -> FollowStatus:
        """Pause a stream on behalf of a person, and give up the lead. Otherwise as `retry`. Idempotent."""
        followed = self._followed(stream)
        followed.follower.hold()
        return await followed.status_after_step(patience_seconds)

    async def let_go(self, stream: str, *, patience_seconds: float) -> FollowStatus:
        """Go on with a stream after `hold`. Otherwise as `retry`. Idempotent."""
        followed = self._followed(stream)
        followed.follower.let_go()
        return await followed.status_after_step(patience_seconds)

    async def run(self, stopping: asyncio.Event) -> None:
        """Follow the streams until `stopping` is set, and then end as the head of this module says."""
        turns = LogTurns(self.turns_max)
        async with asyncio.timeout(None) as deadline, asyncio.TaskGroup() as tasks:
            while not stopping.is_set():
                await self._discover(tasks, turns)
                self._note_tails()
                await self._sleep(self.discover_seconds, stopping)
            self._note_tails()
            for each in self._followers.values():
                each.end()
            deadline.reschedule(asyncio.get_running_loop().time() + self.stop_seconds)

    async def _discover(self, tasks: asyncio.TaskGroup, turns: LogTurns) -> None:
        try:
            found = {stream.name: stream for stream in await self.source.streams()}
        except NotOffloaded as error:
            found = {}
            self._note(error)
        except OffloadError as error:
            # Nothing is known of the streams. Their followers find out by themselves.
            self._note(error)
            return
        else:
            self._note(None)
        for name, followed in self._followers.items():
            if name not in found and not followed.ending.is_set():
                _log.warning("stream %r is not in the source any more: it is not followed", name)
                # If nothing can be listed, the folder was moved or unmounted, and the stream is still in it.
                if self.error is None:
                    self._deleted.add(name)
                followed.end()
        for name, stream in found.items():
            if self.lost_tails.pop(name, None) is not None:
                self.tails.pop(name, None)
            if name not in self._followers and (plan := self.plan_of(name)) is not None:
                followed = self._followers[name] = self._begun(stream, *plan)
                tasks.create_task(self._follow(followed, turns))
        if self.error is None:
            await self._look_for_tails(found)

    def _note(self, error: OffloadError | None) -> None:
        """Remember how the look for streams ended. A line of the log reports each change."""
        if error is not None and type(error) is not type(self.error):
            _log.error("cannot list the streams of %s: %s", self.source.url, error)
        elif error is None and self.error is not None:
            _log.info("the streams of %s can be listed again", self.source.url)
        self.error = error

    def _followed(self, stream: str) -> _Followed:
        if (found := self._followers.get(stream)) is None:
            raise NotOffloaded(f"stream {stream!r} is not followed by this process")
        return found

    def _begun(self, stream: SourceStream, offloader: LedgerOffloader, rules: FollowRules) -> _Followed:
        ending = asyncio.Event()
        follower = Follower(
            source=stream.for_tier(offloader),
            offloader=offloader,
            rules=rules,
            taken=self._followers.keys,
            env=self.env,
            emit=self.emit,
            is_ending=ending.is_set,
            place=self.place,
            instance=self.instance,
        )
        if (before := self.paused_before(stream.name)) is not None:
            follower.recall(before)
        return _Followed(follower, ending)

    async def _follow(self, followed: _Followed, turns: LogTurns) -> None:
        follower, share = followed.follower, self.env.random()
        # The first looks come soon after the start, and those of many streams are spread over time, and with
        # the second ones all later ones.
        start = min(START_SECONDS_MAX, START_SECONDS_PER_STREAM * len(self._followers))
        await self._sleep(share * min(follower.rules.look_seconds, start), followed.waking)
        while not followed.ending.is_set():
            followed.waking.clear()
            asked, followed.asked = followed.asked, []
            seconds = await follower.step(turns)
            for each in asked:
                if not each.done():
                    each.set_result(None)
            await self._sleep(share * seconds, followed.waking)
            share = 1.0
        if follower.source.name in self._deleted:
            self._deleted.remove(follower.source.name)
            await self._note_lost_tail(follower)
        # Another process may then take over at once. Without it, that one waits.
        with suppress(OffloadError):
            await follower.release()
        del self._followers[follower.source.name]

    async def _look_for_tails(self, found: Collection[str]) -> None:
        """Report what streams lack that were deleted while no process ran."""
        for name, tail in [*self.tails.items()]:
            plan = self.plan_of(name)
            if name in found or name in self._followers or name in self.lost_tails or plan is None:
                continue
            try:
                lost = await lost_of(plan[0], name, tail)
            except OffloadError as error:  # the next look for streams tries again
                _log.debug("%s: what it lacks is not known: %s", name, error)
                continue
            self._lose(name, name, lost, is_told=tail.is_told)

    async def _note_lost_tail(self, follower: Follower) -> None:
        """Report the records of a deleted stream that were seen and are not on the tier."""
        self._lose(follower.source.name, follower.stream, await follower.lost_tail())
        self._note_tails()

    def _lose(self, name: str, stream: str, tail: range, *, is_told: bool = False) -> None:
        self.tails.pop(name, None)
        if not tail:
            return
        self.lost_tails[name] = len(tail)
        self.tails[name] = SeenTail(tail.start, tail.stop, is_told=True)
        if not is_told:
            self.emit(
                RecordsLost(
                    stream=stream,
                    from_offset=tail.start,
                    to_offset=tail.stop,
                    records=len(tail),
                    cause="the stream was deleted before they were copied; nobody saw what came later",
                )
            )

    def _note_tails(self) -> None:
        for name, followed in self._followers.items():
            if lacking := followed.follower.lacking:
                self.tails[name] = SeenTail(lacking.start, lacking.stop)
            elif lacking is not None:
                self.tails.pop(name, None)
        self.note_tails(self.tails)

    async def _sleep(self, seconds: float, ending: asyncio.Event) -> None:
        """Sleep, or return as soon as the event is set."""
        waits = [asyncio.ensure_future(self.env.sleep(seconds)), asyncio.ensure_future(ending.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
