"""Claims about cursors: positions that fall, notes that are full, and moves while a note is saved."""

from __future__ import annotations

import asyncio

import pytest

from offload.ground.errors import Misuse
from offload.managed import cursors as cursors_module
from offload.managed.cursors import CursorNote, Cursors, decode_cursors


class Place(CursorNote):
    """Keeps the note in memory. A save waits until it may end."""

    def __init__(self) -> None:
        self.note: bytes | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()

    @property
    def where(self) -> str:
        return "memory"

    async def load(self) -> bytes | None:
        return self.note

    async def save(self, note: bytes) -> None:
        await self.may_end.wait()
        self.note = note

    @property
    def saved(self) -> dict[str, int]:
        """The positions in the note."""
        assert self.note is not None
        return decode_cursors(self.note, where="memory")


def test_a_position_falls_only_if_its_cursor_is_reset() -> None:
    cursors = Cursors(Place(), stream="orders")
    cursors.open("a", 5, end=10)

    cursors.move("a", 3, end=10)
    assert cursors.positions == {"a": 5}
    cursors.move("a", 8, end=10)
    assert cursors.positions == {"a": 8}
    cursors.move("a", 3, end=10, may_fall=True)

    assert cursors.positions == {"a": 3}
    assert cursors.open("a", 7, end=10) == 3  # it is there already
    with pytest.raises(Misuse, match="a cursor cannot be at 11"):
        cursors.move("a", 11, end=10)


def test_a_cursor_for_which_the_note_has_no_room_is_refused_and_the_others_are_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors_module, "NOTE_SIZE_BYTES_MAX", 150)

    async def scenario() -> None:
        place = Place()
        cursors = Cursors(place, stream="orders")
        for name in "abcdefgh":
            cursors.open(name, 0, end=10)
        with pytest.raises(Misuse, match="9 cursors do not fit 150 bytes"):
            cursors.open("x" * 100, 0, end=10)

        await cursors.save()

        assert list(place.saved) == list("abcdefgh")

    asyncio.run(scenario())


def test_a_position_that_moves_while_the_note_is_saved_is_saved_by_the_next() -> None:
    async def scenario() -> None:
        place = Place()
        cursors = Cursors(place, stream="orders")
        cursors.open("a", 1, end=10)
        place.may_end.clear()
        saving = asyncio.create_task(cursors.save())
        await asyncio.sleep(0)
        cursors.move("a", 2, end=10)
        place.may_end.set()
        await saving
        assert place.saved == {"a": 1}

        assert cursors.is_moved
        await cursors.save()

        assert place.saved == {"a": 2}
        assert not cursors.is_moved

    asyncio.run(scenario())
