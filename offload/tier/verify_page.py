"""A listing in pages, and what a manifest names within one of them.

A page never spans two streams. Listing and manifest are in the same order: that of keys is that of offsets.
So of a stream of any length a page, the groups of its offsets, and those above them are all that is held.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, cast

from offload.errors import Corrupt, UnsupportedFormat
from offload.formats.keys import StreamKeys
from offload.formats.manifest import (
    NO_ENTRIES,
    CommittedStream,
    Entries,
    Entry,
    Manifest,
    decode_entries,
)
from offload.manifest.groups import key_of
from offload.manifest.tree import OFFSET_MAX, EntryTree, LoadGroup
from offload.store.port import Listed

PAGE_ROWS: Final = 1000
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The objects under one first part of keys, from behind `after` up to the last row or to the end."""

    part: str
    """With its slash; empty for objects whose keys have but one part."""

    after: str
    rows: list[Listed]
    is_last: bool
    """Whether it reaches to the end of the part."""

    def holds(self, key: str) -> bool:
        """Whether an object of this key would stand here."""
        return self.after < key and not self.is_before(key)

    def is_before(self, key: str) -> bool:
        """Whether the page ends before this key."""
        return not self.is_last and key > self.rows[-1].key


async def pages(
    listing: AsyncIterator[Listed], *, after: str, rows_max: int = PAGE_ROWS
) -> AsyncGenerator[Page, None]:
    """A listing that began behind `after`, in pages. The first one is of the part that `after` is in."""
    part, rows = part_of(after), list[Listed]()
    async with aclosing(cast("AsyncGenerator[Listed, None]", listing)):
        async for row in listing:
            begins = part_of(row.key) != part
            if begins or len(rows) == rows_max:
                yield Page(part=part, after=after, rows=rows, is_last=begins)
                part, after, rows = part_of(row.key), "" if begins else rows[-1].key, []
            rows.append(row)
    yield Page(part=part, after=after, rows=rows, is_last=True)


def part_of(key: str) -> str:
    """The first part of a key, with its slash; empty where it has but one."""
    head, slash, _ = key.partition("/")
    return head + slash if slash else ""


@dataclass(slots=True, kw_only=True)
class NamedHere:
    """What a manifest names within a page and leads to something live."""

    fragments: dict[str, Entry] = field(default_factory=dict)
    groups: dict[str, Entries] = field(default_factory=dict)
    """By their keys, the one row that names each."""

    unknown: list[tuple[int, int]] = field(default_factory=list)
    """The offsets that damaged groups are about: of an object there, nobody can say whether it is named."""

    def hides(self, offset: int) -> bool:
        """Whether a damaged group may have named a fragment that begins here."""
        return any(first <= offset < following for first, following in self.unknown)


async def named_in(page: Page, manifest: Manifest, load: LoadGroup) -> NamedHere:
    """Look the page's keys up in the manifest's tree. A damaged group names nothing here, and is no error."""
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


async def _add_fragments(named: NamedHere, page: Page, manifest: Manifest, load: LoadGroup) -> None:
    keys = StreamKeys(manifest.stream)
    start = _offset_in(page.after, keys.data, otherwise=0)
    async with aclosing(EntryTree(manifest, load).walk(start)) as runs:
        async for run in runs:
            for entry in decode_entries(run):
                key = keys.fragment(entry.first_offset, entry.attempt)
                if page.is_before(key):
                    return
                if page.holds(key):
                    named.fragments[key] = entry


async def _add_groups(
    named: NamedHere,
    page: Page,
    manifest: Manifest,
    entries: Entries,
    load: LoadGroup,
) -> None:
    """Groups have the offsets of what is below them, so those of other offsets are not descended into."""
    groups = StreamKeys(manifest.stream).groups
    start = max(_offset_in(page.after, groups, otherwise=0), manifest.first_offset)
    end = OFFSET_MAX if page.is_last else _offset_in(page.rows[-1].key, groups, otherwise=OFFSET_MAX)
    for row in range(int((entries["kind"] > 0).sum())):  # larger kinds come first
        one = entries[row : row + 1]
        first = int(one["first_offset"][0])
        if first > end or first + int(one["records"][0]) <= start:
            continue
        key = key_of(manifest.stream, one)
        if page.holds(key):
            named.groups[key] = one
        if one["kind"][0] > 1:
            await _add_groups(named, page, manifest, await load(manifest, one), load)


def _offset_in(key: str, prefix: str, *, otherwise: int) -> int:
    """The offset that a key begins with behind `prefix`."""
    digits = key[len(prefix) :][:_DIGITS]
    if not key.startswith(prefix) or len(digits) < _DIGITS or not (digits.isascii() and digits.isdigit()):
        return otherwise
    return min(int(digits), OFFSET_MAX)
