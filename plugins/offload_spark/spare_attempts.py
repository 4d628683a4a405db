"""Attempts for the tasks of a write, announced in batches before the tasks are known.

Spark numbers the tries of all tasks of an application. Each number is unique: a second try of a task, a
speculative one and one of a repeated stage have numbers of their own. The numbers of one write are close
together, because Spark counts when it launches. So the first task announces **spares**: attempts for its own
number, for the others of its block of 64 numbers, and for the blocks before and behind it. The other tasks
find theirs.

    a task finds                 then
    a spare of its number        it uploads under it
    none                         it announces a new batch of spares, if no other commit comes between
    another commit came between  it looks again

A batch of spares has a name: a random UUID. It is announced too, and no task uploads under it. The UUID of a
spare is made of that name, the run of the write, and the number. So each task finds its spare in the
manifest. No UUID is announced twice, because every batch has a new name.

Invariants: one try of one task uses a spare; a dropped attempt never runs again. The ledger of all spares
begins at the offset at which the stream ended when they were announced, so a write appends one ledger.
(docs/adr/0019-spare-attempts.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

from offload.ground.env import Env
from offload.ground.errors import Conflict, OutcomeUnknown, TryAgain
from offload.model.attempt import Attempt
from offload.model.manifest import AttemptKind, Manifest
from offload.model.tokens import with_token
from offload.write.job import Job

BLOCK: Final = 64
"""The numbers of one block. A batch of spares has at most three blocks."""

TRIES_MAX: Final = 40
"""The tries to announce. Each failed one lost against another commit, which mostly announced this spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """The spares of one run of a write. It is small, because every task gets it."""

    job: UUID
    token: bytes
    run: UUID
    """The id of this run. Another run of the write, in another application, may have the same numbers."""

    def of(self, manifest: Manifest, number: int) -> Attempt | None:
        """Return the running spare of this number; None if there is none."""
        own = self._running(manifest)
        # The manifest does not say which of its attempts are names of batches, so each is tried as one.
        for name in own:
            uid = self._made_of(name, number)
            if uid in own:
                return Attempt(stream=manifest.stream, ledger_id=own[uid], uid=uid)
        return None

    def around(self, manifest: Manifest, number: int, *, name: UUID) -> list[UUID]:
        """Return a batch for the blocks around this number that have no spares yet, with `name` first."""
        blocks = range(max(number // BLOCK - 1, 0), number // BLOCK + 2)
        return [name, *(self._made_of(name, each) for each in self._missing(manifest, number, blocks))]

    def _missing(self, manifest: Manifest, number: int, blocks: range) -> Iterator[int]:
        for block in blocks:
            # The number's own block always: this task found no spare in it. A block has all spares or none.
            if block == number // BLOCK or self.of(manifest, block * BLOCK) is None:
                yield from range(block * BLOCK, (block + 1) * BLOCK)

    def _made_of(self, name: UUID, number: int) -> UUID:
        return with_token(self.token, uuid5(name, f"{self.run}/{number}"))

    def _running(self, manifest: Manifest) -> dict[UUID, int]:
        """Return the job's attempts with their ledgers: spares and names, perhaps also of another run."""
        return {
            running.attempt: running.ledger_id
            for running in manifest.running
            if running.writer == self.job and running.kind is AttemptKind.JOB
        }


async def own_attempt(job: Job, spares: Spares, number: int) -> tuple[Manifest, Attempt]:
    """Return a manifest in which the attempt of the try of this number runs, and the attempt.

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
            # Unknown is no harm either: if the batch was announced, the fresh manifest shows it.
            if tries == TRIES_MAX - 1:
                raise
            # A pause, and then a look: the commit that came between may have announced this very spare.
            await job.env.sleep(job.env.backoff_seconds(tries))
            await job.refresh()
    raise AssertionError("an announced attempt runs")


def spare_name(env: Env, spares: Spares) -> UUID:
    """Return a new name for a batch of spares."""
    return with_token(spares.token, env.uuid())
