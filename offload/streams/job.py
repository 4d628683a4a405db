"""A job: a guest that adds data to a stream which it does not hold, such as a back-fill or a parallel write.

    announce      its attempts run; only then does the first upload start
    upload        on as many machines as there are, each with the manifest and an attempt of its own
    contribute    all of it is named by one commit, if it continues the stream; or
    replace       copies are named where committed fragments were, if those still are

    stopped                left behind                           cured by
    before the announce    nothing                               nothing to cure
    after it               attempts that run, perhaps uploads    `abort`, by anyone who knows the job's UUID
    after the last         a committed root                      nothing to cure

Invariants: a job names only what runs as its own; claims neither adopt nor drop that; a job deletes no
object. What was aborted is the sweep's. (docs/commit-protocol.md, step "guests")
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
from offload.env import Env
from offload.errors import Misuse, StreamDeleted, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest
from offload.model.tokens import token_of, with_token

__all__ = ["Job"]


@dataclass(kw_only=True)
class Job:
    """Adds data to one stream of a tier as a guest. Made by `begin`; used by one task.

    A job takes part in nothing but its own attempts: the stream's writer stays, and goes on beside it. Of
    the two, whoever continues the stream first wins; for the other, what it uploaded does not fit any more.
    """

    offloader: LedgerOffloader
    manifest: Manifest
    """The newest manifest that is known to be accepted."""

    uid: UUID
    """The job's identity. Who knows it may abort the job."""

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

        With the `uid` of a job that crashed, that one is gone on with: `abort` drops what it left, and an
        `append` of its receipts still counts. Raises `NotOffloaded` where there is no such stream, and
        `StreamDeleted` where it has another `incarnation` than the one that is given: a task that outlives
        its job would otherwise announce in the stream that somebody began under the same name.
        """
        env = env or Env()
        manifest = await offloader.load_manifest(stream)
        _check_is_of(manifest, incarnation or manifest.incarnation)
        return cls(offloader=offloader, manifest=manifest, uid=uid or env.uuid(), env=env)

    async def prepare(
        self, ledger_ids: Sequence[int], *, token: bytes = b""
    ) -> tuple[Manifest, list[Attempt]]:
        """Announce one fresh attempt per ledger, in one commit. Hand both to whoever uploads.

        The attempts' UUIDs begin with `token` (`tokens.token_for`), so that who runs a batch again can tell
        by the tier's own entries that it is there. After an error some of them may run, unknown to anybody:
        prepare anew, and `abort` in the end. Raises `StreamDeleted` where the stream was deleted.
        """
        return await self._announce([(ledger_id, token) for ledger_id in ledger_ids], AttemptKind.JOB)

    async def prepare_copies(self, runs: Sequence[Sequence[Entry]]) -> tuple[Manifest, list[Attempt]]:
        """Announce one fresh attempt per run of fragments, in one commit, for a copy of it and for `replace`.

        An attempt has the token of those that it copies. For the rest, as `prepare`.
        """
        return await self._announce(
            [(run[0].ledger_id, token_of(run[0].attempt)) for run in runs], AttemptKind.COPY
        )

    async def announce_here(self, uids: Sequence[UUID]) -> Manifest:
        """Announce attempts of these UUIDs, all of them new, unless the job's manifest is not the newest.

        Their ledger is one that begins where the stream ends. It is for workers that announce for each other.
        Raises `Conflict` if another commit came between, and nothing of it is announced then. After
        `OutcomeUnknown` or `TryAgain` the attempts may run: look, and `abort` in the end.
        """
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
        """Load the newest manifest. Raises `StreamDeleted` if it is another stream's of this name."""
        newest = await self.offloader.load_manifest(self.manifest.stream)
        _check_is_of(newest, self.manifest.incarnation)
        self.manifest = newest
        return self.manifest

    async def append(self, receipts: Sequence[Receipt], *, ends: bool = False) -> Manifest:
        """Name what these attempts made durable, in order of offsets and in one commit; they end with it.

        With `ends`, all attempts that are known to run as this job's end with it, spares and failed ones too.
        Repeatable: what is in already stays in, once. Raises

        - `Misuse` where the receipts leave a hole or overlap, before anything is asked; or where they begin
          beyond the end of the stream;
        - `Conflict` where they do not continue the stream, since another appended there first, or where
          somebody aborted them. Nothing of them is in, nor will be. To go on, `abort`, and upload under new
          attempts from the stream's end;
        - `StreamDeleted` where the stream was deleted, also where one of that name was born since;
        - `OutcomeUnknown` if the store did not say what became of it: append again. If what was appended may
          have been trimmed or compacted since, it stays unknown.
        """
        entries = _entries_of(receipts)
        for before, after in pairwise(entries):
            if after.first_offset != before.next_offset:
                raise Misuse(f"offset {after.first_offset} does not continue {before.next_offset}")
        finished = frozenset(receipt.attempt.uid for receipt in receipts)
        await self._commit(
            Contribute(
                job=self.uid,
                incarnation=self.manifest.incarnation,
                entries=entries,
                finished=finished | attempts_of(self.manifest, self.uid) if ends else finished,
            )
        )
        return self.manifest

    async def replace(self, old: Sequence[Entry], receipts: Sequence[Receipt]) -> Manifest:
        """Name what these attempts copied in the place of `old`, in one commit; they end with it.

        Readers go on at the very offset where they are. The old objects stay until a sweep takes them, for
        readers' sake. Repeatable: what is in already stays in, once. Raises

        - `Misuse`, before anything is asked, where the receipts are not of the same records as `old`;
        - `Conflict` where `old` is not what the stream names any more, where it has the newest fragment, or
          stands in several groups, or where somebody aborted the copies. Nothing is in, nor will be;
        - `StreamDeleted` where the stream was deleted, also where one of that name was born since;
        - `OutcomeUnknown` where the store did not say what became of it: replace again. Where what stands
          there was trimmed or replaced since, it stays unknown. Look at what stands there, and `abort`.
        """
        await self._commit(
            Replace(
                job=self.uid,
                incarnation=self.manifest.incarnation,
                old=old,
                new=_entries_of(receipts),
            )
        )
        return self.manifest

    async def abort(self) -> None:
        """Drop every attempt that runs as this job's. What they uploaded goes with the sweep.

        Repeatable, and to be repeated where a `prepare` of this job may still be on its way. Of a deleted
        stream nothing runs, so nothing is done.
        """
        with suppress(StreamDeleted):
            base = await self.offloader.load_manifest(self.manifest.stream)
            own = attempts_of(base, self.uid)
            if own:
                await self.offloader.commit_manifest(
                    base.stream, Abort(attempts=own), base=base, committer=self.uid
                )

    async def _announce(
        self, wanted: Sequence[tuple[int, bytes]], kind: AttemptKind
    ) -> tuple[Manifest, list[Attempt]]:
        """An attempt for each ledger, whose UUID begins with its token."""
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
        """On the newest manifest: the one that is known may be old, for others commit meanwhile.

        If it cannot be loaded, the known one has to do. To raise `TryAgain` here would say that nothing was
        committed, although an earlier call may have sent this change.
        """
        stream, base = self.manifest.stream, self.manifest
        with suppress(TryAgain):
            base = await self.offloader.load_manifest(stream)
        self.manifest = await self.offloader.commit_manifest(stream, change, base=base, committer=self.uid)


def _check_is_of(manifest: Manifest, incarnation: UUID) -> None:
    if manifest.incarnation != incarnation:
        where = f"stream {manifest.stream!r}"
        raise StreamDeleted(f"{where} was deleted, and begun again since", epoch=manifest.epoch)


def attempts_of(manifest: Manifest, job: UUID) -> frozenset[UUID]:
    """The attempts that run as this job's."""
    return frozenset(
        running.attempt
        for running in manifest.running
        if running.kind is not AttemptKind.STREAM and running.writer == job
    )


def _entries_of(receipts: Sequence[Receipt]) -> list[Entry]:
    """In order of offsets."""
    entries = (entry for receipt in receipts for entry in receipt.entries)
    return sorted(entries, key=lambda entry: entry.first_offset)
