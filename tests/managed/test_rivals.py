"""Two processes that both believe they own a stream: one history, and no local copy goes that it lacks."""

from __future__ import annotations

from random import Random

import pytest
from campaign import few
from managed_world import MANUAL, STREAM, World, bodies, fill, run

from offload.copy.copier import StreamCopier
from offload.ground.errors import Diverged, Fenced
from offload.managed.ledger import LedgerState, ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.store.faults import Fault, Rule
from offload.upkeep.retention import Retention, delete_stream, trim

LAG = LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=60, roll_seconds=None)


async def pair(world: World, policy: LedgerPolicy = MANUAL) -> tuple[World, ManagedLedger, ManagedLedger]:
    """Return a second world with a copy of the disk and the same tier, and a ledger of each."""
    other = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
    return other, await world.open(policy), await other.open(policy)


async def records_of(ledger: ManagedLedger, count: int, mark: str) -> list[bytes]:
    """Append records that nobody else has, one in a chunk, and seal them. Return them."""
    found = [f"{mark}{ledger.next_offset + rank}".encode() for rank in range(count)]
    for body in found:
        await ledger.append([body])
    await ledger.roll()
    return found


async def on_tier(world: World, start: int = 0) -> list[bytes]:
    """Return the messages on the tier, as a third process reads them."""
    reader = World(clock=world.clock, store=world.store)
    ledger = await reader.open()
    found = await bodies(ledger, start)
    await ledger.close()
    return found


def local_bodies(world: World) -> bytes:
    """Return all bytes of the disk."""
    return b"".join(chunk for ledger in world.disk.ledgers for chunk in ledger.chunks)


def test_the_later_claim_fences_the_owner_before_it_and_the_tier_has_one_history() -> None:
    async def scenario(world: World) -> None:
        first = await world.open()
        records = await fill(first, 10, 0)
        await first.offload_prefix(10)
        other = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
        later = await other.open()
        added = await records_of(later, 1, "later-")
        await later.offload_prefix(11)

        await first.append([b"first"])
        await first.roll()
        with pytest.raises(Fenced):
            await first.offload_prefix(11)

        assert await on_tier(world) == records + added
        assert b"first" in local_bodies(world)
        assert later.state is LedgerState.OPEN

    run(scenario)


@pytest.mark.parametrize("mine", [3, 5, 8])
def test_a_copy_with_other_records_deletes_nothing_that_the_tier_lacks(mine: int) -> None:
    """The other process has offloaded 5 records behind the common ones. This one has 3, 5 or 8 of its own."""

    async def scenario(world: World) -> None:
        first = await world.open(LAG)
        await fill(first, 10, 0)
        await first.step()
        await first.close()
        other, winner, loser = await pair(world, LAG)
        await loser.append([b"before"])  # both have met the tier by now
        await winner.append([b"winner-0"])
        await records_of(winner, 4, "winner-")
        await winner.step()
        kept = await records_of(loser, mine - 1, "loser-")

        for _ in range(4):
            await loser.step()
            world.clock.now += 400

        assert isinstance(loser.error, Diverged | Fenced)
        assert all(body in local_bodies(other) for body in [b"before", *kept])
        with pytest.raises((Diverged, Fenced)):
            await loser.append([b"more"])
        assert winner.error is None

    run(scenario)


def test_a_copy_that_looked_at_the_tier_after_the_other_went_on_deletes_nothing() -> None:
    """Its ledger ends before the tier does, so that ends alone would say that the tier has it."""

    async def scenario(world: World) -> None:
        first = await world.open(LAG)
        await first.append([b"common"])
        await first.close()
        other = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
        loser = await other.open(LAG)
        kept = await records_of(loser, 4, "loser-")
        winner = await world.open(LAG)
        await records_of(winner, 9, "winner-")
        await winner.step()
        await loser.close()
        loser = await other.open(LAG)

        for _ in range(3):
            await loser.step()
            world.clock.now += 400

        assert isinstance(loser.error, Diverged)
        assert all(body in local_bodies(other) for body in kept)

    run(scenario)


def test_a_copy_whose_last_chunk_is_like_that_of_the_tier_keeps_the_ledger_that_differs() -> None:
    """The last chunk of both is the same to the byte. Only the tables of the ledgers tell them apart."""

    async def scenario(world: World) -> None:
        other, winner, loser = await pair(world, LAG)
        await winner.append([b"winner" * 3])
        await winner.append([b"the same"])
        await winner.roll()
        await winner.step()
        await loser.append([b"loser"])
        await loser.append([b"the same"])
        await loser.roll()

        for _ in range(3):
            await loser.step()
            world.clock.now += 400

        assert isinstance(loser.error, Diverged)
        assert b"loser" in local_bodies(other)

    run(scenario)


def test_a_copy_whose_last_records_are_those_of_the_tier_at_another_time_has_another_history() -> None:
    """A producer sent the same record to both brokers, whose disks are of one epoch. The CRCs are equal."""

    async def scenario(world: World) -> None:
        other, winner, loser = await pair(world)
        await records_of(winner, 1, "winner-")
        kept = await records_of(loser, 1, "loser-")
        await winner.append([b"the same"])
        world.clock.now += 1
        await loser.append([b"the same"])
        for owner in (winner, loser):
            await owner.roll()
        await winner.offload_prefix(2)
        added = await records_of(loser, 1, "loser-")

        with pytest.raises(Diverged, match="the same records at another time"):
            await loser.offload_prefix(3)

        assert await on_tier(world) == [b"winner-0", b"the same"]
        assert all(body in local_bodies(other) for body in kept + added)

    run(scenario)


def test_a_comparison_counts_only_for_the_end_up_to_which_it_was_made() -> None:
    """Both have records of the same sizes and times, behind an end at which the copy had agreed."""

    async def scenario(world: World) -> None:
        first = await world.open(LAG)
        await fill(first, 10, 5)
        await first.step()
        await first.close()
        other = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
        winner, loser = await world.open(LAG), await other.open(LAG)
        await loser.append([b"loser-"])
        world.clock.now += 61
        await loser.step()
        assert other.local() == [10]
        world.clock.now -= 61
        await winner.append([b"winner"])
        world.clock.now += 61
        await winner.roll()
        await loser.roll()
        await winner.step()

        for _ in range(4):
            await loser.step()
            world.clock.now += 400

        assert isinstance(loser.error, Diverged)
        assert b"loser-" in local_bodies(other)

    run(scenario)


def test_an_owner_that_was_fenced_does_not_trim_what_the_other_keeps() -> None:
    async def scenario(world: World) -> None:
        keeps = LedgerPolicy(deletion_lag_seconds=None, roll_seconds=None)
        trims = LedgerPolicy(deletion_lag_seconds=None, roll_seconds=None, retention_seconds=300)
        first = await world.open(keeps)
        await fill(first, 10, 10, 0)
        await first.step()
        await first.close()
        other = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
        winner, loser = await world.open(keeps), await other.open(trims)
        await records_of(winner, 5, "winner-")
        await winner.step()
        world.clock.now += 1000

        await loser.step()

        assert isinstance(loser.error, Diverged | Fenced)
        assert (await world.tier().load_manifest(STREAM)).first_offset == 0

    run(scenario)


def test_a_deposed_owner_does_not_delete_the_stream() -> None:
    async def scenario(world: World) -> None:
        first = await world.open()
        records = await fill(first, 10, 0)
        await first.offload_prefix(10)
        other = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
        winner = await other.open()
        added = await records_of(winner, 1, "winner-")
        await winner.offload_prefix(11)

        with pytest.raises(Fenced):
            await first.delete()

        assert first.state is LedgerState.FENCED
        assert await on_tier(world) == records + added
        assert world.disk.ledgers

    run(scenario)


@few("seeds of rival owners; make test has ten of forty", 4)
@pytest.mark.parametrize("seed", range(40))
def test_random_rivals_leave_one_history_and_lose_no_local_copy(seed: int) -> None:
    async def scenario(world: World) -> None:
        random = Random(seed)
        worlds, owners = [world], [await world.open(LAG)]
        written: list[dict[int, bytes]] = [{}]
        history: list[bytes] = []
        for turn in range(60):
            at = random.randrange(len(owners))
            owner = owners[at]
            action = random.randrange(8)
            try:
                match action:
                    case 0 | 1 | 2:
                        body = f"{at}-{turn}".encode()
                        written[at][await owner.append([body])] = body
                    case 3:
                        await owner.roll()
                    case 4:
                        await owner.step()
                    case 5:
                        world.clock.now += 70
                    case 6 if len(worlds) < 3:
                        copy = World(clock=world.clock, disk=worlds[at].copied_disk(), store=world.store)
                        worlds.append(copy)
                        written.append(dict(written[at]))
                        owners.append(await copy.open(LAG))
                    case 7:
                        owners[at] = await worlds[at].open(LAG)
            except (Diverged, Fenced):
                pass  # it has lost
            if action != 4:
                continue  # only a step changes the tier, or deletes a local copy
            now = await on_tier(world)
            assert now[: len(history)] == history
            history = now
            for each, own in zip(worlds, written, strict=True):
                first = each.disk.ledgers[0].facts.first_offset
                assert all(history[offset] == body for offset, body in own.items() if offset < first)

    run(scenario)


def test_a_new_disk_goes_on_where_the_lost_one_ended_although_its_epochs_begin_again() -> None:
    async def scenario(world: World) -> None:
        records = []
        for _ in range(3):  # each opening raises the epoch
            first = await world.open(LAG)
            records += await records_of(first, 2, "lost-")
            await first.step()
            await first.close()
        lost = await world.tier().load_manifest(STREAM)
        new = World(clock=world.clock, store=world.store)
        ledger = await new.open(LAG)

        # The owner of the lost disk, if it comes back, is one of an older epoch.
        assert ledger.log.epoch == lost.source_epoch + 1
        added = await records_of(ledger, 2, "new-")
        assert await bodies(ledger) == records + added
        await ledger.step()

        assert ledger.error is None
        assert await on_tier(world) == records + added

    run(scenario)


def test_a_copy_whose_chunk_spans_the_end_of_a_trimmed_tier_is_another_history() -> None:
    """Nothing is left on the tier to compare."""

    async def scenario(world: World) -> None:
        first = await world.open(MANUAL)
        await first.append([b"common"])
        await first.close()
        other, winner, loser = await pair(world)
        await loser.append([b"one", b"two"])
        await loser.roll()
        await winner.append([b"winner"])
        await winner.roll()
        await winner.offload_prefix(2)
        await trim(world.tier(), STREAM, Retention(before_offset=2), env=world.env())

        with pytest.raises(Diverged, match="no chunk of the source begins there"):
            await loser.offload_prefix(3)

        assert b"two" in local_bodies(other)

    run(scenario)


def test_a_log_that_goes_on_behind_a_trimmed_tier_keeps_what_the_tier_never_had() -> None:
    """Its last chunk is that of the tier from then on, also for the process after it."""

    async def scenario(world: World) -> None:
        other, winner, loser = await pair(world, LAG)
        await loser.append([b"only-0"])
        kept = [b"only-0", *await records_of(loser, 2, "only-")]
        await records_of(winner, 3, "winner-")
        await winner.step()
        await trim(world.tier(), STREAM, Retention(before_offset=3), env=world.env())
        added = await records_of(loser, 2, "loser-")
        await loser.step()
        assert await on_tier(world, 3) == added

        for _ in range(2):
            world.clock.now += 400
            await loser.step()
            assert isinstance(loser.error, Diverged)
            assert r"nothing shows that it had [0, 3)" in str(loser.error)
            assert all(body in local_bodies(other) for body in kept)
            await loser.append([b"more"])
            await loser.close()
            loser = await other.open(LAG)
        assert (await bodies(loser))[:5] == [*kept, *added]

    run(scenario)


def test_an_owner_goes_on_behind_its_trimmed_tier_and_its_local_copies_go() -> None:
    async def scenario(world: World) -> None:
        first = await world.open()
        await records_of(first, 3, "trimmed-")
        await first.offload_prefix(3)
        await first.close()
        await trim(world.tier(), STREAM, Retention(before_offset=3), env=world.env())
        owner = await world.open(LAG)
        added = await records_of(owner, 2, "more-")

        for _ in range(3):
            await owner.step()
            world.clock.now += 400

        assert owner.error is None
        assert world.local() == [5]
        assert await on_tier(world, 3) == added

    run(scenario)


def test_a_log_that_lost_its_end_keeps_what_it_appended_there_in_place_of_what_was_trimmed() -> None:
    """Its note is newer than its records, as after a power cut, or a restore that was not made at once."""

    async def scenario(world: World) -> None:
        owner = await world.open()
        await records_of(owner, 5, "both-")
        older = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
        await records_of(owner, 5, "lost-")
        await owner.offload_prefix(10)
        await owner.close()
        await trim(world.tier(), STREAM, Retention(before_offset=10), env=world.env())
        older.disk.notes = world.disk.notes
        world.store.rules = [Rule(Fault.FAIL_BEFORE)]
        ledger = await older.open(LAG)
        kept = await records_of(ledger, 5, "kept-")
        added = await records_of(ledger, 2, "more-")
        world.store.rules = []
        await ledger.close()
        ledger = await older.open(LAG)

        for _ in range(3):
            await ledger.step()
            world.clock.now += 400

        assert isinstance(ledger.error, Diverged)
        assert older.local() == [0, 5, 10, 12]
        assert await bodies(ledger, 5) == [*kept, *added]

    run(scenario)


def test_a_stream_that_was_deleted_goes_on_on_a_new_disk_although_its_epochs_begin_again() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):  # each opening raises the epoch
            first = await world.open(LAG)
            await records_of(first, 2, "deleted-")
            await first.step()
            await first.close()
        await (await world.open(LAG)).delete()
        new = World(clock=world.clock, store=world.store)
        ledger = await new.open(LAG)

        added = await records_of(ledger, 2, "new-")
        await ledger.step()

        assert ledger.error is None
        assert await on_tier(new) == added

    run(scenario)


def test_an_owner_does_not_go_on_behind_a_stream_that_was_begun_again_meanwhile() -> None:
    """Its log begins where the tier ends, so that no chunk of the two can be compared."""

    async def scenario(world: World) -> None:
        owner = await world.open(LAG)
        await records_of(owner, 3, "first-")
        for _ in range(2):
            await owner.step()
            world.clock.now += 61
        assert world.local() == [3]
        kept = await records_of(owner, 2, "kept-")
        await owner.close()
        await delete_stream(world.tier(), STREAM, env=world.env())
        again = World(clock=world.clock, store=world.store)
        other = await again.open(LAG)
        records = await records_of(other, 3, "again-")
        await other.step()

        owner = await world.open(LAG)
        await owner.step()

        assert isinstance(owner.error, Diverged)
        assert "it was deleted and begun again" in str(owner.error)
        assert await on_tier(again) == records
        assert await bodies(owner, 3) == kept

    run(scenario)


def test_a_disk_that_was_restored_from_an_older_copy_takes_no_append() -> None:
    async def scenario(world: World) -> None:
        first = await world.open(LAG)
        await fill(first, 10, 5)
        older = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
        await fill(first, 10)
        await first.roll()
        await first.step()
        await first.close()

        ledger = await older.open(LAG)
        with pytest.raises(Diverged, match="ends at offset 15, but the tier has records up to 25"):
            await ledger.append([b"more"])
        world.clock.now += 400
        await ledger.step()
        world.clock.now += 400
        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        assert older.local() == [0, 10]
        assert ledger.next_offset == 15

    run(scenario)


def test_an_append_goes_on_while_the_tier_is_away_and_the_comparison_is_made_later() -> None:
    async def scenario(world: World) -> None:
        first = await world.open(LAG)
        await fill(first, 10, 5)
        older = World(clock=world.clock, disk=world.copied_disk(), store=world.store)
        await fill(first, 10)
        await first.roll()
        await first.step()
        world.store.rules = [Rule(Fault.FAIL_BEFORE)]
        ledger = await older.open(LAG)
        assert await ledger.append([b"in doubt"]) == 15
        await ledger.step()
        world.store.rules = []
        world.clock.now += 100

        await ledger.step()

        assert isinstance(ledger.error, Diverged)
        with pytest.raises(Diverged):
            await ledger.append([b"more"])
        assert b"in doubt" in local_bodies(older)

    run(scenario)


def test_a_look_beside_a_copy_does_not_move_the_copy_behind_what_a_rival_offloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first append looks at the tier while a step has compared it, and is about to claim the stream."""

    async def scenario(world: World) -> None:
        first = await world.open()
        await fill(first, 10, 0)
        await first.offload_prefix(10)
        await first.close()
        _, winner, loser = await pair(world)
        added = await records_of(winner, 1, "winner-")
        await records_of(loser, 2, "loser-")

        async def meanwhile(*args: object) -> None:
            monkeypatch.undo()
            await winner.offload_prefix(11)
            await loser._copy.look()

        monkeypatch.setattr(StreamCopier, "_check_first_chunk", meanwhile)

        with pytest.raises(Diverged):
            await loser.offload_prefix(12)

        assert (await on_tier(world))[10:] == added

    run(scenario)
