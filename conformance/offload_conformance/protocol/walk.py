"""Walks: random changes of streams by several writers, each compared with a model of the streams.

Hypothesis draws the walks. The same `--hypothesis-seed` draws the same ones. Invariant: each walk has streams
of its own in the one place, so it can run again there. Nothing is shrunk, because the place may be a distant
server, and because walks are short.
"""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from offload.commit.guest import Delete
from offload.commit.writer import Append
from offload.contracts.change import Change
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Conflict, Fenced, NotOffloaded, StreamDeleted
from offload.model.manifest import Manifest
from offload.upkeep.retention import Retention, plan_trim
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.opened import Open, OpenedOffloaders
from offload_conformance.protocol.model import YES, AttemptData, ModelStream, Sent, Verdict
from offload_conformance.protocol.world import named_by, read_back

T = TypeVar("T")
CLIENTS: Final = 2

READ_MAX: Final = 5

ACTIONS: Final = (
    *("copy", "copy", "copy", "upload", "upload", "append", "append", "claim", "claim"),
    *("trim", "delete_attempt", "repeat", "read", "delete"),
)
"""The actions of a walk. More frequent ones are named several times."""

some: Final = st.integers(0, 2**16)
clients: Final = st.integers(0, CLIENTS - 1)


class WalkConformance(OpenedOffloaders):
    """The part of the layer `protocol` for any offloader, through its contract alone."""

    layer: ClassVar[str] = "protocol"

    walk_examples = 10
    """The number of walks. More walks find more bugs."""

    walk_steps = 20
    """The largest number of changes and reads in a walk."""

    def test_walks_go_as_the_model_says(self, run: Run, opened: Open) -> None:
        """In random walks of writers and guests over streams, every call ends as a model of them says."""
        offloaders, numbers = [opened() for _ in range(CLIENTS)], itertools.count()
        run(offloaders[0].open(create=True))
        drawn = settings(
            max_examples=self.walk_examples,
            stateful_step_count=self.walk_steps,
            deadline=None,
            database=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )

        def walk() -> Walk:
            return Walk(run, offloaders, names=[f"walk-{next(numbers)}", f"walk-{next(numbers)}"])

        run_state_machine_as_test(walk, settings=drawn)  # type: ignore[arg-type]  # a factory will do


class Walk(RuleBasedStateMachine):
    """A walk, as the module's docstring describes. `number` decides every choice that an action has."""

    def __init__(self, run: Run, clients: Sequence[LedgerOffloader], *, names: Sequence[str]) -> None:
        super().__init__()
        self._run, self._clients = run, clients
        self._streams = [ModelStream(name) for name in names]
        self._broken = False

    @initialize(number=some)
    def begin(self, number: int) -> None:
        """Begin with a stream that a writer has claimed."""
        self._go(self._claim(self._streams[0], self._clients[0], number))

    @rule(action=st.sampled_from(ACTIONS), stream=st.sampled_from([0, 0, 0, 1]), client=clients, number=some)
    def step(self, action: str, stream: int, client: int, number: int) -> None:
        """Do one action, mostly on the first stream, so that actions meet."""
        act = getattr(self, f"_{action}")
        self._go(act(self._streams[stream], self._clients[client], number))

    def teardown(self) -> None:
        """Read what is left of each stream, to its end."""
        # After a failure the model no longer fits, and a second error would hide the first.
        if not self._broken:
            for stream in self._streams:
                self._run(self._read(stream, self._clients[0], 0, length=2**16))

    # Actions of a writer.

    async def _claim(self, stream: ModelStream, client: LedgerOffloader, number: int) -> None:
        first = number % 6
        end, reach = (stream.next, stream.reach) if stream.lives else (first, first)
        writer = await StreamWriter.claim(client, stream.name, first_offset=first)
        manifest = writer.manifest
        # The contract leaves open how much a claim adopts, so only the limits are asserted here.
        assert end <= manifest.next_offset <= reach, "expected adopted fragments to continue the stream"
        adopted: dict[UUID, tuple[int, int]] = {}
        for fragment in await named_by(client, manifest):
            if fragment.first >= end:
                since, _ = adopted.get(fragment.attempt, (fragment.first, 0))
                adopted[fragment.attempt] = (since, fragment.end)
        stream.claimed(writer, adopted)
        await self._agree(stream, client)

    async def _copy(self, stream: ModelStream, client: LedgerOffloader, number: int) -> None:
        """Offload a ledger and commit it. If the writer is fenced, neither is possible."""
        if await self._upload(stream, client, number):
            await self._commit_copy(stream, stream.pending[-1])

    async def _upload(self, stream: ModelStream, client: LedgerOffloader, number: int) -> bool:
        """Offload a ledger without committing it. Return False if the writer was fenced."""
        if not stream.writers:
            await self._claim(stream, client, number)
        by, first, end = newer(stream.writers, number), stream.next, stream.next + 1 + number % 3
        # A writer that lost the stream keeps trying, as one that was paused would.
        if by is not stream.holder:
            with pytest.raises(Fenced):
                await by.writer.prepare([first])
            return False
        [attempt] = await by.writer.prepare([first])
        receipt = await by.writer.offloader.offload(
            stream.ledger(first, end), attempt, manifest=by.writer.manifest, extra_metadata={}
        )
        stream.pending.append(AttemptData(attempt, first, end, by, receipt))
        return True

    async def _append(self, stream: ModelStream, client: LedgerOffloader, number: int) -> None:
        """Commit a ledger that was offloaded earlier, perhaps too late."""
        if stream.uncommitted:
            await self._commit_copy(stream, newer(stream.uncommitted, number))

    async def _commit_copy(self, stream: ModelStream, copy: AttemptData) -> None:
        by, finished = copy.held.writer, frozenset({copy.attempt.uid})
        change = Append(writer=by.writer, entries=copy.receipt.entries, finished=finished)
        manifest = await self._commit(stream, by.offloader, change, stream.lets(copy), base=by.manifest)
        if manifest is not None:
            by.manifest = manifest
            stream.pending.remove(copy)
            stream.committed.append(copy)
            stream.next = copy.end

    # Actions of anyone.

    async def _trim(self, stream: ModelStream, client: LedgerOffloader, number: int) -> None:
        """Trim the stream before some offset."""
        if not stream.lives:
            return
        before = stream.first + number % (stream.next - stream.first + 1)
        manifest = await client.load_manifest(stream.name)
        change = await plan_trim(client.tree(manifest), Retention(before_offset=before), now_ms=0)
        floor = stream.floor(before)
        if change is None:
            assert floor <= stream.first, "expected a trim: a whole attempt lies before the offset"
            return
        # Where the trim ends within an attempt depends on the offloader's fragments, which the model ignores.
        assert max(floor, stream.first + 1) <= change.first_offset <= before
        await self._commit(stream, client, change, YES, base=manifest)
        stream.first = change.first_offset
        await self._agree(stream, client)

    async def _delete(self, stream: ModelStream, client: LedgerOffloader, number: int) -> None:
        if not stream.lives:
            return
        manifest = await client.load_manifest(stream.name)
        await self._commit(stream, client, Delete(incarnation=manifest.incarnation), YES, base=manifest)
        stream.deleted()
        await self._agree(stream, client)

    async def _delete_attempt(self, stream: ModelStream, client: LedgerOffloader, number: int) -> None:
        """Delete an attempt that is running, condemned, trimmed, or still named."""
        if not stream.copies:
            return
        copy = newer(stream.copies, number)
        if copy in stream.committed and copy.end > stream.first:  # still named: the deletion is refused
            with pytest.raises(Conflict):
                await client.delete_offloaded(copy.attempt)
        else:
            await client.delete_offloaded(copy.attempt)
            if copy in stream.pending:
                stream.pending.remove(copy)
                stream.dropped.append(copy)
        await self._agree(stream, client)

    async def _repeat(self, stream: ModelStream, client: LedgerOffloader, number: int) -> None:
        """Send a committed change again, like a client that lost the reply."""
        if not stream.sent:
            return
        sent = newer(stream.sent, number)
        with suppress(*stream.forgets(sent.change)):
            await self._commit(stream, client, sent.change, stream.repeats(sent.change), base=sent.base)
        await self._agree(stream, client)

    async def _read(
        self, stream: ModelStream, client: LedgerOffloader, number: int, *, length: int = READ_MAX
    ) -> None:
        """Read some offsets, and compare them with the source."""
        await self._agree(stream, client)
        if not stream.lives or stream.known is None or stream.first == stream.next:
            return
        first = stream.first + number % (stream.next - stream.first)
        wanted = range(first, min(first + length, stream.next))
        found = await read_back(client, stream.known, only=wanted)
        assert found.keys() >= set(wanted)
        assert found == {offset: chunk for offset in found for chunk in stream.chunks(offset, offset + 1)}

    # Shared by the actions.

    async def _commit(
        self,
        stream: ModelStream,
        client: LedgerOffloader,
        change: Change,
        verdict: Verdict,
        *,
        base: Manifest,
    ) -> Manifest | None:
        """Commit a change that must succeed, or that must fail with one of the errors of the verdict."""
        committer = change.writer if isinstance(change, Append) else uuid4()
        if verdict:
            with pytest.raises(verdict):
                await client.commit_manifest(stream.name, change, base=base, committer=committer)
            return None
        manifest = await client.commit_manifest(stream.name, change, base=base, committer=committer)
        stream.sent.append(Sent(change, base))
        return manifest

    async def _agree(self, stream: ModelStream, client: LedgerOffloader) -> None:
        """Assert that this client loads a manifest that agrees with the model."""
        if not stream.lives:
            with pytest.raises(StreamDeleted if stream.life else NotOffloaded):
                await client.load_manifest(stream.name)
            return
        # Loaded by the client of this step, which may be another than the one that committed.
        manifest = stream.known = await client.load_manifest(stream.name)
        assert (manifest.first_offset, manifest.next_offset) == (stream.first, stream.next)
        assert manifest.messages == stream.next - stream.first
        assert stream.holder is not None
        assert manifest.writer == stream.holder.writer.writer
        assert {each.attempt for each in manifest.running} == {each.attempt.uid for each in stream.pending}

    def _go(self, steps: Coroutine[Any, Any, None]) -> None:
        self._broken = True
        self._run(steps)
        self._broken = False


def newer(items: Sequence[T], which: int) -> T:
    """Return one of the items, half of the time the last one."""
    return items[-1] if which % 2 else items[which // 2 % len(items)]
