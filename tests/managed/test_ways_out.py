"""The ways out of "If a ledger has stopped" (docs/embedding.md): each recipe goes on, and loses nothing."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import offload
from managed_world import STREAM, bodies, fill

from offload import (
    FolderLog,
    LedgerOffloader,
    LedgerPolicy,
    ManagedLedger,
    StreamReader,
    StreamWriter,
    open_tier,
)
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Diverged, Divergence, Fenced, OffloadError, StreamDeleted
from offload.managed.ledger import LedgerState
from offload.upkeep.retention import Retention, delete_stream, trim

POLICY = LedgerPolicy(deletion_lag_seconds=None, roll_seconds=None)


@dataclass
class Place:
    """A folder with a log and a tier."""

    folder: Path

    @property
    def logs(self) -> Path:
        """The folder of all logs."""
        return self.folder / "logs"

    @property
    def log(self) -> Path:
        """The folder of the log."""
        return self.logs / STREAM

    @property
    def tier(self) -> Path:
        """The folder of the tier."""
        return self.folder / "tier"

    async def open(
        self, tier: LedgerOffloader, *, log: Path | None = None, name: str = STREAM
    ) -> ManagedLedger:
        """Open the managed ledger of a log, as a process that begins."""
        return await ManagedLedger.open(await FolderLog.open(log or self.log, name=name), tier, policy=POLICY)

    async def filled(self, tier: LedgerOffloader, *counts: int) -> tuple[ManagedLedger, list[bytes]]:
        """Open the ledger, and append; all but the last part is offloaded."""
        ledger = await self.open(tier)
        records = await fill(ledger, *counts)
        await ledger.step()
        assert ledger.error is None
        return ledger, records

    async def stopped(self, tier: LedgerOffloader, kind: type[OffloadError]) -> OffloadError:
        """Open the ledger, assert that it stops with such an error, and close it."""
        ledger = await self.open(tier)
        await ledger.append([b"late"])
        await ledger.roll()
        await ledger.step()
        error = ledger.error
        await ledger.close()
        assert isinstance(error, kind), error
        return error

    def forget_the_tier(self) -> None:
        """Remove the note about the tier, while the log is closed."""
        (self.log / "note.committed").unlink()

    async def rescued(self) -> list[bytes]:
        """Copy the closed log to another tier by the command line, and return the records there."""
        done = await asyncio.to_thread(offload, "sync", f"rabbitmq://{self.logs}", f"{self.folder}/rescued")
        assert done.code == 0, done.stderr
        async with open_tier(f"{self.folder}/rescued") as tier:
            return await on_tier(tier)


async def on_tier(tier: LedgerOffloader, stream: str = STREAM) -> list[bytes]:
    """Return all messages of a stream on a tier."""
    reader = await StreamReader.open(tier, stream)
    return [body async for batch in reader.messages(reader.manifest.first_offset) for body in batch.bodies]


def run(folder: Path, scenario: Callable[[Place, LedgerOffloader], Awaitable[None]]) -> None:
    """Run a scenario with a tier of its own."""

    async def opened() -> None:
        place = Place(folder)
        async with open_tier(str(place.tier)) as tier:
            await scenario(place, tier)

    asyncio.run(opened())


async def destroy(folder: Path) -> None:
    """Delete a log."""
    await (await FolderLog.open(folder)).destroy()


def test_an_older_copy_of_a_log_makes_room_for_one_that_begins_where_the_tier_ends(tmp_path: Path) -> None:
    """`Diverged` with the kind `behind`: a backup of the disk was restored."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        ledger, records = await place.filled(tier, 5, 0)
        await ledger.close()
        shutil.copytree(place.log, place.folder / "backup")
        ledger = await place.open(tier)
        records += await fill(ledger, 5, 0)
        await ledger.step()
        await ledger.close()
        shutil.rmtree(place.log)
        shutil.move(place.folder / "backup", place.log)
        ledger = await place.open(tier)
        with pytest.raises(Diverged) as stopped:
            await ledger.append([b"more"])
        assert stopped.value.kind is Divergence.BEHIND
        await ledger.close()

        await destroy(place.log)
        ledger = await place.open(tier)

        assert await ledger.append([b"more"]) == 10
        assert await bodies(ledger) == [*records, b"more"]
        await ledger.close()

    run(tmp_path, scenario)


async def forked(place: Place, tier: LedgerOffloader) -> list[bytes]:
    """Let two brokers go on from one log. The other one offloads first. Return the records of this one."""
    ledger, records = await place.filled(tier, 5, 0)
    await ledger.close()
    shutil.copytree(place.log, place.folder / "other")
    ledger = await place.open(tier)
    records += [b"mine-5", b"mine-6"]
    await ledger.append(records[5:])
    await ledger.roll()
    await ledger.close()
    other = await place.open(tier, log=place.folder / "other")
    await other.append([b"other-5", b"other-6"])
    await other.roll()
    await other.step()
    assert other.error is None
    await other.close()
    ledger = await place.open(tier)
    with pytest.raises(Diverged) as stopped:
        await ledger.append([b"refused"])
    assert stopped.value.kind is Divergence.FORK
    await ledger.close()
    return records


def test_a_fork_goes_on_behind_the_tier_with_what_it_alone_had_appended_again(tmp_path: Path) -> None:
    """The tier counts. What only this log has is rescued first."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        records = await forked(place, tier)

        rescued = await place.rescued()
        assert rescued == records
        await destroy(place.log)
        ledger = await place.open(tier)
        assert await ledger.append(rescued[5:]) == 7

        assert await bodies(ledger) == [*records[:5], b"other-5", b"other-6", *rescued[5:]]
        await ledger.close()

    run(tmp_path, scenario)


def test_a_fork_goes_on_as_a_stream_of_another_name(tmp_path: Path) -> None:
    """Both count, and consumers choose."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        records = await forked(place, tier)

        place.forget_the_tier()
        ledger = await place.open(tier, name="orders-2")
        await ledger.append([b"more"])
        await ledger.roll()
        await ledger.step()

        assert ledger.error is None
        assert await on_tier(tier, "orders-2") == [*records, b"more"]
        assert (await on_tier(tier))[5:] == [b"other-5", b"other-6"]
        await ledger.close()

    run(tmp_path, scenario)


def test_an_owner_takes_its_stream_back_by_being_opened_again(tmp_path: Path) -> None:
    """`Fenced`: another process had claimed the stream, and has ended without a record of its own."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        ledger, records = await place.filled(tier, 5, 2)
        await StreamWriter.claim(tier, STREAM)
        await ledger.roll()
        await ledger.step()
        assert isinstance(ledger.error, Fenced)
        assert ledger.state is LedgerState.FENCED
        await ledger.close()

        ledger = await place.open(tier)
        await ledger.step()

        assert ledger.error is None
        assert await on_tier(tier) == records
        await ledger.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_log_whose_stream_was_deleted_is_deleted_or_begins_it_again(tmp_path: Path, keeps: bool) -> None:
    """`StreamDeleted`."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        ledger, records = await place.filled(tier, 5, 2)
        await delete_stream(tier, STREAM)
        await ledger.roll()
        await ledger.step()
        assert isinstance(ledger.error, StreamDeleted)
        if not keeps:
            await ledger.delete()
            assert not place.log.exists()
            return
        await ledger.close()
        place.forget_the_tier()

        ledger = await place.open(tier)
        await ledger.step()

        assert ledger.error is None
        assert await on_tier(tier) == records
        await ledger.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("restores", [False, True])
def test_a_log_whose_tier_is_gone_goes_on_with_a_restored_or_a_new_tier(
    tmp_path: Path, restores: bool
) -> None:
    """`Diverged` without a kind, or `AnchorLost`: the bucket was emptied."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        ledger, records = await place.filled(tier, 5, 2)
        await ledger.close()
        shutil.move(place.tier, place.folder / "lost")
        async with open_tier(str(place.tier)) as empty:
            await place.stopped(empty, Diverged)
        if restores:
            shutil.rmtree(place.tier, ignore_errors=True)
            shutil.move(place.folder / "lost", place.tier)
        else:
            place.forget_the_tier()

        async with open_tier(str(place.tier)) as again:
            ledger = await place.open(again)
            await ledger.step()

            assert ledger.error is None
            assert await on_tier(again) == [*records, b"late"]
            await ledger.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("restores", [False, True])
def test_a_damaged_fragment_is_restored_or_its_stream_begins_again_from_the_log(
    tmp_path: Path, restores: bool
) -> None:
    """`Corrupt`, from the tier. The log still has the ledger."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        ledger, records = await place.filled(tier, 5, 5, 2)
        await ledger.close()
        damaged = next(iter(sorted(place.tier.rglob("*.fragment"))))
        sound = damaged.read_bytes()
        damaged.write_bytes(bytes(len(sound)))
        policy = LedgerPolicy(deletion_lag_seconds=0.0, roll_seconds=None)
        ledger = await ManagedLedger.open(
            await FolderLog.open(place.log, name=STREAM), tier, policy=policy, env=Env(now_ms=later)
        )
        await ledger.step()
        assert isinstance(ledger.error, Corrupt)
        assert len(ledger.log.ledgers) == 3
        await ledger.close()

        if restores:
            damaged.write_bytes(sound)
        else:
            await delete_stream(tier, STREAM)
            place.forget_the_tier()
        ledger = await place.open(tier)
        await ledger.roll()
        await ledger.step()

        assert ledger.error is None
        assert await on_tier(tier) == records
        await ledger.close()

    run(tmp_path, scenario)


def later() -> int:
    """Return the time in an hour."""
    return time.time_ns() // 1_000_000 + 3_600_000


def test_a_damaged_ledger_of_the_log_is_left_out_and_the_rest_is_appended_again(tmp_path: Path) -> None:
    """`Corrupt`, from the log, and the tier does not have the ledger yet."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        ledger, records = await place.filled(tier, 5, 0)
        records += await fill(ledger, 5, 5)
        await ledger.close()
        segment = place.log / f"{5:020}.segment"
        raw = bytearray(segment.read_bytes())
        raw[8 + 2 * (48 + 4 + 10) + 50] ^= 1  # in the third chunk
        segment.write_bytes(raw)
        ledger = await place.open(tier)
        await ledger.step()
        assert isinstance(ledger.error, Corrupt)
        assert "offset 7" in str(ledger.error)
        rescued = await bodies(ledger, 8)
        assert rescued == records[8:]
        await ledger.close()

        await destroy(place.log)
        ledger = await place.open(tier)
        assert await ledger.append(rescued) == 7  # what was before the damage is on the tier

        assert await bodies(ledger) == records[:7] + records[8:]
        await ledger.close()

    run(tmp_path, scenario)


def test_copies_that_are_kept_in_doubt_go_with_the_log_when_the_tier_has_the_rest(tmp_path: Path) -> None:
    """`Diverged` without a kind: the tier was trimmed, and nothing shows that it had what the log has."""

    async def scenario(place: Place, tier: LedgerOffloader) -> None:
        ledger, records = await place.filled(tier, 5, 5, 2)
        await ledger.close()
        await trim(tier, STREAM, Retention(before_offset=5))
        place.forget_the_tier()
        error = await place.stopped(tier, Diverged)
        assert "nothing shows that it had [0, 5)" in str(error)

        assert await place.rescued() == [*records, b"late"]
        await destroy(place.log)
        ledger = await place.open(tier)

        assert await ledger.append([b"more"]) == 13
        assert await bodies(ledger, 5) == [*records[5:], b"late", b"more"]
        await ledger.close()

    run(tmp_path, scenario)
