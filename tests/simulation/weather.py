"""Weather: the processes of one history and the troubles that they may meet, drawn from its seed.

Each trouble is absent from many histories and frequent in some. Half of the histories are drawn freely. The
others are made for situations that are rare by chance: slow readers under retention, writers that sleep
before a commit, streams that are often deleted, and losses of the newest roots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final, Self

GRACE_SECONDS: Final = 6.0
"""The grace of every sweep in a history with readers. A turn takes a tenth of a second on average."""


OF_REQUESTS: Final = ("refused", "throttled", "lost_reply", "late", "stall")
"""The troubles of requests."""


@dataclass(frozen=True, slots=True)
class Weather:
    """The processes and troubles of one history. Chances are per request, or per turn of any process."""

    steps: int
    """The number of turns with trouble, before the history ends."""

    factor: int
    writers: int
    readers: int
    slow_readers: bool
    sweepers: int
    trimmers: int
    aborters: int
    deletes: bool
    mayflies: bool
    """If set, the stream is deleted every few seconds."""
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
    loses_roots: float
    """The part of the history after which roots are lost; never if 0."""
    jobs: int = 0
    compactors: int = 0
    fetchers: int = 0
    commit_entries: int = 256
    """The most fragments of one commit. A longer append takes several commits."""
    truncates: float = 0.0
    births: bool = False
    """If set, the history begins without a tier."""
    weak_listings: bool = False
    """If set, a listing shows only what the protocol needs, and some objects that changed meanwhile."""
    split: bool = False
    """If set, roots and anchors are in a separate store."""
    guarded: bool = False
    """If set, stores have retries and limits, as those of users do."""
    loses_newest: bool = False
    """If set, sometimes only the newest roots are lost."""
    loses_anchor: str = ""
    """The anchor to lose, of the tier or of the stream, if roots are not lost."""
    stops_everybody: bool = True
    """If set, all processes stop before lost roots are rebuilt."""
    first_version: int = 0
    first_offset: int = 0
    """The first offset. Some numbers wrap 32 bits soon, some are close to the end of 64 bits."""
    compresses: bool = False
    """If set, each process has a codec of its own."""
    needs_sizes: bool = False
    """If set, the store takes only bodies of known sizes."""
    encrypts: bool = False
    """If set, processes may have keys, and may encrypt new streams."""
    keyless: bool = False
    """If set, some processes have no keys."""
    outages: float = 0.0
    """The chance that the key service is down or denies for a while."""
    copy_losses: float = 0.0
    """The chance that one of the two copies of a key object is lost."""
    kept_seconds: float = 300.0
    """How long a process keeps a key in memory."""
    rotators: int = 0
    shredders: int = 0
    owners: int = 0
    """The number of managed ledgers of the stream. If there are some, only guests append beside them."""
    guests: int = 0
    """The number of processes that append to the stream of owners by jobs."""
    keepers: int = 0
    """The number of processes that change a shared note."""

    @classmethod
    def of(cls, random: Random) -> Weather:
        """Draw the weather at random. Each trouble is absent from many histories, and frequent in some."""

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
            mayflies=False,
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
            loses_roots=random.choice((0.3, 0.6, 1.0)) if maybe(0.25) else 0.0,
        )
        made = (drawn._of_readers(random), drawn._of_sleepers(), drawn._of_mayflies(), drawn._of_losses())
        return random.choice((drawn, drawn, drawn, drawn, *made))

    def _of_readers(self, random: Random) -> Self:
        """Return a weather of slow readers whose fragments are trimmed and swept. Other troubles are rare."""
        grace_seconds = random.choice((GRACE_SECONDS, 8 * GRACE_SECONDS))
        people = replace(self, writers=1, readers=1, sweepers=1, trimmers=1, aborters=0, deletes=False)
        calm = {name: getattr(self, name) / 5 for name in OF_REQUESTS}
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
        """Return this weather, perhaps with jobs and compactions.

        Compactions find more work if trims are rare and groups are larger.
        """
        jobs, compactors = random.choice((0, 0, 0, 1, 2)), random.choice((0, 0, 0, 1, 2))
        fetchers = random.choice((0, 0, 1))
        if not compactors:
            return replace(self, jobs=jobs, fetchers=fetchers)
        rare = {
            "trimmers": random.choice((0, 1)), "writers": random.choice((1, 1, 2)), "stall": self.stall / 3,
            "fetchers": fetchers,
        }  # fmt: skip
        return replace(
            self, steps=600, jobs=jobs, compactors=compactors, factor=random.choice((2, 3, 4)), **rare
        )

    def on_a_tier(self, random: Random) -> Self:
        """Return this weather on a tier of any kind, beside a broker of any kind."""

        def maybe(often: float) -> bool:
            return random.random() < often

        return replace(
            self,
            # A rebuild may prefer fragments that a job uploaded in vain (docs/commit-protocol.md, step 10).
            jobs=0 if self.loses_roots else self.jobs,
            commit_entries=random.choice((1, 2, 256, 256)),
            truncates=random.random() * 0.03 if maybe(0.2) else 0.0,
            **random.choice((*({},) * 6, {"births": True}, {"split": True})),
            guarded=maybe(0.2),
            weak_listings=maybe(0.3),
            loses_newest=self.loses_newest or maybe(0.5),
            stops_everybody=maybe(0.7),
            loses_anchor=random.choice(("tier", "stream", *("",) * 8)),
            first_version=random.choice((0, 0, 0, 2**32 - 10, 2**63 - 2**34)),
            first_offset=random.choice((0, 0, 0, 2**32 - 20, 2**64 - 2**16)),
        )

    def with_keys(self, random: Random) -> Self:
        """Return this weather, perhaps with codecs, and perhaps with encryption and troubles of keys."""

        def sometimes(most: float, often: float) -> float:
            return random.random() * most if random.random() < often else 0.0

        compresses, needs_sizes = random.random() < 0.3, random.random() < 0.3
        # A new key takes many requests, so some of these worlds have few troubles of other kinds.
        calm = {name: getattr(self, name) / 5 for name in OF_REQUESTS}
        if random.random() >= 0.3:
            return replace(self, compresses=compresses, needs_sizes=needs_sizes)
        return replace(
            self,
            compresses=compresses,
            needs_sizes=needs_sizes,
            encrypts=True,
            steps=max(self.steps, 300),
            keyless=random.random() < 0.3,
            outages=sometimes(0.02, 0.5),
            copy_losses=sometimes(0.05, 0.4),
            rotators=random.choice((0, 0, 1, 2)),
            shredders=random.choice((0, 0, 0, 1)),
            kept_seconds=random.choice((0.0, 5.0, 20.0, 300.0)),
            **random.choice(({}, calm)),
        )

    def with_keepers(self, random: Random) -> Self:
        """Return this weather for a stream with a shared note. Other processes are few, and sweeps many."""
        return replace(
            self,
            steps=random.choice((300, 600)),
            keepers=random.choice((3, 4, 6)),
            writers=1,
            readers=0,
            sweepers=random.choice((0, 1, 2)),
            deletes=random.random() < 0.4,
        )

    def with_owners(self, random: Random) -> Self:
        """Return this weather for two managed ledgers, which are the only writers, and perhaps for guests.

        No root is lost.
        """
        guests = random.choice((0, 0, 1, 2))
        owned = replace(
            self,
            steps=random.choice((200, 400, 700)),
            owners=2,
            guests=guests,
            sweepers=random.choice((0, 1, 1)),
            # What a guest appended in the place of a log's records is the most dangerous when it is trimmed.
            trimmers=random.choice((1, 2)) if guests else random.choice((0, 0, 0, 1)),
            compactors=random.choice((0, 0, 0, 1)),
            deletes=random.random() < 0.15,
            loses_roots=0.0,
            loses_anchor="",
            truncates=0.0,
            first_offset=0,
            encrypts=False,
        )
        nobody = ("writers", "readers", "aborters", "jobs", "fetchers", "rotators", "shredders")
        return replace(owned, mayflies=False, **dict.fromkeys(nobody, 0), outages=0.0, copy_losses=0.0)

    def _of_sleepers(self) -> Self:
        """Return a weather of rivals that stall before creates, while sweeps delete old roots at once."""
        people = replace(self, writers=3, readers=0, sweepers=2, trimmers=2, scrubs=False)
        return replace(people, grace_seconds=0.0, steps=400, stall=0.1, crash=0.002, page_keys=100)

    def _of_losses(self) -> Self:
        """Return a weather that loses the newest roots, while writers, scrubs and prompt sweeps run."""
        people = replace(self, writers=2, readers=0, sweepers=2, trimmers=0, deletes=False, scrubs=True)
        return replace(people, grace_seconds=0.0, steps=400, loses_roots=0.4, loses_newest=True)

    def _of_mayflies(self) -> Self:
        """Return a weather in which a stream is deleted and begun again often, by writers that stall."""
        people = replace(self, writers=3, sweepers=1, trimmers=0, aborters=0, deletes=True, mayflies=True)
        return replace(people, steps=300, stall=0.1, crash=0.002, page_keys=100)
