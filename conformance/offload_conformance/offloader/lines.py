"""Lines of history: every change of the protocol on any base, and every earlier change sent again.

The model is the change: `Change.apply` defines the next manifest, and `Change.verdict` the answer to a change
that is sent again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from offload.commit.guest import Abort, Delete
from offload.commit.job import Announce, Contribute, Replace
from offload.commit.rebuild import Fence, Rebuilt
from offload.commit.writer import Append, Claim, Prepare, Resolve
from offload.contracts.change import Change, CommitVerdict
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Fenced, NotOffloaded, OffloadError, OutcomeUnknown, StreamDeleted
from offload.model.attempt import Attempt
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import AttemptKind, Manifest, StreamState
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import MemoryLedger, ledger_of
from offload_conformance.offloader.base import OffloaderClauses, named, trim_to
from offload_conformance.raising import class_of, raises
from offload_conformance.same import assert_same

LEDGER: Final = 7

BASES: Final[dict[str, Callable[[Sequence[Manifest]], Manifest | None]]] = {
    "none": lambda life: None,
    "the oldest": lambda life: life[0],
    "the one before": lambda life: life[max(len(life) - 2, 0)],
    "the newest": lambda life: life[-1],
}
"""The base that a caller knows, of the manifests since the last change of authors."""

JUMP: Final = 2**20
"""How far the fence of a rebuild is above the versions before it."""

NUMBERS_NEAR: Final = (2**32, 2**33, 2**53, 2**62)
"""Versions and epochs that a rebuild begins near: one line of history for each."""


@dataclass
class Line:
    """The history of one stream, as the model has it."""

    offloader: LedgerOffloader
    other: LedgerOffloader
    stream: str
    base: str
    history: list[Manifest] = field(default_factory=list)
    sent: list[tuple[Change, UUID]] = field(default_factory=list)
    again: int = 3
    """How many earlier changes are sent again after each commit, beside the last one.

    0: the last one alone, after about every second commit.
    """

    async def commit(self, change: Change, committer: UUID) -> Manifest:
        """Commit a change, and assert that the result is the one that the change defines."""
        newest = self.history[-1] if self.history else None
        life = [each for each in self.history if newest and each.epoch == newest.epoch]
        # A rebuild knows the newest manifest, or that there is none: its fence is its own judgement of that.
        policy = "the newest" if isinstance(change, Fence) else self.base
        base = BASES[policy](life) if life else None
        client, reader = random.sample([self.offloader, self.other], 2)
        made = await client.commit_manifest(self.stream, change, base=base, committer=committer)
        expected = change.apply(newest)
        what = f"{type(change).__name__} on {self.base} of the known manifests"
        assert made.version > expected.version, f"{what}: expected a higher version than {expected.version}"
        if newest is not None and change.edit is not None:
            expected = replace(expected, entries=change.edit.edited(newest.entries))
        expected = replace(
            expected,
            version=made.version,
            commit_id=made.commit_id,
            parent_commit_id=newest.commit_id if newest else UUID(int=0),
            committer=committer,
        )
        assert_same(made, expected, but={"entries"})
        assert await named(client, made) == entries_of_rows(expected.entries), what
        assert made.commit_id not in [each.commit_id for each in self.history]
        self.history.append(expected)
        self.sent.append((change, committer))
        await self.is_told_by(reader)
        if self.again or random.random() < 0.5:
            await self.send_again()
        return expected

    async def is_told_by(self, reader: LedgerOffloader) -> None:
        """Assert that a client has the newest manifest, or says why there is none."""
        newest = self.history[-1]
        if newest.state is StreamState.LIVE:
            found = await reader.load_manifest(self.stream)
            assert_same(found, newest, but={"entries"})
            assert await named(reader, found) == entries_of_rows(newest.entries)
            return
        with raises(NotOffloaded, "a stream that is deleted or rebuilt") as caught:
            await reader.load_manifest(self.stream)
        assert issubclass(class_of(caught.value), StreamDeleted) == (newest.state is StreamState.DELETED)

    async def send_again(self) -> None:
        """Send some earlier changes again, and assert that each is answered as its verdict says."""
        newest = self.history[-1]
        for change, committer in {
            id(each): each for each in (*self.sent[-1:], *draw(self.sent, self.again))
        }.values():
            client = random.choice((self.offloader, self.other))
            base = newest if isinstance(change, Fence) else random.choice((None, newest))
            error = await refusal_of(change, self.other, newest)
            if error is CommitVerdict.OUT:
                continue  # it may be applied a second time
            what = f"{type(change).__name__} again"
            sending = client.commit_manifest(self.stream, change, base=base, committer=committer)
            if isinstance(error, type):
                with raises(error, what):
                    await sending
            else:
                assert_same(await sending, newest, but={"entries"})
        if newest.state is StreamState.LIVE:
            assert (await self.other.load_manifest(self.stream)).commit_id == newest.commit_id

    async def entries(self, uid: UUID, ledger: MemoryLedger) -> Sequence[Entry]:
        """Store a ledger under this attempt, and return its entries."""
        attempt = Attempt(stream=self.stream, ledger_id=LEDGER, uid=uid)
        receipt = await self.offloader.offload(ledger, attempt, manifest=self.history[-1], extra_metadata={})
        return receipt.entries


class LineClauses(OffloaderClauses):
    """The clauses on lines of history."""

    @pytest.mark.parametrize(("base", "near"), [*zip(BASES, NUMBERS_NEAR, strict=True)], ids=BASES)
    def test_commits_apply_every_change(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, base: str, near: int
    ) -> None:
        """Every change is applied to the newest manifest, whatever base its caller knows.

        A change that is sent again later is answered as its verdict says. Versions and epochs may be large.
        """
        line = Line(offloader, other, "orders", base, again=3 if self.every_case else 0)

        async def scenario() -> None:
            await offloader.open(create=True)
            writer, born = await written(line)
            await beside(line, writer, born)
            await rebuilt(line, near)
            await line.commit(Claim(stream="orders", writer=uuid4(), first_offset=0), uuid4())
            await line.commit(Delete(incarnation=line.history[-1].incarnation), uuid4())
            again = Claim(stream="orders", writer=uuid4(), first_offset=11)
            reborn = await line.commit(again, again.writer)
            assert (reborn.first_offset, reborn.next_offset) == (11, 11)
            assert reborn.incarnation != born.incarnation

        run(scenario())

    def test_changes_of_several_authors_are_all_in(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader
    ) -> None:
        """Changes that a writer, jobs and guests commit at the same time are all in, and undo nothing.

        Each of them changes another field of the manifest.
        """
        line = Line(offloader, other, "orders", "none")

        async def scenario() -> None:
            for _ in range(3):
                await self.at_once(line)
                await line.other.commit_manifest(
                    "orders",
                    Delete(incarnation=line.history[-1].incarnation),
                    base=line.history[-1],
                    committer=uuid4(),
                )
                line.history.clear()

        run(scenario())

    async def at_once(self, line: Line) -> None:
        """Commit changes of every author at the same time, and assert that the manifest has all of them."""
        me, job, copier = uuid4(), uuid4(), uuid4()
        first, second, third, aborted, announced, prepared, copy = uids = [uuid4() for _ in range(7)]
        claim = Claim(stream="orders", writer=me, first_offset=0)
        base = await line.offloader.commit_manifest("orders", claim, base=None, committer=me)
        prepare = Prepare(writer=me, attempts=[(uid, LEDGER) for uid in uids[:4]])
        base = await line.offloader.commit_manifest("orders", prepare, base=base, committer=me)
        line.history.append(base)
        two = [*await line.entries(first, part(0)), *await line.entries(second, part(1))]
        append = Append(writer=me, entries=two, finished=frozenset({first, second}))
        base = await line.offloader.commit_manifest("orders", append, base=base, committer=me)
        of_copier: dict[str, Any] = {"job": copier, "incarnation": base.incarnation}
        copies = Announce(attempts=[(copy, LEDGER)], kind=AttemptKind.COPY, **of_copier)
        base = await line.other.commit_manifest("orders", copies, base=base, committer=copier)
        line.history.append(base)
        last = await line.entries(third, part(2))
        dropped = [each for each in two if each.first_offset < 3]
        changes: list[tuple[Change, UUID]] = [
            (Append(writer=me, entries=last, finished=frozenset({third})), me),
            (Prepare(writer=me, attempts=[(prepared, 8)]), me),
            (Announce(job=job, incarnation=base.incarnation, attempts=[(announced, 9)]), job),
            (Abort(attempts=frozenset({aborted})), uuid4()),
            (trim_to(base, dropped, ledgers=0), uuid4()),
        ]
        random.shuffle(changes)
        clients = [random.choice((line.offloader, line.other)) for _ in changes]
        commits = (
            client.commit_manifest("orders", change, base=base, committer=committer)
            for client, (change, committer) in zip(clients, changes, strict=True)
        )
        await asyncio.gather(*commits)
        for client in (line.offloader, line.other):
            found = await client.load_manifest("orders")
            assert (found.first_offset, found.next_offset, found.writer) == (3, 9, me)
            assert {each.attempt: each.ledger_id for each in found.running} == {
                prepared: 8,
                announced: 9,
                copy: LEDGER,
            }
            expected = [each for each in (*two, *last) if each.first_offset >= 3]
            assert await named(client, found) == expected
            assert (found.fragments, found.messages) == (len(expected), 6)
        line.history.append(found)


async def written(line: Line) -> tuple[UUID, Manifest]:
    """Claim the stream, append to it, let another writer take over, and append again."""
    me, successor = uuid4(), uuid4()
    uids = [uuid4() for _ in range(4)]
    born = await line.commit(Claim(stream=line.stream, writer=me, first_offset=0), me)
    await line.commit(Prepare(writer=me, attempts=[(uid, LEDGER) for uid in uids[:3]]), me)
    await line.commit(Abort(attempts=frozenset({uids[2]})), uuid4())
    for n, uid in enumerate(uids[:2]):
        entries = await line.entries(uid, part(n))
        last = [(uids[3], LEDGER)] if n else []
        await line.commit(Append(writer=me, entries=entries, finished=frozenset({uid}), announced=last), me)
    await line.commit(Claim(stream=line.stream, writer=successor, first_offset=0), successor)
    await line.commit(Resolve(writer=successor, adopted=()), successor)
    return successor, born


async def beside(line: Line, writer: UUID, born: Manifest) -> None:
    """Append by a job, copy while the writer appends, and trim."""
    job, copier, uids = uuid4(), uuid4(), [uuid4() for _ in range(3)]
    of_job: dict[str, Any] = {"job": job, "incarnation": born.incarnation}
    await line.commit(Announce(attempts=[(uids[0], LEDGER)], **of_job), job)
    entries = await line.entries(uids[0], part(2))
    await line.commit(Contribute(entries=entries, finished=frozenset({uids[0]}), **of_job), job)
    old = [each for each in entries_of_rows(line.history[-1].entries) if each.first_offset < 6]
    copy = UUID(bytes=old[0].attempt.bytes[:8] + uids[1].bytes[8:])
    tokens = {each.attempt.bytes[:8] for each in old}
    old = [each for each in old if each.attempt == old[0].attempt] if len(tokens) > 1 else old
    of_copier: dict[str, Any] = {"job": copier, "incarnation": born.incarnation}
    await line.commit(Announce(attempts=[(copy, LEDGER)], kind=AttemptKind.COPY, **of_copier), copier)
    new = await line.entries(copy, part(0))
    await line.commit(Prepare(writer=writer, attempts=[(uids[2], LEDGER)]), writer)
    appended = await line.entries(uids[2], part(3))
    await line.commit(Append(writer=writer, entries=appended, finished=frozenset({uids[2]})), writer)
    await line.commit(Replace(old=old, new=new, **of_copier), copier)
    newest = line.history[-1]
    dropped = [each for each in entries_of_rows(newest.entries) if each.first_offset < 3]
    await line.commit(trim_to(newest, dropped, ledgers=0), uuid4())


async def rebuilt(line: Line, near: int) -> None:
    """Rebuild the stream, with a version and an epoch near a number, and commit beyond it."""
    newest, rebuilder, writer = line.history[-1], uuid4(), uuid4()
    found = entries_of_rows(newest.entries)
    fence = Fence(
        stream=line.stream,
        writer=rebuilder,
        incarnation=newest.incarnation,
        epoch=near - 1,
        above=max(near - JUMP - 2, newest.version),
        jump=JUMP,
        instead_of=newest.commit_id,
    )
    fenced = await line.commit(fence, rebuilder)
    assert (fenced.epoch, fenced.state) == (near - 1, StreamState.REBUILDING)
    change = Rebuilt(writer=rebuilder, incarnation=newest.incarnation, entries=found)
    live = await line.commit(change, rebuilder)
    claimed = await line.commit(Claim(stream=line.stream, writer=writer, first_offset=0), writer)
    assert claimed.epoch > live.epoch, f"epochs near {near}"
    for n in range(3):
        change_ = Prepare(writer=writer, attempts=[(uuid4(), n)])
        made = await line.commit(change_, writer)
        newer = await line.other.newer_view(claimed)
        assert newer is not None, f"a newer view than version {claimed.version}"
        assert newer.committed.version == made.version


async def refusal_of(
    change: Change, client: LedgerOffloader, newest: Manifest
) -> CommitVerdict | type[OffloadError]:
    """Return the error with which a change is refused that is sent again, or its verdict."""
    try:
        verdict = await change.verdict(client.tree(newest))
    except (Fenced, NotOffloaded) as error:
        return class_of(error)
    except OffloadError:
        return CommitVerdict.OUT  # any other error leaves the verdict open
    return OutcomeUnknown if verdict is CommitVerdict.UNKNOWN else verdict


def part(number: int) -> MemoryLedger:
    """Return the ledger of three records whose number this is."""
    return MemoryLedger(ledger_of(3, first_offset=3 * number).chunks, ledger_id=LEDGER)


def draw(sent: Sequence[tuple[Change, UUID]], count: int) -> list[tuple[Change, UUID]]:
    """Return some of these changes."""
    return random.sample(sent, min(count, len(sent)))
