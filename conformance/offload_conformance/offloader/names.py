"""Streams by name: any names, and any number of streams, are kept apart.

Names come in pairs that a layer between an offloader and its place might take for one name: a file system
that ignores case or Unicode forms, a pattern, a prefix, a column that cuts long text.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import pytest

from offload.contracts.offloader import LedgerOffloader
from offload.formats.keys import StreamKeys
from offload.ground.errors import NotOffloaded, StreamDeleted
from offload.native.layout_check import native_or_none
from offload.write.writer import StreamWriter
from offload_conformance.asynchronous import Run
from offload_conformance.ledgers import drawn_ledger
from offload_conformance.offloader.base import OffloaderClauses, chunks_of, committed, deleted
from offload_conformance.offloader.edges import TWINS
from offload_conformance.opened import Open

AT_ONCE: Final = 8


class NameClauses(OffloaderClauses):
    """The clauses on names of streams: they are kept apart, and all are listed."""

    def test_streams_are_listed_by_name(self, run: Run, offloader: LedgerOffloader) -> None:
        """A stream of any name is listed under exactly that name, in order."""
        names = names_in(self.pairs(offloader))
        for name in random.sample(names, len(names)):
            run(StreamWriter.claim(offloader, name))

        found = run(offloader.streams())
        missing, unknown = sorted({*names} - {*found}), sorted({*found} - {*names})
        assert found == names, f"missing in the list: {missing[:3]}; listed but never created: {unknown[:3]}"
        assert [run(offloader.load_manifest(name)).stream for name in names] == names

    @pytest.mark.parametrize("swapped", [False, True], ids=["first", "second"])
    def test_streams_do_not_mix(
        self, run: Run, offloader: LedgerOffloader, other: LedgerOffloader, swapped: bool
    ) -> None:
        """A change to one stream affects no other, however similar their names are."""
        pairs = self.pairs(offloader)
        names = names_in(pairs)
        condemned = {pair[swapped] for pair in pairs} - {pair[not swapped] for pair in pairs}
        ledgers = {name: drawn_ledger(2) for name in names}
        writers = {name: run(StreamWriter.claim(offloader, name)) for name in names}
        attempts = {name: run(committed(writers[name], ledgers[name])) for name in names}
        broken_off = {name: run(writers[name].prepare([9]))[0] for name in condemned}

        for name in condemned:
            run(other.delete_offloaded(broken_off[name]))
            run(deleted(writers[name]))
            run(other.delete_offloaded(attempts[name]))

        for name in names:
            if name in condemned:
                with pytest.raises(StreamDeleted):
                    run(other.load_manifest(name))
                with pytest.raises(NotOffloaded):
                    run(other.read_offloaded(attempts[name]))
            else:
                assert run(other.load_manifest(name)).commit_id == writers[name].manifest.commit_id
                assert run(chunks_of(other, attempts[name])) == [*ledgers[name].chunks]
        assert run(other.streams()) == names

    def pairs(self, offloader: LedgerOffloader) -> Sequence[tuple[str, str]]:
        """Return some of `TWINS`, or all of them. A tier that this project makes of a store needs few."""
        taken = [pair for pair in TWINS if all(has_room(offloader, name) for name in pair)]
        return random.sample(taken, min(self.many_streams // 10, len(taken)))

    def test_streams_are_all_listed(self, run: Run, opened: Open) -> None:
        """`streams` lists every stream once, however many there are, also deleted ones.

        The list belongs to the caller, who may change it.
        """
        offloader, other = opened(), opened()
        run(offloader.open(create=True))
        names = [f"stream-{n}" for n in range(self.many_streams)]

        async def begun(name: str) -> StreamWriter:
            return await StreamWriter.claim(offloader, name)

        async def scenario() -> None:
            for start in range(0, len(names), AT_ONCE):
                writers = await asyncio.gather(*map(begun, names[start : start + AT_ONCE]))
                if random.randrange(8) == 0:
                    await deleted(writers[0])

        run(scenario())

        for _ in range(2):
            found = run(other.streams())
            assert found == sorted(names)
            found.clear()


def has_room(offloader: LedgerOffloader, stream: str) -> bool:
    """Return False if the keys of a stream of this name are longer than the store of our tier declares."""
    ours = native_or_none(offloader)
    longest = StreamKeys(stream).group(0, 0, UUID(int=0), 3)
    return ours is None or len(longest) <= ours.data.capabilities.key_size_bytes_max


def names_in(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the names, each once, in order."""
    return sorted({name for pair in pairs for name in pair})
