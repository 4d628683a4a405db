"""Moving old entries into groups, and editing fragments that are in groups.

A root holds at most `factor` - 1 entries of each kind. When a commit brings a run to `factor`, its oldest
`factor` entries move into a new object of the next kind, and one entry names that: so a commit writes much
the same however long the stream is, and a fragment is at most three objects below the root.

Where a change edits fragments that stand in a group, that group and those above it are made anew (`edited`).

Invariant: collapsing changes no total and no fragment, only where entries stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final
from uuid import UUID

import numpy as np

from offload.contracts.change import Edit
from offload.formats.group import Group
from offload.model.entry import Entries, EntryKind, joined_entries
from offload.model.manifest import Manifest
from offload.model.tree import Tree, leaves_of, row_of

__all__ = ["edited"]


FACTOR: Final = 1024


def collapse(
    manifest: Manifest, *, factor: int, version: int, uuid: Callable[[], UUID]
) -> tuple[Manifest, list[tuple[Group, bytes]]]:
    """`manifest` with its long runs in groups, and the groups to store before `version` is created."""
    kinds = manifest.entries["kind"]
    if len(kinds) < factor or np.bincount(kinds, minlength=1).max() < factor:
        return manifest, []
    runs = {kind: manifest.entries[kinds == kind] for kind in EntryKind}
    groups = []
    for kind in (EntryKind.FRAGMENT, EntryKind.GROUP, EntryKind.KILO_GROUP):
        while len(runs[kind]) >= factor:
            group = Group(
                stream=manifest.stream,
                incarnation=manifest.incarnation,
                kind=EntryKind(kind + 1),
                uid=uuid(),
                version=version,
                entries=runs[kind][:factor],
            )
            raw = group.encode()
            groups.append((group, raw))
            runs[kind] = runs[kind][factor:]
            runs[group.kind] = joined_entries(runs[group.kind], group.entry(raw))
    return replace(manifest, entries=joined_entries(*(runs[kind] for kind in reversed(EntryKind)))), groups


async def edited(
    tree: Tree, edit: Edit, *, version: int, uuid: Callable[[], UUID]
) -> tuple[Entries, list[tuple[Group, bytes]]]:
    """The root's entries with the edit in them.

    With them the groups to store before `version` is created: those on the way down to the edited fragments,
    made anew. A group that becomes small stays one.
    """
    manifest, groups = tree.manifest, list[tuple[Group, bytes]]()

    async def below(entries: Entries) -> Entries:
        row = row_of(entries, edit.offset)
        one = entries[row : row + 1]
        if not one["kind"][0]:
            leaves = leaves_of(entries)
            return joined_entries(entries[:leaves], edit.edited(entries[leaves:]))
        group = Group(
            stream=manifest.stream,
            incarnation=manifest.incarnation,
            kind=EntryKind(one["kind"][0]),
            uid=uuid(),
            version=version,
            entries=await below(await tree.load(manifest, one)),
        )
        raw = group.encode()
        groups.append((group, raw))
        return joined_entries(entries[:row], group.entry(raw), entries[row + 1 :])

    return await below(manifest.entries), groups
