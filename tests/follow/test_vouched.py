"""Tests of a source whose broker is asked: a broker that fails or lies costs time, and never a record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from follower_world import World as FollowerWorld
from growing_source import GrowingSource, GrowingStream
from hypothesis import given, settings
from hypothesis import strategies as st

from offload import build_chunk
from offload.contracts.broker import BrokerView, CommittedChunk, LeadingNode
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules, FollowState
from offload.follow.vouched import ASK_SECONDS, RETRY_SECONDS, VouchedSource
from offload.formats.chunk import ChunkHeader
from offload.ground.errors import Denied, Diverged, NotOffloaded, OffloadError, TryAgain
from offload.store.faults import Fault, Rule

RULES = FollowRules(max_lag_seconds=10.0, hold_back_seconds=1.0, takeover_seconds=20.0)
LONG = 300.0


@dataclass
class Broker(BrokerView):
    """A broker that has the chunks of a stream, and has committed those up to an offset.

    `lie` changes an answer. `error` and `refusal` are raised in place of one, unless the broker hangs, and
    `error` is also that of the connection. `leads` is what its node says of the leader.
    """

    stream: GrowingStream
    committed_offset: int = 0
    leads: bool | None = None
    error: OffloadError | None = None  # type: ignore[assignment]  # a field instead of a property
    refusal: OffloadError | None = None
    hangs: bool = False
    lie: dict[str, int] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    url = "test://broker"  # type: ignore[assignment]

    async def committed(self, stream: str, offset: int) -> CommittedChunk:
        """Wait until the chunk at this offset is committed."""
        self.asked.append(offset)
        self.names.add(stream)
        while self.hangs:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if error := self.error or self.refusal:
            raise error
        while not self.lie and self._at(offset).next_offset > self.committed_offset:  # noqa: ASYNC110
            await asyncio.sleep(0)
        found = self._at(offset)
        answer = CommittedChunk(
            first_offset=found.offset, next_offset=found.next_offset, epoch=found.epoch, crc=found.crc
        )
        return replace(answer, **self.lie)

    async def leader(self, stream: str) -> LeadingNode:
        """Return the node that leads."""
        self.names.add(stream)
        if error := self.error or self.refusal:
            raise error
        return LeadingNode(address="a:1", is_asked=self.leads)

    def _at(self, offset: int) -> ChunkHeader:
        headers = (ChunkHeader.decode(each, where="") for ledger in self.stream.ledgers for each in ledger)
        return next(each for each in headers if each.offset <= offset < each.next_offset)


@dataclass
class World(FollowerWorld):
    """A stream that grows, and its broker, beside the tier."""

    def __post_init__(self) -> None:
        self.broker = Broker(self.source)
        self.vouched = VouchedSource(GrowingSource([self.source]), self.broker, env=self.env())

    async def asking(self) -> Follower:
        """Return a follower that asks the broker."""
        (stream,) = await self.vouched.streams()
        return self.follower(RULES, stream)


def run(scenario: Callable[[World], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await scenario(World())

    return asyncio.run(bounded())


class TestABrokerThatAnswers:
    def test_exactly_what_is_committed_is_copied_however_old_the_rest_is(self) -> None:
        """Data that no majority has may be replaced, also after hours."""

        async def scenario(world: World) -> None:
            follower = await world.asking()
            world.source.append(5)
            world.broker.committed_offset = 50
            await world.run(follower, seconds=RULES.max_lag_seconds)
            assert await world.committed() == 50
            world.source.append(3)
            await world.run(follower, seconds=LONG)
            assert (await world.committed(), world.vouched.held_back) == (50, [])
            world.broker.committed_offset = 80
            await world.run(follower, seconds=RULES.max_lag_seconds)
            assert await world.committed() == 80

        run(scenario)

    def test_a_stream_that_continues_an_archive_is_asked_about_by_the_name_of_the_broker(self) -> None:
        """Under the archive's name the broker may have the old stream, whose next chunk never comes."""

        class Restored(GrowingStream):
            broker_name = "copy"  # type: ignore[assignment]  # a field instead of a property

        async def scenario(_: World) -> None:
            world = World(source=Restored())
            world.source.append(1)
            world.broker.committed_offset = 10
            await world.run(await world.asking(), seconds=RULES.max_lag_seconds)
            (stream,) = await world.vouched.streams()
            await stream.leads()
            assert (await world.committed(), world.broker.names) == (10, {"copy"})

        run(scenario)

    def test_a_broker_that_commits_late_does_not_stop_a_stream_that_grows(self) -> None:
        """The question about one chunk waits until it is answered, and newer chunks do not replace it."""

        async def scenario(world: World) -> None:
            follower = await world.asking()
            for _ in range(40):
                world.source.append(1)
                await world.run(follower, seconds=RULES.look_seconds)
                world.broker.committed_offset = max(0, world.source.next_offset - 40)
            assert world.source.next_offset - await world.committed() <= 120

        run(scenario)

    def test_a_broker_is_asked_only_if_something_is_due(self) -> None:
        async def scenario(world: World) -> None:
            follower = await world.asking()
            world.broker.committed_offset = 10**6
            for _ in range(20):
                world.source.append(1)
                await world.run(follower, seconds=RULES.look_seconds)
            copies = (await world.tier().load_manifest("orders")).fragments
            assert copies <= len(world.broker.asked) <= copies + 1
            world.broker.asked.clear()
            await world.run(follower, seconds=RULES.max_lag_seconds)
            world.broker.asked.clear()
            await world.run(follower, seconds=LONG)
            assert world.broker.asked == []

        run(scenario)

    def test_chunks_that_no_consumer_sees_are_copied_after_the_hold_back(self) -> None:
        """A broker delivers no tracking chunks, so it cannot vouch for one at the end of a stream."""

        async def scenario(world: World) -> None:
            follower = await world.asking()
            world.broker.committed_offset = 10**6
            world.source.append(2)
            plain = build_chunk([b"x"], offset=20, timestamp_ms=1, epoch=1)
            world.source.ledgers[-1].append(plain[:1] + b"\x01" + plain[2:])
            world.source.next_offset = 21
            await world.run(follower, seconds=LONG)
            manifest = await world.tier().load_manifest("orders")
            assert (manifest.next_offset, world.vouched.held_back) == (21, [])

        run(scenario)


class TestABrokerThatFailsOrLies:
    """Then `hold_back` applies: the data is on the tier in time, and each record once."""

    FAILURES = pytest.mark.parametrize(
        "change",
        [
            {"error": TryAgain("down")},
            {"error": Denied("wrong password")},
            {"error": TryAgain("no answer"), "hangs": True},
            {"refusal": NotOffloaded("no such stream")},
            {"refusal": TryAgain("the subscription ended")},
            {"lie": {"next_offset": 2**64 - 1}},
            {"lie": {"next_offset": 0}},
            {"lie": {"first_offset": 0}},
            {"lie": {"epoch": 9}},
            {"lie": {"crc": 0}},
        ],
        ids=repr,
    )

    @FAILURES
    def test_the_hold_back_applies(self, change: dict[str, Any]) -> None:
        async def scenario(world: World) -> None:
            follower = await world.asking()
            vars(world.broker).update(change)
            for _ in range(5):
                world.source.append(3)
                end = world.source.next_offset
                await world.run(follower, seconds=RULES.max_lag_seconds)
                assert await world.committed() == end
                assert world.vouched.held_back == ["orders"]

        run(scenario)

    @FAILURES
    def test_a_broker_that_recovers_is_believed_again(self, change: dict[str, Any]) -> None:
        async def scenario(world: World) -> None:
            follower = await world.asking()
            sound = {name: getattr(world.broker, name) for name in change}
            vars(world.broker).update(change)
            world.source.append(3)
            await world.run(follower, seconds=RULES.max_lag_seconds)
            vars(world.broker).update(sound)
            await world.run(follower, seconds=RETRY_SECONDS)
            world.source.append(3)
            await world.run(follower, seconds=LONG)
            assert (await world.committed(), world.vouched.held_back) == (30, [])

        run(scenario)

    def test_a_broker_that_fails_is_left_alone_for_a_while_and_told_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(world: World) -> None:
            (stream,) = await world.vouched.streams()
            world.broker.refusal = Denied("no permission")
            world.source.append(1)
            for _ in range(30):
                async with await stream.snapshot() as snapshot:
                    assert await stream.vouched(snapshot) is None
                world.clock.now += 1
            assert len(world.broker.asked) == 30 / RETRY_SECONDS
            assert caplog.text.count("does not vouch") == 1

        run(scenario)

    def test_a_question_without_an_answer_is_asked_again_about_the_newest_chunk(self) -> None:
        async def scenario(world: World) -> None:
            follower = await world.asking()
            world.source.append(1)
            await world.run(follower, seconds=RULES.max_lag_seconds)
            world.source.append(1)
            await world.run(follower, seconds=ASK_SECONDS + RULES.max_lag_seconds)
            assert world.broker.asked[:2] == [0, 10]
            assert await world.committed() == 0

        run(scenario)

    def test_a_lie_about_the_very_chunk_costs_the_hold_back_and_a_new_leader_is_seen(self) -> None:
        """The broker vouches for a tail that no majority has. Then a new leader replaces it."""

        async def scenario(world: World) -> None:
            follower = await world.asking()
            world.source.append(3)
            world.broker.committed_offset = 10**6
            await world.run(follower, seconds=RULES.max_lag_seconds)
            assert await world.committed() == 30
            world.source.ledgers[-1].pop()
            world.source.epoch, world.source.next_offset = 2, 20
            world.source.append(3)
            await world.run(follower, seconds=RULES.max_lag_seconds)
            assert (follower.state, type(follower.status.error)) == (FollowState.PAUSED, Diverged)
            assert await world.committed() == 30

        run(scenario)

    @settings(max_examples=30, deadline=None)
    @given(st.data())
    def test_no_course_of_answers_copies_what_was_replaced_or_leaves_out_a_record(self, data: Any) -> None:
        """Answers are late, lost, refused or wrong. In the end everything is on the tier, in order.

        While the broker answers by the truth, nothing beyond what it has committed is copied.
        """

        async def scenario(world: World) -> None:
            follower, is_honest, copied = await world.asking(), True, 0
            for _ in range(data.draw(st.integers(1, 12))):
                match data.draw(st.sampled_from(["append", "roll", "commit", "fail", "lie", "heal", "look"])):
                    case "append":
                        world.source.append(data.draw(st.integers(1, 3)))
                    case "roll":
                        world.source.roll()
                    case "commit":
                        known = world.broker.committed_offset // 10
                        end = data.draw(st.integers(known, world.source.next_offset // 10))
                        world.broker.committed_offset = end * 10
                    case "fail":
                        world.broker.refusal = data.draw(st.sampled_from([TryAgain("x"), Denied("y")]))
                        is_honest = False
                    case "lie":
                        world.broker.lie = {"next_offset": data.draw(st.integers(0, 2**64 - 1))}
                        is_honest = False
                    case "heal":
                        world.broker.refusal, world.broker.lie = None, {}
                await world.run(follower, seconds=data.draw(st.sampled_from([1.0, 5.0, 40.0])))
                before, copied = copied, await world.committed()
                assert before <= copied <= world.source.next_offset
                assert not is_honest or copied <= world.broker.committed_offset
            world.broker.committed_offset, world.broker.refusal, world.broker.lie = 10**6, None, {}
            await world.run(follower, seconds=LONG)
            assert await world.committed() == world.source.next_offset

        run(scenario)


class TestWhichProcessLeads:
    """The process beside the leader claims a stream that nobody works on; the others leave it that time."""

    @pytest.mark.parametrize(
        ("leads", "waits"), [(True, False), (None, False), (False, True)], ids=["leader", "nobody", "replica"]
    )
    def test_a_process_beside_a_replica_leaves_a_free_stream_to_the_leader(
        self, leads: bool | None, waits: bool
    ) -> None:
        async def scenario(world: World) -> None:
            follower = await world.asking()
            world.broker.leads, world.broker.committed_offset = leads, 10**6
            world.source.append(3)
            await world.run(follower, seconds=1.5 * RULES.quiet_seconds)
            assert await world.committed() == (0 if waits else 30)
            await world.run(follower, seconds=2 * RULES.quiet_seconds)
            assert await world.committed() == 30, "it leads if no process is beside the leader"

        run(scenario)

    def test_a_process_that_leads_goes_on_after_an_error_of_the_store(self) -> None:
        """Also if the broker has chosen another leader meanwhile: nobody else would, for a minute."""

        async def scenario(world: World) -> None:
            follower = await world.asking()
            world.broker.committed_offset = 10**6
            world.source.append(3)
            await world.run(follower, seconds=RULES.max_lag_seconds)
            world.broker.leads, world.store.rules = False, [Rule(Fault.FAIL_BEFORE, "put")]
            world.source.append(3)
            await world.run(follower, seconds=RULES.max_lag_seconds)
            assert isinstance(follower.status.error, TryAgain)
            world.store.rules = []
            await world.run(follower, seconds=RULES.max_lag_seconds)
            assert await world.committed() == 60

        run(scenario)

    def test_a_broker_that_is_down_makes_nobody_wait(self) -> None:
        async def scenario(world: World) -> None:
            follower = await world.asking()
            world.broker.leads, world.broker.error = False, TryAgain("down")
            world.source.append(3)
            await world.run(follower, seconds=RULES.max_lag_seconds)
            assert await world.committed() == 30

        run(scenario)
