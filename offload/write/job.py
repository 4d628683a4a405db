"""A job: a guest that adds data to a stream that it does not hold, such as a back-fill or a parallel write.

    announce      its attempts run; only then does the first upload start
    upload        on any number of machines, each with the manifest and an attempt of its own
    contribute    one commit names all fragments, if they continue the stream; or
    replace       one commit names copies in the place of committed fragments, if these are still named

    stopped                left behind                           cured by
    before the announce    nothing                               nothing to cure
    after it               attempts that run, perhaps uploads    `abort`, by anyone who knows the job's UUID
    after the last         a committed root                      nothing to cure

Invariants: a job names only fragments of attempts that run as its own; claims neither adopt nor drop these
attempts; a job deletes no object. The sweep deletes what was aborted. (docs/commit-protocol.md, step
"guests")
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self
from uuid import UUID

from offload.commit.guest import Abort
from offload.commit.job import Announce, Contribute, Replace
from offload.contracts.change import Change
from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import Env
from offload.ground.errors import Misuse, StreamDeleted, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest
from offload.model.tokens import token_of, with_token

__all__ = ["Job"]


@dataclass(kw_only=True)
class Job:
    """A guest that adds data to one stream of a tier. `begin` makes one. A job is used by one task.

    A job changes nothing but its own attempts: the stream's writer stays, and continues beside it. If both
    append, the first one wins, and the uploads of the other no longer fit.
    """

    offloader: LedgerOffloader
    manifest: Manifest
    """The newest manifest that is known to be accepted."""

    uid: UUID
    """The job's identity. Anyone who knows it may abort the job."""

    env: Env = field(default_factory=Env)

    @classmethod
    async def begin(
        cls,
        offloader: LedgerOffloader,
        stream: str,
        *,
        uid: UUID | None = None,
        incarnation: UUID | None = None,
        env: Env | None = None,
    ) -> Self:
        """Begin a job on the stream as it is now. Commits nothing.

        The `uid` of a job that crashed continues that job: `abort` drops what it left, and an `append` of its
        receipts still counts. Raises `NotOffloaded` if there is no such stream, and `StreamDeleted` if an
        `incarnation` is given and the stream has another one.
        """
        # A task may outlive its job. Without the incarnation it would announce in a stream that somebody
        # began under the same name since.
        env = env or Env()
        manifest = await offloader.load_manifest(stream)
        _check_is_of(manifest, incarnation or manifest.incarnation)
        return cls(offloader=offloader, manifest=manifest, uid=uid or env.uuid(), env=env)

    async def prepare(
        self, ledger_ids: Sequence[int], *, token: bytes = b""
    ) -> tuple[Manifest, list[Attempt]]:
        """Announce one fresh attempt per ledger, in one commit, and return the manifest and the attempts.

        Hand both to the processes that upload. The attempts' UUIDs begin with `token` (`tokens.token_for`),
        so that a batch that is run again is found among the tier's entries. After an error, the attempts may
        run although nobody knows them: prepare again, and `abort` in the end. Raises `StreamDeleted` if the
        stream was deleted.
        """
        return await self._announce([(ledger_id, token) for ledger_id in ledger_ids], AttemptKind.JOB)

    async def prepare_copies(self, runs: Sequence[Sequence[Entry]]) -> tuple[Manifest, list[Attempt]]:
        """Announce one fresh attempt per run of fragments, in one commit, for a copy of it and for `replace`.

        Each attempt has the token of the fragments that it copies. Returns and raises as `prepare` does.
        """
        return await self._announce(
            [(run[0].ledger_id, token_of(run[0].attempt)) for run in runs], AttemptKind.COPY
        )

    async def announce_here(self, uids: Sequence[UUID]) -> Manifest:
        """Announce attempts of these UUIDs, all of them new, if the job's manifest is still the newest.

        Their ledger begins at the stream's end. Workers use this to announce for each other. Raises
        `Conflict` if another commit came between, and announces nothing then. After `OutcomeUnknown` or
        `TryAgain` the attempts may run: `refresh` and look, and `abort` in the end.
        """
        # The base is the job's own manifest, not the newest. The worker has looked at that one and found its
        # attempts missing. On a newer one, another worker may have announced them already.
        ledger_id = self.manifest.next_offset
        change = Announce(
            job=self.uid,
            incarnation=self.manifest.incarnation,
            attempts=[(uid, ledger_id) for uid in uids],
            on_version=self.manifest.version,
        )
        self.manifest = await self.offloader.commit_manifest(
            self.manifest.stream, change, base=self.manifest, committer=self.uid
        )
        return self.manifest

    async def refresh(self) -> Manifest:
        """Load the newest manifest. Raises `StreamDeleted` if the stream was deleted, or begun again."""
        newest = await self.offloader.load_manifest(self.manifest.stream)
        _check_is_of(newest, self.manifest.incarnation)
        self.manifest = newest
        return self.manifest

    async def append(self, receipts: Sequence[Receipt], *, ends: bool = False) -> Manifest:
        """Name the uploaded fragments of these attempts, in order of offsets, and end the attempts.

        All of it is one commit. With `ends`, every attempt that is known to run as this job's ends too,
        including spare and failed ones. The call may be repeated: fragments that are committed already are
        not appended again. Raises

        - `Misuse` if the receipts leave a hole or overlap, before any request; or if they begin beyond the
          end of the stream;
        - `Conflict` if they do not continue the stream, because another author appended first, or if somebody
          aborted the attempts. None of the fragments is committed, and none will be. To continue, `abort`,
          and upload under new attempts from the stream's end;
        - `StreamDeleted` if the stream was deleted, also if one of that name was born since;
        - `OutcomeUnknown` if the store did not answer whether the commit is in: append again. If the
          fragments may have been trimmed or compacted since, the outcome stays unknown.
        """
        # A batch is in as a whole or not at all, so this is one commit, however many fragments it names. A
        # repeated call sends the same change, and its verdict finds the entries of the first.
        entries = _entries_of(receipts)
        for before, after in pairwise(entries):
            if after.first_offset != before.next_offset:
                raise Misuse(f"offset {after.first_offset} does not continue {before.next_offset}")
        finished = frozenset(receipt.attempt.uid for receipt in receipts)
        # Spares end with the same commit. A second commit for them would be lost if the driver died before
        # it, and the attempts would run until somebody aborts them.
        await self._commit(
            Contribute(
                job=self.uid,
                incarnation=self.manifest.incarnation,
                entries=entries,
                finished=finished | attempts_of(self.manifest, self.uid) if ends else finished,
            )
        )
        return self.manifest

    async def replace(
        self, old: Sequence[Entry], receipts: Sequence[Receipt], *, may_be_newest: bool = False
    ) -> Manifest:
        """Name the copies of these attempts in the place of `old`, in one commit, and end the attempts.

        Readers continue at their exact offset. The old objects stay until a sweep deletes them, because
        readers may still use them. The call may be repeated: a replacement that is committed already is not
        made again. Raises

        - `Misuse`, before any request, if the receipts are not of the same records as `old`;
        - `Conflict` if the stream no longer names `old`, if `old` has the newest fragment (unless
          `may_be_newest`, for a repair) or is in several groups, or if somebody aborted the copies. No copy
          is committed, and none will be;
        - `StreamDeleted` if the stream was deleted, also if one of that name was born since;
        - `OutcomeUnknown` if the store did not answer whether the commit is in: replace again. If the
          fragments there were trimmed or replaced since, the outcome stays unknown. Read which fragments are
          there, and `abort`.
        """
        await self._commit(
            Replace(
                job=self.uid,
                incarnation=self.manifest.incarnation,
                old=old,
                new=_entries_of(receipts),
                may_be_newest=may_be_newest,
            )
        )
        return self.manifest

    async def abort(self) -> None:
        """Drop every attempt that runs as this job's. The sweep deletes their uploads.

        The call may be repeated. Repeat it if a `prepare` of this job may still be on its way. Does nothing
        if the stream was deleted, because a deleted stream runs no attempts.
        """
        with suppress(StreamDeleted):
            # The newest manifest, because attempts may run that this process never heard of: those of other
            # workers, and those whose announcement was not answered.
            base = await self.offloader.load_manifest(self.manifest.stream)
            own = attempts_of(base, self.uid)
            if own:
                await self.offloader.commit_manifest(
                    base.stream, Abort(attempts=own), base=base, committer=self.uid
                )

    async def _announce(
        self, wanted: Sequence[tuple[int, bytes]], kind: AttemptKind
    ) -> tuple[Manifest, list[Attempt]]:
        """Announce an attempt for each ledger, whose UUID begins with its token."""
        # Fresh UUIDs on every call, also after an error. An attempt of a lost announcement may have been
        # aborted since, and then it is condemned.
        stream = self.manifest.stream
        attempts = [
            Attempt(stream=stream, ledger_id=ledger_id, uid=with_token(token, self.env.uuid()))
            for ledger_id, token in wanted
        ]
        announced = [(attempt.uid, attempt.ledger_id) for attempt in attempts]
        incarnation = self.manifest.incarnation
        await self._commit(Announce(job=self.uid, incarnation=incarnation, attempts=announced, kind=kind))
        return self.manifest, attempts

    async def _commit(self, change: Change) -> None:
        """Commit on the newest manifest, because others commit beside a job and the known one may be old."""
        # If the newest cannot be loaded, the known one serves as the base. To raise `TryAgain` here would say
        # that nothing was committed, although an earlier call may have sent this very change.
        stream, base = self.manifest.stream, self.manifest
        with suppress(TryAgain):
            base = await self.offloader.load_manifest(stream)
        self.manifest = await self.offloader.commit_manifest(stream, change, base=base, committer=self.uid)


def _check_is_of(manifest: Manifest, incarnation: UUID) -> None:
    if manifest.incarnation != incarnation:
        where = f"stream {manifest.stream!r}"
        raise StreamDeleted(f"{where} was deleted, and begun again since", epoch=manifest.epoch)


def attempts_of(manifest: Manifest, job: UUID) -> frozenset[UUID]:
    """Return the attempts that run as this job's."""
    # A writer may have the same UUID as a job. Its attempts are of another kind, and not the job's to end.
    return frozenset(
        running.attempt
        for running in manifest.running
        if running.kind is not AttemptKind.STREAM and running.writer == job
    )


def _entries_of(receipts: Sequence[Receipt]) -> list[Entry]:
    """Return the entries of all receipts, in order of offsets."""
    entries = (entry for receipt in receipts for entry in receipt.entries)
    return sorted(entries, key=lambda entry: entry.first_offset)
