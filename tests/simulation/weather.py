"""Weather: who there is in one history, and what may befall them, drawn from its seed.

Each trouble is absent from many histories and frequent in some. Half of them are drawn freely; the others are
made for two things that chance meets too rarely: slow readers under retention, and writers that sleep before
a commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final, Self

GRACE_SECONDS: Final = 6.0
"""Of every sweep where somebody reads. A turn takes a tenth of a second on the average, so this is some 30
turns."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What there is in one history, and what may befall it. Chances are per request, or per turn of
    anybody."""

    steps: int
    """Turns with trouble, before the history is brought to its end."""

    factor: int
    writers: int
    readers: int
    slow_readers: bool
    sweepers: int
    trimmers: int
    aborters: int
    deletes: bool
    scrubs: bool
    grace_seconds: float
    clocks_jump: bool
    resends: bool
    multipart: bool
    page_keys: int
    refused: float
    throttled: float
    lost_reply: float
    late: float
    landing: float
    stall: float
    crash: float
    cancel: float
    pause: float
    flips: float
    tears: float
    loses_roots: bool
    jobs: int = 0
    compactors: int = 0

    @classmethod
    def of(cls, random: Random) -> Weather:
        """Drawn at random: each trouble is absent from many histories, and frequent in some."""

        def sometimes(most: float, often: float = 0.6) -> float:
            return random.random() * most if random.random() < often else 0.0

        def maybe(often: float) -> bool:
            return random.random() < often

        readers = random.choice((0, 0, 1, 2))
        drawn = cls(
            steps=random.choice((100, 200, 500)),
            factor=random.choice((2, 2, 3)),
            writers=random.choice((1, 2, 2, 3)),
            readers=readers,
            slow_readers=maybe(0.2),
            sweepers=random.choice((0, 1, 1, 2)),
            trimmers=random.choice((0, 0, 1, 2)),
            aborters=random.choice((0, 0, 1)),
            deletes=maybe(0.25),
            scrubs=maybe(0.1),
            grace_seconds=GRACE_SECONDS if readers else random.choice((0.0, 0.5, GRACE_SECONDS)),
            clocks_jump=maybe(0.3),
            resends=maybe(0.3),
            multipart=maybe(0.3),
            page_keys=random.choice((2, 5, 100, 100)),
            refused=sometimes(0.1),
            throttled=sometimes(0.1, 0.3),
            lost_reply=sometimes(0.25),
            late=sometimes(0.25),
            landing=random.choice((0.2, 0.05, 0.005)),
            stall=sometimes(0.1),
            crash=sometimes(0.02),
            cancel=sometimes(0.02, 0.3),
            pause=sometimes(0.03),
            flips=sometimes(0.02, 0.15),
            tears=sometimes(1.0, 0.3),
            loses_roots=maybe(0.15),
        )
        return random.choice((drawn, drawn, drawn._of_readers(random), drawn._of_sleepers()))

    def _of_readers(self, random: Random) -> Self:
        """Slow readers, whose fragments are trimmed and swept meanwhile; little else goes wrong."""
        grace_seconds = random.choice((GRACE_SECONDS, 8 * GRACE_SECONDS))
        people = replace(self, writers=1, readers=1, sweepers=1, trimmers=1, aborters=0, deletes=False)
        calm = {
            name: getattr(self, name) / 5 for name in ("refused", "throttled", "lost_reply", "late", "stall")
        }
        return replace(
            people,
            slow_readers=True,
            grace_seconds=grace_seconds,
            steps=400,
            crash=0.0,
            page_keys=100,
            **calm,
        )

    def with_guests(self, random: Random) -> Self:
        """The same with jobs, perhaps, and with compactions: these find more to do where trims are rare, and
        groups larger.
        """
        jobs, compactors = random.choice((0, 0, 0, 1, 2)), random.choice((0, 0, 0, 1, 2))
        if not compactors:
            return replace(self, jobs=jobs)
        rare = {"trimmers": random.choice((0, 1)), "writers": 1, "stall": self.stall / 3}
        return replace(
            self, steps=600, jobs=jobs, compactors=compactors, factor=random.choice((2, 3, 4)), **rare
        )

    def _of_sleepers(self) -> Self:
        """Rival writers that stall before their creates, while sweeps take every old root at once."""
        people = replace(self, writers=3, readers=0, sweepers=2, trimmers=2, scrubs=False)
        return replace(people, grace_seconds=0.0, steps=400, stall=0.1, crash=0.002, page_keys=100)
