"""Attempts for the tasks of a write, announced for many at a time, though nobody knows the tasks beforehand.

Spark counts the tries of all tasks of an application. No two tries ever have one number: not the second try
of a task, not a speculated one, not one of a stage that is run again. The numbers of one write lie next to
each other, since Spark counts when it launches. So the first task that comes announces **spares**: attempts
for its own number, for the others of its block of 64 numbers, and for the blocks beside it. The others find
theirs.

    a task finds                 then
    a spare of its number        it uploads under it
    none                         it announces a fresh batch of spares, if no other commit comes between
    that one came between        it looks again

A batch of spares has a name: a random UUID, which runs too and under which nobody uploads. The UUID of a
spare is made of that name, of the run of the write, and of the number. So each task finds its spare in the
manifest. A UUID is never announced twice, since every batch has a new name.

Invariants: a spare is used by one try of one task; what was dropped never runs again. The ledger of all
spares begins where the stream ended when they were announced, so what a write appends is one ledger.
(docs/adr/0019-spare-attempts.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

from offload.env import Env
from offload.errors import Conflict, OutcomeUnknown, TryAgain
from offload.model.attempt import Attempt
from offload.model.manifest import AttemptKind, Manifest
from offload.model.tokens import with_token
from offload.streams.job import Job

BLOCK: Final = 64
"""How many numbers are announced together. A batch of spares is three blocks at most."""

TRIES_MAX: Final = 40
"""Each try that fails lost against another commit, which mostly announced what this one looks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """The spares of one run of a write. Goes to every task, so it is small."""

    job: UUID
    token: bytes
    run: UUID
    """Unique to this run: another run of the write has tries of the same numbers."""

    def of(self, manifest: Manifest, number: int) -> Attempt | None:
        """The spare of this number that runs; None if there is none."""
        own = self._running(manifest)
        for name in own:
            uid = self._made_of(name, number)
            if uid in own:
                return Attempt(stream=manifest.stream, ledger_id=own[uid], uid=uid)
        return None

    def around(self, manifest: Manifest, number: int, *, name: UUID) -> list[UUID]:
        """A batch for the blocks around this number that have no spares yet, `name` the first of it."""
        blocks = range(max(number // BLOCK - 1, 0), number // BLOCK + 2)
        return [name, *(self._made_of(name, each) for each in self._missing(manifest, number, blocks))]

    def _missing(self, manifest: Manifest, number: int, blocks: range) -> Iterator[int]:
        for block in blocks:
            if block == number // BLOCK or self.of(manifest, block * BLOCK) is None:
                yield from range(block * BLOCK, (block + 1) * BLOCK)

    def _made_of(self, name: UUID, number: int) -> UUID:
        return with_token(self.token, uuid5(name, f"{self.run}/{number}"))

    def _running(self, manifest: Manifest) -> dict[UUID, int]:
        """The job's attempts, each with its ledger: spares and names, and perhaps those of another run."""
        return {
            running.attempt: running.ledger_id
            for running in manifest.running
            if running.writer == self.job and running.kind is AttemptKind.JOB
        }


async def own_attempt(job: Job, spares: Spares, number: int) -> tuple[Manifest, Attempt]:
    """Return the attempt of the try of this number, and a manifest in which it runs.

    Announces it, with others, unless another try did. Raises `Conflict` or `TryAgain` if other commits always
    come between, and `StreamDeleted`.
    """
    for tries in range(TRIES_MAX):
        found = spares.of(job.manifest, number)
        if found is not None:
            return job.manifest, found
        try:
            await job.announce_here(spares.around(job.manifest, number, name=spare_name(job.env, spares)))
        except (Conflict, OutcomeUnknown, TryAgain):
            if tries == TRIES_MAX - 1:
                raise
            await job.env.sleep(job.env.backoff_seconds(tries))
            await job.refresh()
    raise AssertionError("what was announced runs")


def spare_name(env: Env, spares: Spares) -> UUID:
    """A name for a batch of spares."""
    return with_token(spares.token, env.uuid())
