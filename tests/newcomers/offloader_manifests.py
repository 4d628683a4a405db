"""Mistakes with manifests, epochs and the list of streams."""

from __future__ import annotations

from newcomers.ledgers import (
    attempt_of,
    copied,
    entries_of,
    ledger,
)
from newcomers.registry import Open, bug
from newcomers.table import Table
from offload.formats.keys import escape
from offload.model.attempt import Attempt
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.upkeep.retention import delete_stream


async def _only_narrows(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, 8, size=40_000))
    parts = await entries_of(tier, await tier.load_manifest("s"))
    assert len(parts) > 2
    attempt = attempt_of("s", parts[0])
    for offsets, expected in (
        (range(1), parts[:1]),
        (range(parts[0].next_offset), parts[:1]),
        (range(parts[0].next_offset, parts[1].next_offset), parts[1:2]),
        (range(parts[1].first_offset + 1, parts[1].first_offset + 2), parts[1:2]),
        (range(1, parts[1].first_offset + 1), parts[:2]),
        (range(2**64), parts),
    ):
        handle = await tier.read_offloaded(attempt, only=offsets)
        assert (handle.first_offset, handle.next_offset) == (
            expected[0].first_offset,
            expected[-1].next_offset,
        ), offsets


@bug(_only_narrows)
class OnlyEndsOneFurther(Table):
    """`only` is asked of the database with `BETWEEN`, which includes the end.

    Breaks "narrows it to the fragments that hold some of these offsets": one fragment too many is fetched.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        return await super().entries_of(
            attempt, manifest, None if only is None else range(only.start, only.stop + 1)
        )


@bug(_only_narrows)
class OnlyBeginsBehindTheFirst(Table):
    """`only` selects fragments that begin within it, and loses the one that holds its first offset.

    Breaks "narrows it to the fragments that hold some of these offsets": the wanted record is not there.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        found = await super().entries_of(attempt, manifest, None)
        return found if only is None else [each for each in found if each.first_offset in only]


async def _streams_are_all(open_: Open) -> None:
    tier = open_()
    names = ["a-b", "a.b", "a b", "ä", "z", "Z", "a/b"]
    for name in names:
        await copied(tier, name, ledger(0))
    await delete_stream(tier, "z")
    assert await open_().streams() == sorted(names)


@bug(_streams_are_all)
class StreamsInOrderOfTheirEscapes(Table):
    """Streams are sorted by their names in keys, where `.` is `%2E`.

    Breaks "in order of names": a merge with another list of streams goes wrong.
    """

    async def streams(self) -> list[str]:
        return sorted(await super().streams(), key=escape)
