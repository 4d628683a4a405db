"""The objects that a manifest names within one page of a listing.

Listing and manifest are in the same order, because the order of keys is that of offsets. So for a stream of
any length, memory holds one page, the groups of its offsets, and the groups above those.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from offload.commit.groups import entry_key
from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.entry import NO_ENTRIES, Entries, Entry, entries_of_rows
from offload.model.manifest import CommittedStream, Manifest
from offload.model.position import OFFSET_MAX
from offload.model.tree import EntryTree, LoadGroup
from offload.upkeep.pages import ListedPage

PAGE_ROWS: Final = 1000
_DIGITS: Final = 20


@dataclass(slots=True, kw_only=True)
class NamedHere:
    """The objects that a manifest names within a page, and that lead to live data."""

    fragments: dict[str, Entry] = field(default_factory=dict)
    groups: dict[str, Entries] = field(default_factory=dict)
    """By key, the one row that names each group."""

    unknown: list[tuple[int, int]] = field(default_factory=list)
    """The offsets of damaged groups. Nobody can say whether an object there is named."""

    def hides(self, offset: int) -> bool:
        """Return whether a damaged group may have named a fragment that begins at this offset."""
        return any(first <= offset < following for first, following in self.unknown)


async def named_in(page: ListedPage, manifest: Manifest, load: LoadGroup) -> NamedHere:
    """Look up the page's keys in the manifest's tree.

    A damaged group names nothing here, and raises nothing: it is reported when its own key is judged.
    """
    named = NamedHere()

    async def load_or_skip(base: CommittedStream, one: Entries) -> Entries:
        try:
            return await load(base, one)
        except (Corrupt, UnsupportedFormat):
            first = int(one["first_offset"][0])
            named.unknown.append((first, first + int(one["records"][0])))
            return NO_ENTRIES

    keys = StreamKeys(manifest.stream)
    if page.after < keys.data + ":" and not page.is_before(keys.data):
        await _add_fragments(named, page, manifest, load_or_skip)
    if page.after < keys.groups + "~" and not page.is_before(keys.groups):
        await _add_groups(named, page, manifest, manifest.entries, load_or_skip)
    return named


async def _add_fragments(named: NamedHere, page: ListedPage, manifest: Manifest, load: LoadGroup) -> None:
    keys = StreamKeys(manifest.stream)
    start = _offset_in(page.after, keys.data, otherwise=0)
    async with aclosing(EntryTree(manifest, load).walk(start)) as runs:
        async for run in runs:
            for entry in entries_of_rows(run):
                key = keys.fragment(entry.first_offset, entry.attempt)
                if page.is_before(key):
                    return
                if page.holds(key):
                    named.fragments[key] = entry


async def _add_groups(
    named: NamedHere,
    page: ListedPage,
    manifest: Manifest,
    entries: Entries,
    load: LoadGroup,
) -> None:
    """Add the groups of the page. A group covers the offsets below it, so others are not descended into."""
    groups = StreamKeys(manifest.stream).groups
    start = max(_offset_in(page.after, groups, otherwise=0), manifest.first_offset)
    end = OFFSET_MAX if page.is_last else _offset_in(page.rows[-1].key, groups, otherwise=OFFSET_MAX)
    for row in range(int((entries["kind"] > 0).sum())):  # larger kinds come first
        one = entries[row : row + 1]
        first = int(one["first_offset"][0])
        if first > end or first + int(one["records"][0]) <= start:
            continue
        key = entry_key(manifest.stream, one)
        if page.holds(key):
            named.groups[key] = one
        if one["kind"][0] > 1:
            await _add_groups(named, page, manifest, await load(manifest, one), load)


def _offset_in(key: str, prefix: str, *, otherwise: int) -> int:
    """Return the offset with which a key begins behind `prefix`; `otherwise` if it has none."""
    digits = key[len(prefix) :][:_DIGITS]
    if not key.startswith(prefix) or len(digits) < _DIGITS or not (digits.isascii() and digits.isdigit()):
        return otherwise
    return min(int(digits), OFFSET_MAX)
