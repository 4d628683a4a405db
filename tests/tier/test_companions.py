"""Tests of companions: objects that another program made for a fragment live and die with it.

This program makes none and knows no name of one. It judges each by its key, together with its fragment.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_conformance.ledgers import ledger_of
from sweep_yard import KEYS, Yard, run

from offload import Misuse, ObjectStoreOffloader, StreamWriter, verify
from offload.formats.keys import StreamKeys
from offload.ground.errors import Absent
from offload.store.memory import MemoryStore
from offload.upkeep.sweep.page import name_of, row_key, rows_named
from offload.upkeep.sweep.tier import sweep

NAMES: Final = ("bloom", "keys", "a", "12345678", "fragmen")
"""Names before and behind `fragment`, which the listing of a folder puts on different pages."""

words = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=8).filter(
    lambda word: not word.startswith("fragment")
)


def companions_of(key: str) -> list[str]:
    parsed = KEYS.parse_fragment(key)
    assert parsed is not None
    return [KEYS.companion(*parsed, name) for name in NAMES]


@given(st.integers(0, 2**64 - 1), st.uuids(), words)
def test_a_key_names_one_companion(first_offset: int, attempt: UUID, name: str) -> None:
    key = KEYS.companion(first_offset, attempt, name)

    assert KEYS.parse_companion(key) == (first_offset, attempt, name)
    assert KEYS.parse_data(key) == (first_offset, attempt)
    assert KEYS.parse_fragment(key) is None


@pytest.mark.parametrize("name", ["", "fragment", "123456789", "Keys", "a.b", "a/b", "\n", "é"])
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(Misuse, match="a companion's name has"):
        KEYS.companion(0, UUID(int=1), name)


@given(st.integers(0, 2**64 - 1), st.uuids(), words)
def test_a_sweeps_note_names_companions(first_offset: int, attempt: UUID, name: str) -> None:
    key = KEYS.companion(first_offset, attempt, name)

    row = name_of(KEYS, key)

    assert row is not None
    assert row_key(KEYS, rows_named([row])[0]) == key


@pytest.mark.parametrize("page_keys_max", [1, 2, 3, 5, 1000])
def test_a_sweep_deletes_the_companions_of_what_goes_and_no_other(page_keys_max: int) -> None:
    yard = Yard()
    live = yard.fragments(5)
    yard.trim(2)
    running = yard.upload(yard.prepare())
    dropped_attempt = yard.prepare()
    dropped = yard.upload(dropped_attempt)
    yard.abort(dropped_attempt)
    for key in (*live, running, dropped):
        yard.objects.update(dict.fromkeys(companions_of(key), b"made by another program"))
    lone = companions_of(KEYS.fragment(3, UUID(int=7)))[0]  # its fragment is gone already
    yard.objects[lone] = b""

    run(sweep(yard.store, env=yard.env, grace_seconds=0, page_keys_max=page_keys_max))

    stays = [*live[2:], running]
    wanted = {*stays, *(each for key in stays for each in companions_of(key))}
    assert {key for key in yard.objects if KEYS.parse_data(key)} == wanted


def test_a_sweep_notes_companions_and_a_later_one_deletes_them() -> None:
    yard = Yard()
    live = yard.fragments(3)
    yard.trim(1)
    yard.objects.update(dict.fromkeys(companions_of(live[0]), b""))

    run(sweep(yard.store, env=yard.env, grace_seconds=60))
    assert {live[0], *companions_of(live[0])} <= set(yard.objects)
    yard.seconds += 61
    run(sweep(yard.store, env=yard.env, grace_seconds=60))

    assert not {live[0], *companions_of(live[0])} & set(yard.objects)


def test_unfinished_uploads_of_companions_are_aborted_with_those_of_their_fragments() -> None:
    yard = Yard()
    running, dropped = yard.prepare(), yard.prepare()
    yard.abort(dropped)
    keys = [KEYS.companion(0, attempt, "keys") for attempt in (running, dropped)]
    for key in keys:
        run(yard.store.start_upload(key))
    yard.seconds += 30 * 86_400

    run(sweep(yard.store, env=yard.env, grace_seconds=0))

    assert [upload.key for upload in run(yard.store.unfinished_uploads(""))] == keys[:1]


def test_deleting_an_attempt_deletes_its_companions() -> None:
    objects: dict[str, bytes] = {}

    async def main() -> None:
        tier = ObjectStoreOffloader(MemoryStore(objects=objects))
        writer = await StreamWriter.claim(tier, "orders")
        (attempt,) = await writer.prepare([0])
        receipt = await tier.offload(ledger_of(3), attempt, manifest=writer.manifest, extra_metadata={})
        keys = StreamKeys("orders")
        for entry in receipt.entries:
            objects[keys.companion(entry.first_offset, entry.attempt, "keys")] = b"x"
        assert len([key for key in objects if keys.parse_data(key)]) == 2

        await tier.delete_offloaded(attempt)

        assert not [key for key in objects if keys.parse_data(key)]

    asyncio.run(main())


def test_a_verify_says_whose_companion_an_object_is() -> None:
    objects: dict[str, bytes] = {}
    keys = StreamKeys("orders")
    unnamed = keys.companion(0, UUID(int=5), "keys")

    async def main() -> None:
        tier = ObjectStoreOffloader(MemoryStore(objects=objects))
        writer = await StreamWriter.claim(tier, "orders")
        await writer.offload([ledger_of(3)])
        (fragment,) = (key for key in objects if keys.parse_fragment(key))
        named = fragment.replace(".fragment", ".keys")
        objects.update({named: b"x", unnamed: b"x"})

        report = await verify(tier)

        found = {each.key: each.reason for each in report.unreferenced}
        assert not report.damages
        assert "made by a program that knows such companions" in found[named]
        assert "that no manifest names" in found[unnamed]

    asyncio.run(main())


def test_a_companion_does_not_hide_that_its_fragment_is_gone() -> None:
    yard = Yard()
    live = yard.fragments(3)
    yard.trim(1)
    yard.objects.update(dict.fromkeys(companions_of(live[1]), b""))
    dict.pop(yard.objects, live[1])

    report = run(sweep(yard.store, env=yard.env, grace_seconds=0))

    (error,) = report.streams[0].errors
    assert isinstance(error, Absent)
    assert error.where == live[1]
