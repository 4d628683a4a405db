"""Following all streams of a source in one process.

Each stream has a follower, in a task of its own. A follower that has something to copy waits for a turn.
Turns are taken in the order in which they were asked for, and one turn is bounded (`streams.due`). So a
stream with a huge backlog, or a slow one, holds back others for one turn at most.

Invariants:

- At most `turns_max` streams are copied at once. Together with the uploads of the offloaders, that bounds the
  memory, however many streams there are.
- One stream's error stops no other stream.
- After `stopping` is set nothing new is begun. What is in flight is committed, unless it takes longer than
  `stop_seconds`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from offload.contracts.events import Event
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Source, SourceStream
from offload.env import Env
from offload.errors import NotOffloaded, OffloadError
from offload.streams.follow_rules import FollowRules, FollowStatus
from offload.streams.follower import Follower

__all__ = ["Dispatcher"]


_log: Final = logging.getLogger(__name__)


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
    turns_max: int = 4
    discover_seconds: float = 30.0
    """The time between two looks for streams that were created or deleted."""
    stop_seconds: float = 20.0
    error: OffloadError | None = None
    """The error of the last look for streams."""

    _followers: dict[str, tuple[Follower, asyncio.Event]] = field(default_factory=dict)
    """The followers by stream, each with the event that ends it."""

    @property
    def statuses(self) -> list[FollowStatus]:
        """The status of each stream, in order of names. No request is sent."""
        return [follower.status for _, (follower, _) in sorted(self._followers.items())]

    async def run(self, stopping: asyncio.Event) -> None:
        """Follow the streams until `stopping` is set, and then end as the head of this module says."""
        turns = asyncio.Semaphore(self.turns_max)
        async with asyncio.timeout(None) as deadline, asyncio.TaskGroup() as tasks:
            while not stopping.is_set():
                await self._discover(tasks, turns)
                await self._sleep(self.discover_seconds, stopping)
            for _, ending in self._followers.values():
                ending.set()
            deadline.reschedule(asyncio.get_running_loop().time() + self.stop_seconds)

    async def _discover(self, tasks: asyncio.TaskGroup, turns: asyncio.Semaphore) -> None:
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
        for name, (follower, ending) in self._followers.items():
            if name not in found and not ending.is_set():
                lacking = follower.status.lag_records
                lost = f"; its last {lacking} records that were seen are not on the tier" if lacking else ""
                _log.warning("stream %r is not in the source any more: it is not followed%s", name, lost)
                ending.set()
        for name, stream in found.items():
            if name not in self._followers and (plan := self.plan_of(name)) is not None:
                ending = asyncio.Event()
                follower = self._follower(stream, *plan, is_ending=ending.is_set)
                self._followers[name] = follower, ending
                tasks.create_task(self._follow(follower, turns, ending))

    def _note(self, error: OffloadError | None) -> None:
        """Remember how the look for streams ended. A line of the log reports each change."""
        if error is not None and type(error) is not type(self.error):
            _log.error("cannot list the streams of %s: %s", self.source.url, error)
        elif error is None and self.error is not None:
            _log.info("the streams of %s can be listed again", self.source.url)
        self.error = error

    def _follower(
        self,
        stream: SourceStream,
        offloader: LedgerOffloader,
        rules: FollowRules,
        is_ending: Callable[[], bool],
    ) -> Follower:
        return Follower(
            source=stream.for_tier(offloader),
            offloader=offloader,
            rules=rules,
            taken=self._followers.keys,
            env=self.env,
            emit=self.emit,
            is_ending=is_ending,
        )

    async def _follow(self, follower: Follower, turns: asyncio.Semaphore, ending: asyncio.Event) -> None:
        # The first looks of many streams are spread over time, and with them all later ones.
        await self._sleep(follower.rules.look_seconds * self.env.random(), ending)
        while not ending.is_set():
            await self._sleep(await follower.step(turns), ending)
        # Another process may then take over at once. Without it, that one waits.
        with suppress(OffloadError):
            await follower.release()
        del self._followers[follower.source.name]

    async def _sleep(self, seconds: float, ending: asyncio.Event) -> None:
        """Sleep, or return as soon as the event is set."""
        waits = [asyncio.ensure_future(self.env.sleep(seconds)), asyncio.ensure_future(ending.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
