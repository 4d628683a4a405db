"""Catalogues with one bug each: the clause that is about it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from catalogue import test_catalogues as sound
from foreign_tier import LinesCatalogue, LinesView
from offload_conformance.asynchronous import Loop
from offload_pulsar import PulsarCatalogue

from offload import Catalogue, CommittedStream, Entry
from offload.contracts.catalogue import EntryView
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import Absent, Corrupt, NotOffloaded
from offload.model.entry import entries_of_rows
from offload.model.excerpt import of_fragments
from offload.store.memory import MemoryStore

Bug = Callable[[pytest.MonkeyPatch], None]


def caught(suite: Any, folder: Path, clause: str) -> bool:
    """Return whether the clause fails on a place of its own."""
    suite.folder, suite.name = folder / "place", "place"
    loop = Loop(30)
    opened: list[Catalogue] = []

    def open_another() -> Catalogue:
        opened.append(suite.open_catalogue())
        return opened[-1]

    try:
        getattr(suite, f"test_{clause}")(loop.run, open_another)
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 - any error fails a clause
        return True
    finally:
        for each in opened:
            loop.run(each.aclose())
        loop.close()
    return False


def an_empty_place_has_no_streams(patch: pytest.MonkeyPatch) -> None:
    real = LinesCatalogue.streams

    async def streams(self: LinesCatalogue) -> list[str]:
        try:
            return await real(self)
        except NotOffloaded:
            return []

    patch.setattr(LinesCatalogue, "streams", streams)


def streams_come_in_any_order(patch: pytest.MonkeyPatch) -> None:
    real = LinesCatalogue.streams

    async def streams(self: LinesCatalogue) -> list[str]:
        return (await real(self))[::-1]

    patch.setattr(LinesCatalogue, "streams", streams)


def totals_are_too_small(patch: pytest.MonkeyPatch) -> None:
    _changed_views(patch, lambda committed: replace(committed, stored_size_bytes=1))


def versions_stay(patch: pytest.MonkeyPatch) -> None:
    _changed_views(patch, lambda committed: replace(committed, version=1))


def shares_are_whole_streams(patch: pytest.MonkeyPatch) -> None:
    real, seen = LinesCatalogue.view_of, dict[str, CommittedStream]()

    def view_of(self: LinesCatalogue, committed: CommittedStream) -> LinesView:
        return real(self, seen.setdefault(committed.stream, committed))

    patch.setattr(LinesCatalogue, "view_of", view_of)


def the_next_fragment_is_found(patch: pytest.MonkeyPatch) -> None:
    real = EntryView.find

    async def find(self: EntryView, offset: int) -> Entry | None:
        return await real(self, offset + 1)

    patch.setattr(LinesView, "find", find)


def the_last_fragment_has_every_time(patch: pytest.MonkeyPatch) -> None:
    async def first_since(self: LinesView, timestamp_ms: int) -> Entry | None:
        return entries_of_rows(self.committed.entries)[-1]

    patch.setattr(LinesView, "first_since", first_since)


def the_newest_time_is_early(patch: pytest.MonkeyPatch) -> None:
    async def last_timestamp_ms(self: LinesView) -> int | None:
        return int(self.committed.entries["last_timestamp_ms"][0])

    patch.setattr(LinesView, "last_timestamp_ms", last_timestamp_ms)


def all_fragments_have_one_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LinesView, "name_of", lambda self, row: "orders/0.1000.lines")


def handles_change(patch: pytest.MonkeyPatch) -> None:
    real, count = LinesView.open, [0]

    async def open_entry(self: LinesView, entry: Entry) -> ReadHandle:
        count[0] += 1
        path = self.folder.parent / self.name_of(_row_of(self, entry))
        path.write_bytes(b"".join(b"%d\n" % count[0] for _ in range(entry.records)))
        return await real(self, entry)

    patch.setattr(LinesView, "open", open_entry)


def what_was_dropped_is_damage(patch: pytest.MonkeyPatch) -> None:
    real = LinesView.open

    async def open_entry(self: LinesView, entry: Entry) -> ReadHandle:
        try:
            return await real(self, entry)
        except Absent as absent:
            raise Corrupt("file", absent.where, expected="present", found="absent") from absent

    patch.setattr(LinesView, "open", open_entry)


def _changed_views(patch: pytest.MonkeyPatch, change: Callable[[CommittedStream], CommittedStream]) -> None:
    real = LinesCatalogue.view_of
    patch.setattr(LinesCatalogue, "view_of", lambda self, committed: real(self, change(committed)))


def _row_of(view: LinesView, entry: Entry) -> Any:
    entries = view.committed.entries
    return entries[entries["first_offset"] == entry.first_offset]


@pytest.mark.parametrize(
    ("bug", "clause"),
    [
        (an_empty_place_has_no_streams, "absence_is_not_offloaded"),
        (streams_come_in_any_order, "streams_are_listed_and_read_whole"),
        (totals_are_too_small, "entries_cover_the_stream"),
        (versions_stay, "views_do_not_move_while_data_is_added"),
        (shares_are_whole_streams, "shares_of_a_view_are_views"),
        (the_next_fragment_is_found, "any_offset_is_found"),
        (the_last_fragment_has_every_time, "times_are_found"),
        (the_newest_time_is_early, "times_are_found"),
        (all_fragments_have_one_name, "names_tell_fragments_apart"),
        (handles_change, "handles_are_stable"),
        (what_was_dropped_is_damage, "what_was_dropped_is_absent"),
    ],
    ids=lambda case: getattr(case, "__name__", case),
)
def test_a_bug_is_caught_by_its_clause(
    bug: Bug, clause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not caught(sound.TestLines(), tmp_path / "sound", clause)
    bug(monkeypatch)
    assert caught(sound.TestLines(), tmp_path / "with the bug", clause)


def test_a_view_that_ends_before_damage_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a stream looks whole, and is shorter than it is."""
    real = PulsarCatalogue.view

    async def view(self: PulsarCatalogue, stream: str) -> EntryView:
        found = await real(self, stream)
        rows = found.committed.entries
        for row, entry in enumerate(entries_of_rows(rows)):
            try:
                async with await found.open(entry) as handle:
                    await handle.table()
            except Corrupt:
                return self.view_of(of_fragments(found.committed, rows[:row]))
        return found

    monkeypatch.setattr(PulsarCatalogue, "view", view)
    suite = sound.TestPulsar()
    suite.store, suite.uids = MemoryStore(), {}

    assert caught(suite, tmp_path, "damage_is_reported")
