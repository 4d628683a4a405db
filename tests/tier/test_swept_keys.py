"""Tests of sweeps over key objects: those of ended lives go, and no key that data may need is deleted."""

from __future__ import annotations

import base64
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_yard import KEYS, STREAM, Stalled, Yard, run

from offload.commit.rebuild import Fence
from offload.contracts.store import Listed
from offload.formats.anchor import KeyObject
from offload.formats.checksums import crc32c
from offload.ground.errors import RootsLost
from offload.upkeep.sweep.page import Going, SweepVerdict, Why, name_of
from offload.upkeep.sweep.report import SweepReport
from offload.upkeep.sweep.tier import sweep

KEY: Final = UUID(int=0xC0)


def store_key(
    yard: Yard,
    life: UUID,
    *,
    uid: UUID = KEY,
    own: bool = False,
    base_version: int | None = None,
    **changes: Any,
) -> tuple[str, str]:
    """Store both copies of a key of a life, made on the newest root, and return their names."""
    key = KeyObject(
        stream=STREAM,
        base_version=base_version or yard.base.version,
        incarnation=str(life),
        uid=str(uid),
        generation=changes.pop("generation", 1),
        label=f"tier-{uid}" if own else "tier",
        own=own,
        wrapped=base64.b64encode(b"wrapped").decode(),
    )
    names = KEYS.key_objects(life, uid, key.generation)
    yard.objects.update(dict.fromkeys(names, key.encode()))
    return names


def swept(yard: Yard, **options: Any) -> SweepReport:
    return run(sweep(yard.store, env=yard.env, **{"grace_seconds": 0, **options}))


def left(yard: Yard) -> list[str]:
    return sorted(key for key in yard.objects if key.startswith(KEYS.stream_keys))


def yard_with_an_ended_life() -> tuple[Yard, UUID]:
    yard = Yard()
    yard.fragments(2)
    return yard, yard.base.incarnation


@pytest.mark.parametrize("begun_again", [False, True])
@pytest.mark.parametrize("page_keys_max", [1, 3, 1000])
def test_a_sweep_deletes_the_keys_of_ended_lives_alone(page_keys_max: int, *, begun_again: bool) -> None:
    yard, ended = yard_with_an_ended_life()
    store_key(yard, ended)
    store_key(yard, ended, generation=2**64 - 1)
    yard.delete()
    stays: list[str] = []
    if begun_again:
        yard.claim()
        stays = sorted(store_key(yard, yard.base.incarnation, uid=UUID(int=0xC1)))
        stays.append(store_key(yard, yard.base.incarnation, uid=UUID(int=0xC2))[1])
        yard.objects.pop(
            KEYS.key_objects(yard.base.incarnation, UUID(int=0xC2), 1)[0]
        )  # of a rival that crashed

    report = swept(yard, page_keys_max=page_keys_max)

    assert left(yard) == sorted(stays)
    assert report.errors == []
    [row] = report.streams
    assert row.deleted.objects[Why.ENDED_KEY] == 4
    assert row.stays.objects[Why.KEY] == len(stays)


def test_a_key_of_an_ended_life_waits_for_the_grace_as_its_data_does() -> None:
    yard, ended = yard_with_an_ended_life()
    names = store_key(yard, ended)
    yard.delete()

    for seconds, stay in ((0, True), (59, True), (1, False)):
        yard.seconds += seconds
        report = swept(yard, grace_seconds=60)
        assert left(yard) == (sorted(names) if stay else [])
        assert report.errors == []
    assert not [key for key in yard.objects if KEYS.parse_sighting(key)]


def test_a_sweeper_in_memory_deletes_keys_after_the_grace() -> None:
    yard, ended = yard_with_an_ended_life()
    store_key(yard, ended)
    yard.delete()
    sweeper = yard.sweeper(grace_seconds=60)

    run(sweeper.sweep())
    assert len(left(yard)) == 2
    yard.seconds += 60
    run(sweeper.sweep())
    assert left(yard) == []


def test_a_key_whose_own_master_key_exists_stays_until_it_is_shredded() -> None:
    yard, ended = yard_with_an_ended_life()
    names = store_key(yard, ended, own=True)
    store_key(yard, ended, uid=UUID(int=0xC1))
    yard.delete()

    [row] = swept(yard).streams

    assert left(yard) == sorted(names)
    assert row.stays.objects[Why.OWN_KEY] == 2
    assert "`offload shred`" in Why.OWN_KEY


def test_a_damaged_key_object_of_an_ended_life_goes_and_one_of_a_newer_version_stays() -> None:
    yard, ended = yard_with_an_ended_life()
    damaged, newer = store_key(yard, ended)
    yard.objects[damaged] = b"damaged"
    lines = b"ledger-offload key 2\n{}\n"
    yard.objects[newer] = lines + b"crc32c %08x\n" % crc32c(lines)
    yard.delete()

    report = swept(yard)

    assert left(yard) == [newer]
    assert report.errors == []


def test_a_key_of_a_life_that_lost_its_roots_is_never_deleted() -> None:
    """Roots 6 and 7 begin a new life and are lost, as in a replica that lags. Its key looks old."""
    yard, ended = yard_with_an_ended_life()
    old = store_key(yard, ended)
    yard.delete()
    before = yard.base.version
    yard.claim()
    new = store_key(yard, yard.base.incarnation, uid=UUID(int=0xC1))
    for version in range(before + 1, yard.base.version + 1):
        del yard.objects[KEYS.root(version)]

    for _ in range(2):
        report = swept(yard)

        assert left(yard) == sorted((*old, *new))
        [error] = report.errors
        assert isinstance(error, RootsLost)
        assert new[0] in str(error) or new[1] in str(error)


def test_keys_stay_while_no_root_or_a_rebuild_decides() -> None:
    yard, ended = yard_with_an_ended_life()
    other = store_key(yard, UUID(int=9), base_version=1)
    fence = Fence(
        stream=STREAM, writer=UUID(int=5), incarnation=ended, epoch=9, above=9, instead_of=yard.base.commit_id
    )
    run(yard.log.commit(fence, base=yard.base, committer=fence.writer))

    [row] = swept(yard).streams

    assert left(yard) == sorted(other)
    assert row.stays.objects[Why.REBUILDING] >= 2
    for key in [key for key in yard.objects if key.startswith((KEYS.roots, KEYS.data))]:
        dict.pop(yard.objects, key)
    [row] = swept(yard).streams
    assert left(yard) == sorted(other)
    assert row.stays.objects[Why.NO_ROOT] == 2


@pytest.mark.parametrize("stall", range(12))
def test_a_sweep_that_stalls_anywhere_deletes_no_key_of_a_life_that_begins_meanwhile(stall: int) -> None:
    """The stream is deleted when the sweep begins. It stalls, and the stream begins again with a key."""
    yard, ended = yard_with_an_ended_life()
    store_key(yard, ended)
    yard.delete()
    job = Stalled(sweep(yard.store, env=yard.env, grace_seconds=0, page_keys_max=2))
    for _ in range(stall):
        job.step()

    yard.claim()
    names = store_key(yard, yard.base.incarnation, uid=UUID(int=0xC1))
    job.finish()

    assert set(names) <= set(left(yard))


@given(st.uuids(), st.uuids(), st.integers(0, 2**64 - 1), st.booleans())
def test_a_sweeps_note_names_key_objects(life: UUID, uid: UUID, generation: int, second: bool) -> None:
    listed = Listed(KEYS.key_objects(life, uid, generation)[second], 7)
    name = name_of(KEYS, listed.key)

    [back] = Going.of([SweepVerdict(listed, Why.ENDED_KEY, name)]).verdicts(KEYS)

    assert back.listed == listed
