"""Processes that change a shared note of the stream, and what they know of its value.

Each change adds a word that no other change adds. So a value says which changes are in it:

    a change that returned       is in each value that is loaded later in this life of the stream, once
    a change that was refused    is in no value
    any other change             is in the values from some moment on, or in none

Nothing holds once the life has ended: a sweep may have deleted its note, and a process that stalls may begin
it again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from protocol_judge import LIVE
from protocol_world import KEYS, STREAM

from offload.ground.errors import NotOffloaded, TryAgain
from offload.native.shared_note import NOTES_KEPT, SharedNote

if TYPE_CHECKING:
    from simulation.world import Process, World

NAME: Final = "group.g1"


@dataclass
class KnownWords:
    """The words of one life of the stream."""

    done: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def check(self, value: bytes | None, expected: set[str]) -> None:
        """Check a value that was loaded when the words `expected` had been done."""
        words = (value or b"").decode().split()
        assert len(words) == len(set(words)), f"a change is in a note twice: {words}"
        assert expected <= set(words), f"a note lost {expected - set(words)}"
        assert not self.refused & set(words), f"a refused change is in a note: {self.refused & set(words)}"


@dataclass
class Notebook:
    """What all processes of a world know of the note."""

    lives: dict[UUID, KnownWords] = field(default_factory=lambda: defaultdict(KnownWords))


async def keep(process: Process) -> None:
    """Change and load the note, again and again."""
    number = 0
    while await process.rest(process.random.choice((0.0, 0.1, 0.1, 3.0))):
        number += 1
        try:
            await process.do(_use(process, f"{process.name}:{number}"))
        except (NotOffloaded, *process.failures):
            continue


async def _use(process: Process, word: str) -> None:
    note = await SharedNote.of(process.offloader, STREAM, NAME, env=process.env)
    known = process.world.notebook.lives[note.incarnation]
    expected = set(known.done)
    if process.random.random() < 0.2:
        value = await note.load()
        if _lives(process, note):
            known.check(value, expected)
        return
    try:
        value = await note.change(lambda old: b" ".join([*(old or b"").split(), word.encode()]))
    except TryAgain:
        if not process.lived_through_a_loss and _lives(process, note):
            known.refused.add(word)
        raise
    if _lives(process, note):
        known.done.add(word)
        known.check(value, expected | {word})
        process.world.happened("notes changed")


def _lives(process: Process, note: SharedNote) -> bool:
    """Return True if the life of the note has not ended."""
    root = process.world.judge.root
    return root is not None and root.state == LIVE and root.incarnation == note.incarnation.bytes


async def check_left(world: World) -> None:
    """Check the note at the end: no change is lost, and a sweep has left two objects at most."""
    last = world.process("last")
    note = await SharedNote.of(last.offloader, STREAM, NAME, env=last.env)
    known = world.notebook.lives[note.incarnation]
    known.check(await note.load(), known.done)
    names = [KEYS.parse_note(key) for key in world.objects if key.startswith(KEYS.notes)]
    assert len(names) <= NOTES_KEPT, f"notes are left that nobody needs: {names}"
    assert all(name is not None and name.incarnation == note.incarnation for name in names)
