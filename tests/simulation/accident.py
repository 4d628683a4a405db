"""Losses of roots and anchors within a history, and the operators who restore them.

In some worlds an operator stops all processes, waits until nothing is in flight, and rebuilds, as documented.
In others the operator rebuilds at once. `judgement` defines the invariants of both.
"""

from __future__ import annotations

from uuid import UUID

from protocol_judge import LIVE, REBUILDING
from protocol_world import KEYS, STREAM, check_told

from offload.formats.keys import TIER_ANCHOR
from offload.ground.errors import Conflict, OffloadError
from offload.native.lost_anchors import restore_tier_anchor
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.retention import delete_stream
from simulation import locksmith
from simulation.judgement import roots_in
from simulation.world import World

TRIES_MAX = 5


async def strike(world: World) -> None:
    """Lose roots, let processes continue for a while, and rebuild."""
    weather = world.weather
    while (root := world.judge.root) is None or root.state != LIVE or not root.fragments:
        if world.is_time_up:
            return
        await world.until(world.figures.steps + 10)
    check_all_told(world)
    lost = (
        world.random.choice((len(world.objects), 1, 1, 2, 4)) if weather.loses_newest else len(world.objects)
    )
    roots = roots_in(world.objects)
    above = roots[-lost - 1] if lost < len(roots) else 0
    world.objects.lose_roots(above=above)
    world.happened("losses of all roots" if not above else "losses of the newest roots")
    world.say(f"all roots above {above} are lost")
    if world.random.random() < 0.5:  # no process knows the lost roots, and commits behind them
        for process in world.living:
            world.crash(process)
    await world.until(world.figures.steps + world.random.choice((0, 20, 80, 200, 200)))
    if weather.stops_everybody:
        await world.calm_down(crashing=world.random.choice((0.3, 1.0)))
    for _ in range(TRIES_MAX):
        if world.judge.loss is None or await _is_rebuilt(world):
            break
    if weather.stops_everybody and not world.is_time_up:
        world.go_on()


async def strike_anchor(world: World) -> None:
    """Lose an anchor, let processes continue for a while, and restore it. Commits do not need anchors."""
    key = TIER_ANCHOR if world.weather.loses_anchor == "tier" else KEYS.anchor
    if dict.pop(world.objects, key, None) is None:
        return
    world.judge.losses += 1
    world.lost_anchor = key
    world.happened(f"losses of a {world.weather.loses_anchor}'s anchor")
    world.say(f"{key} is lost")
    await world.until(world.figures.steps + world.random.choice((0, 20, 80)))
    for _ in range(TRIES_MAX):
        if not world.lost_anchor or await _is_restored(world):
            break


async def _is_restored(world: World) -> bool:
    operator = world.process("operator")
    try:
        if world.lost_anchor == TIER_ANCHOR:
            await restore_tier_anchor(operator.place)
        else:
            await rebuild(operator.offloader, STREAM, env=operator.env)
    except OffloadError as error:
        world.say(f"{operator.name} could not restore the anchor: {error}")
    if world.lost_anchor not in world.objects:
        return False
    world.judge.losses += 1
    world.lost_anchor = ""
    world.happened("anchors restored")
    return True


async def recover(world: World) -> bool:
    """Rebuild all that is still lost, while no process runs. Return False if no object shows the loss."""
    if world.lost_anchor and not await _is_restored(world):
        root = world.judge.root  # if there is no data, the next claim makes the anchor
        assert root is None or not root.fragments, f"{world.lost_anchor} could not be restored"
        if world.lost_anchor == TIER_ANCHOR and world.weather.split:
            return False  # a claim does not know the commit store
        world.lost_anchor = ""
    if world.judge.loss is None:
        return await _is_unfenced(world)
    proven = world.judge.is_proven and world.judge.is_left()
    if await _is_rebuilt(world):
        return True
    assert not proven, "roots are lost, an object proves it, and the stream was not rebuilt"
    world.happened("losses that nothing shows")
    return False


async def give_up_what_was_shredded(world: World) -> None:
    """Delete the stream if it was shredded while roots were lost, and came back with the lost roots.

    Its keys are gone for good, as they should be. `offload rebuild` tells the operator to delete it again.
    Only a life that had ended may lack a key. All other data must be readable.
    """
    root = world.judge.root
    if root is None or root.state != LIVE or root.incarnation not in world.judge.brought_back:
        return
    if not locksmith.lacks_a_key(world, root):
        return
    operator = world.process("operator")
    await delete_stream(operator.offloader, STREAM, env=operator.env)
    world.happened("shredded streams given up")
    world.say(f"{operator.name} gives up the stream, which lacks a key")


async def _is_unfenced(world: World) -> bool:
    """Return True if no rebuild is left at its fence, after ending one that is.

    Another rebuild, or a late create that brought the lost roots back, can leave one there.
    """
    root = world.judge.root
    if root is None or root.state != REBUILDING:
        return True
    operator = world.process("operator")
    report = await rebuild(
        operator.offloader, STREAM, incarnation=UUID(bytes=root.incarnation), env=operator.env
    )
    return report.manifest is not None


async def _is_rebuilt(world: World) -> bool:
    assert world.judge.loss is not None
    lost, operator = world.judge.loss.root, world.process("operator")
    try:
        report = await rebuild(
            operator.offloader,
            STREAM,
            incarnation=UUID(bytes=lost.incarnation),
            begin=None if world.judge.newest else lost.first_offset,  # a remaining root has the first offset
            end=lost.next_offset,
            env=operator.env,
        )
    except OffloadError as error:
        world.say(f"{operator.name} could not rebuild: {error}")
        if world.is_calm and not world.judge.loss.overtaken and not isinstance(error, Conflict):
            raise
        return False
    world.check()
    if report.manifest is None:
        world.say(f"{operator.name} could not rebuild: {report}")
        return False
    for process in world.processes:  # results from the time of the loss may not hold
        process.offloader.commits.clear()
    world.happened("rebuilds")
    return True


def check_all_told(world: World) -> None:
    """Check the results of all commits since the last check."""
    check_told(world.judge, ((process.name, process.offloader.commits) for process in world.processes))
    for process in world.processes:
        process.offloader.commits.clear()
