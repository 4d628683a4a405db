"""Encryption in a simulated world: who has keys, accidents of keys, roles that act on keys, and checks.

Some processes have no keys, some read and continue what is encrypted, and some encrypt new streams under a
shared master key or under one of the stream's own. In some worlds a copy of a key object is lost now and
then, somebody rotates the master keys, or shreds the stream.

These invariants hold beside those of the judge:

    nothing is appended in the clear behind encrypted data, and no encrypted data is copied into the clear
    a data key encrypts one fragment
    `leftovers` leaves out no sound fragment of a running attempt, whatever the key service does
    only a process without keys, or one that saw the key service deny, is denied anything
    at the end all master keys are rotated and the older ones destroyed, and all that is committed reads back
    after a shred, a fresh process opens no committed fragment with the key objects from before it, and if the
    stream had a master key of its own, also not with an older copy of the bucket
    if a late request makes a key object after a shred, a sweep deletes it
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from protocol_judge import DATA, Root
from protocol_world import KEYS, STREAM, WitnessedOffloader

from offload.formats.anchor import KeyObject
from offload.formats.fragment import FragmentTail
from offload.formats.sealing import unwrapped
from offload.ground.errors import Conflict, Corrupt, Denied, Fenced, Misuse, NotOffloaded
from offload.model.attempt import Leftover
from offload.model.labels import MasterKey
from offload.model.manifest import AttemptKind, Manifest
from offload.native.fragment_check import check_fragment
from offload.native.key_ring import KeyRing
from offload.store.memory import MemoryStore
from offload.upkeep.rotate import rotate
from offload.upkeep.shred import plan_shred, shred
from simulation.keys import SimulatedKeys

if TYPE_CHECKING:
    from simulation.keys import KeyHouse
    from simulation.world import Process, World

OPERATORS = ("last", "auditor", "operator", "rotator", "shredder")
"""The roles that have all keys in each world with encryption."""


def ring_of(process: Process, random: Random) -> KeyRing | None:
    """Return the ring of a new process: none, one that continues what is encrypted, or one that encrypts."""
    world = process.world
    if not world.weather.encrypts:
        return None
    label: str | None = world.house.shared
    if not process.name.startswith(OPERATORS):
        if world.weather.keyless and random.random() < 0.3:
            return None
        label = random.choice((None, label, label, "own:life"))
    new = None if label is None else MasterKey.parse(label)
    service = SimulatedKeys(world.house, process.requests())
    return KeyRing(service=service, new=new, env=replace(process.env, secret=random.randbytes))


class GuardedOffloader(WitnessedOffloader):
    """An offloader whose adoption is checked: it leaves out nothing that is sound."""

    process: Process

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        """Return the leftovers, after the check."""
        since = self.process.world.life.now
        found = await super().leftovers(manifest)
        _check_adoption(self.process, manifest, found, since)
        return found


def _check_adoption(process: Process, manifest: Manifest, found: list[Leftover], since: int) -> None:
    world = process.world
    if world.weather.flips or world.in_doubt or process.lived_through_a_loss:
        return
    end = found[-1].entry.next_offset if found else manifest.next_offset
    left = {
        running.attempt
        for running in manifest.running
        if running.writer != manifest.writer and running.kind is AttemptKind.STREAM
    }
    for key in world.objects:
        parsed = KEYS.parse_fragment(key)
        if parsed is None or parsed[0] != end or parsed[1] not in left or key in world.torn:
            continue
        # A plain one is left out of a stream that has become encrypted, and copied again.
        is_wanted = not world.weather.encrypts or data_key_of(world.objects[key], world.house)
        if is_wanted and 0 < _born(world, key) <= since:
            world.fail(f"{process.name}: adoption left out {key}, which is whole")


# Accidents.


def trouble(world: World) -> None:
    """Let the key service fail or recover, or lose one of the two copies of a key object."""
    house, step = world.house, world.figures.steps
    if house.state and step >= house.ends_at:
        house.state = ""
    if world.chance(world.weather.outages) and not house.state:
        house.state = world.random.choice(("down", "denying"))
        house.denials += house.state == "denying"
        house.ends_at = step + world.random.choice((5, 20, 80))
        world.happened(f"key service {house.state}")
        world.say(f"the key service is {house.state}")
    if world.chance(world.weather.copy_losses):
        _lose_copy(world)


def _lose_copy(world: World) -> None:
    """Lose one copy of a key object that has both. No second copy is ever lost."""
    whole = [key for key in world.objects if key.endswith(".key") and f"{key[:-4]}.copy" in world.objects]
    if whole:
        key = world.random.choice(sorted(whole))
        lost = world.random.choice((key, f"{key[:-4]}.copy"))
        world.life.ends(lost, len(world.objects[lost]))
        dict.pop(world.objects, lost)
        world.house.lost_copies += 1
        world.happened("losses of a copy of a key")
        world.say(f"{lost} is lost")


# Roles.


async def rotate_often(process: Process) -> None:
    """Rotate the master keys, again and again, while others write."""
    while await process.rest(10.0):
        process.world.house.new_shared()
        try:
            await process.do(rotate_once(process))
        except (NotOffloaded, Conflict, *process.failures):
            continue
        process.world.happened("rotations")


async def rotate_once(process: Process) -> None:
    """Wrap each key of the stream by the newest shared master key."""
    assert process.ring is not None
    house, env = process.world.house, process.env
    tier, service = process.offloader, process.ring.service
    before = house.lost_copies
    async for done in rotate(tier, house.shared, service=service, streams=[STREAM], env=env):
        if isinstance(done.error, Denied) and before != house.lost_copies:
            raise Conflict("the rotation lost one of the copies that it made") from done.error
        if done.error is not None:
            raise done.error


@dataclass
class Grave:
    """A life of the stream that was shredded."""

    since: int
    """The last change of the bucket before the shred."""
    fragments: dict[str, bytes]
    """The committed fragments that were encrypted."""
    keys: dict[str, bytes]
    """The key objects from before the shred."""


async def shred_sometimes(process: Process) -> None:
    """Shred the stream now and then: delete it, and then destroy its keys."""
    while await process.rest(100.0):
        try:
            await process.do(_shred_once(process))
        except (NotOffloaded, Fenced, Conflict, Misuse, *process.failures):
            continue


async def _shred_once(process: Process) -> None:
    assert process.ring is not None
    world, service = process.world, process.ring.service
    plan = await plan_shred(process.offloader, STREAM, service=service)
    world.house.is_shredding, since, keys = True, world.life.now, _keys_in(world)
    done = await shred(process.offloader, plan, service=service, env=process.env)
    if plan.manifest is None or any(key.error is not None for key in done):
        return
    life = plan.manifest.incarnation
    secret = {key: data for key, data in world.objects.items() if _is_secret_of(world, key, life)}
    world.graves.append(Grave(since, secret, keys))
    world.happened("shreds")
    await _check_grave(world, world.graves[-1], older=True)


def _keys_in(world: World) -> dict[str, bytes]:
    return {key: data for key, data in world.objects.items() if "/keys/" in key}


def _is_secret_of(world: World, key: str, life: UUID) -> bool:
    """Return True for an encrypted fragment that was committed in this life."""
    match, roots = DATA.fullmatch(key), world.judge.history.values()
    if match is None:
        return False
    names = (root.named.get(key.rpartition("/")[2]) for root in roots if root.incarnation == life.bytes)
    return any(row is not None and row["encrypted"] for row in names)


# Checks.


def may_be_reported(process: Process, damage: Corrupt) -> bool:
    """Return True if `verify` may report this of a key: the service denied it, or it has no second copy.

    One copy was lost, or a crash left one, or the other is still to come. Of a fragment, it may report that
    its key was denied.
    """
    name, _, _ = damage.where.rpartition(".")
    is_half = not {f"{name}.key", f"{name}.copy"} <= process.world.objects.keys()
    of_a_key = "/keys/" in damage.where and (is_half or process.may_be_denied)
    return of_a_key or (damage.what == "stream's key" and process.may_be_denied)


async def check_graves(world: World) -> None:
    """Fail if a fresh process opens a fragment that was shredded. The last sweep is over."""
    for grave in world.graves:
        await _check_grave(world, grave)


async def _check_grave(world: World, grave: Grave, *, older: bool = False) -> None:
    """Check one life. If `older`, judge only key objects from before the shred: rotations still run."""
    there = {
        key: data for key, data in _keys_in(world).items() if not older or _born(world, key) <= grave.since
    }
    own = {key: data for key, data in grave.keys.items() if KeyObject.decode(data, where=key).own}
    store = MemoryStore(objects=grave.fragments | there | own)
    ring = KeyRing(service=SimulatedKeys(world.house))
    for key, data in grave.fragments.items():
        try:
            await check_fragment(store, key, size_bytes=len(data), ring=ring)
        except Denied:
            continue
        world.fail(f"{key} was shredded, and a fresh process reads it")


def _born(world: World, key: str) -> int:
    return world.life.born.get(key, 0)


def lacks_a_key(world: World, root: Root) -> bool:
    """Return True if no key object opens some fragment that this root names."""
    keys = [KeyObject.decode(data, where=key) for key, data in _keys_in(world).items()]
    whole = {UUID(each.uid) for each in keys if each.label in world.house.masters}
    for name in root.named:
        with suppress(Corrupt):  # a torn one
            data = world.objects[f"{KEYS.data}{name}"]
            tail = FragmentTail.decode(data, where=name, size_bytes=len(data))
            if tail.trailer.encrypted and tail.wrapped_key[0] not in whole:
                return True
    return False


async def retire(world: World) -> None:
    """Rotate all master keys at the end, and destroy those that wrap no key any more."""
    await rotate_once(world.process("auditor"))
    objects = world.objects.items()
    used = {KeyObject.decode(data, where=key).label for key, data in objects if "/keys/" in key}
    for label in [label for label in world.house.masters if label not in used]:
        world.house.destroy(label)


def plain_chunks(data: bytes, house: KeyHouse) -> bytes:
    """Return the chunks of a sound fragment, decrypted and decompressed. The house knows every key."""
    tail, _ = _opened(data, house)
    begin, end = tail.span_of(0, len(tail.table))
    return tail.chunks_in(data[begin:end], 0, len(tail.table), where="a fragment")


def data_key_of(data: bytes, house: KeyHouse) -> bytes:
    """Return the data key of a sound fragment; empty if it is not encrypted."""
    return _opened(data, house)[1]


def _opened(data: bytes, house: KeyHouse) -> tuple[FragmentTail, bytes]:
    where = "a fragment"
    tail = FragmentTail.decode(data, where=where, size_bytes=len(data))
    if not tail.trailer.encrypted:
        return tail, b""
    uid, wrapped = tail.wrapped_key
    raw = unwrapped(wrapped, house.raw[uid], where=where)
    return tail.unlocked(raw, where=where), raw
