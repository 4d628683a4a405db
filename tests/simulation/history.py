"""A whole history: trouble, then calm, and then a check that all data is there and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from math import ceil

from protocol_judge import DATA, GROUP, ROOT, end_of, group_name, read_group
from protocol_world import STREAM

from offload.copy.history import agreement
from offload.ground.errors import Corrupt
from offload.read.reader import StreamReader
from offload.upkeep.sweep.page import ROOTS_KEPT
from offload.upkeep.sweep.tier import Sweeper
from offload.write.job import Job
from offload.write.writer import StreamWriter
from simulation import accident, guests, locksmith, notes, owners, people
from simulation.weather import GRACE_SECONDS
from simulation.world import Figures, Process, World, after


def simulate(
    seed: int, *, owned: bool = False, noted: bool = False, tell: Callable[[str], None] | None = None
) -> Figures:
    """Run the history of this seed. Raises `Broken` if an invariant is broken.

    If `owned`, the stream belongs to two managed ledgers, and the seed gives another history.
    So it does if `noted`: then processes also change a shared note.
    """
    return World(seed, owned=owned, noted=noted, tell=tell).run(_live)


async def _live(world: World) -> None:
    weather = world.weather
    world.say(str(weather))
    for role, count, person in (
        ("writer", weather.writers, people.lead),
        ("reader", weather.readers, people.read),
        ("sweeper", weather.sweepers, people.clean),
        ("trimmer", weather.trimmers, people.retain),
        ("job", weather.jobs, people.work),
        ("compactor", weather.compactors, people.compact),
        ("fetcher", weather.fetchers, people.fetch),
        ("aborter", weather.aborters, people.abort),
        ("remover", weather.deletes, people.remove),
        ("scrubber", weather.scrubs or weather.loses_roots, people.scrub),
        ("rotator", weather.rotators, locksmith.rotate_often),
        ("shredder", weather.shredders, locksmith.shred_sometimes),
        *((f"owner{number}", 1, owners.own) for number in range(weather.owners)),
        ("guest", weather.guests, guests.contribute),
        ("keeper", weather.keepers, notes.keep),
    ):
        world.roles[role] = ceil(count), person
    world.go_on()
    if weather.loses_roots:
        await world.until(int(weather.loses_roots * weather.steps))
        await accident.strike(world)
    elif weather.loses_anchor:
        await world.until(weather.steps // 3)
        await accident.strike_anchor(world)
    await world.until(weather.steps)
    await world.calm_down()
    if not await accident.recover(world):
        return
    accident.check_all_told(world)
    if not world.in_doubt:
        await accident.give_up_what_was_shredded(world)
        await _finish(world)
        _check_what_is_left(world)


async def _finish(world: World) -> None:
    """Append with a last writer, read everything with a last reader, and run a last sweep."""
    last = world.process("last")
    if world.weather.owners:
        await owners.finish(world)
    else:
        await _append_last(world, last)
    sweeper = Sweeper(last.offloader, grace_seconds=GRACE_SECONDS, env=last.env, uploads_seconds=0)
    await sweeper.sweep()
    world.loop.now += 2 * GRACE_SECONDS
    report = await sweeper.sweep()
    assert not any(stream.errors for stream in report.streams)
    await locksmith.check_graves(world)
    if world.weather.keepers:
        await notes.check_left(world)
    world.check()


async def _append_last(world: World, last: Process) -> None:
    world.restore_the_broker()
    log, begin, root = world.broker.log, world.broker.first_offset, world.judge.root
    at = begin if root is None else max(begin, root.next_offset)
    agree = agreement(last.offloader, STREAM, log.snapshot(at))
    writer = await StreamWriter.claim(last.offloader, STREAM, first_offset=begin, agree=agree, env=last.env)
    for job in sorted({running.writer for running in writer.manifest.running}):  # no claim ends them
        await (await Job.begin(last.offloader, STREAM, uid=job, env=last.env)).abort()
    first = writer.manifest.next_offset
    await writer.offload([log.ledger(first, after(first, 1))])
    world.check()

    await _check_reading(world, after(first, 1))
    if world.weather.encrypts:
        await locksmith.retire(world)
        await _check_reading(world, after(first, 1))


async def _check_reading(world: World, end: int) -> None:
    """Assert that a fresh process reads everything up to `end`, or that torn data stopped it."""
    try:
        assert await _read_all(world) == end
    except Corrupt as damage:
        # A rebuild reads only the tails of fragments, so it may name one whose data is torn.
        if not (world.judge.fence and damage.where in world.torn):
            raise


async def _read_all(world: World) -> int:
    """Read everything in a fresh process, and return the offset of the end."""
    reader = await StreamReader.open(world.process("auditor").offloader, STREAM)
    at = reader.manifest.first_offset
    async with aclosing(reader.messages(at)) as batches:
        async for batch in batches:
            assert batch.offset == at
            assert batch.bodies == world.broker.records(reader.manifest.incarnation.bytes, at)
            at += len(batch.bodies)
    return at


def _check_what_is_left(world: World) -> None:
    """Assert that every fragment is named and every group is reached.

    At most `ROOTS_KEPT` roots may be left, and no unfinished upload.
    """
    root, names = world.judge.root, {key: key.rpartition("/")[2] for key in world.objects}
    assert root is not None
    assert not root.running
    fragments = {name for key, name in names.items() if DATA.fullmatch(key)}
    assert fragments == set(root.named), "fragments are left that no root names"
    groups = {name: world.objects[key] for key, name in names.items() if GROUP.fullmatch(key)}
    reached, rows = set(), list(root.entries)
    while rows:
        row = rows.pop()
        if row["kind"]:
            name = group_name(row)
            reached.add(name)
            if name in groups or end_of(row) > root.first_offset:
                rows += read_group(groups[name]).rows
    assert not groups.keys() - reached, "groups are left that no root leads to"
    assert sum(bool(ROOT.fullmatch(key)) for key in names) <= ROOTS_KEPT
    assert not world.unfinished, "uploads are left that nobody will finish"
