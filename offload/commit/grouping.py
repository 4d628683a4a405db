"""Moving old entries into groups, and editing fragments that are in groups.

A root holds at most `factor` - 1 entries of each kind. When a commit brings a run to `factor`, its oldest
`factor` entries move into a new object of the next kind, and one entry names that object. So a commit writes
about as much for a long stream as for a short one, and a fragment is at most three objects below the root.

If a change edits fragments in a group, new groups replace that group and those above it (`edited`).

Invariant: collapsing changes no total and no fragment, only the object that holds an entry.
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
"""The number of entries in a group, if the tier's anchor does not say otherwise."""


def collapse(
    manifest: Manifest, *, factor: int, version: int, uuid: Callable[[], UUID]
) -> tuple[Manifest, list[tuple[Group, bytes]]]:
    """Return `manifest` with its long runs in groups, and the groups to store before `version` is created."""
    # Most commits end here: a run becomes long once in `factor` fragments.
    kinds = manifest.entries["kind"]
    if len(kinds) < factor or np.bincount(kinds, minlength=1).max() < factor:
        return manifest, []
    runs = {kind: manifest.entries[kinds == kind] for kind in EntryKind}
    groups = []
    # Small kinds come first, because a new group may complete a run of groups in turn. One commit may append
    # more than `factor` fragments, so a run may fill several groups.
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
    # Groups always take the oldest entries, so larger kinds hold lower offsets. In this order the root's
    # entries ascend by offset.
    return replace(manifest, entries=joined_entries(*(runs[kind] for kind in reversed(EntryKind)))), groups


async def edited(
    tree: Tree, edit: Edit, *, version: int, uuid: Callable[[], UUID]
) -> tuple[Entries, list[tuple[Group, bytes]]]:
    """Return the root's entries after the edit, and the groups to store before `version` is created.

    These groups replace those on the path from the root to the edited fragments. A group that becomes small
    is not merged with others.
    """
    manifest, groups = tree.manifest, list[tuple[Group, bytes]]()

    async def below(entries: Entries) -> Entries:
        row = row_of(entries, edit.offset)
        one = entries[row : row + 1]
        if not one["kind"][0]:
            # The edit gets the fragments of this run alone. Fragments that are spread over several groups do
            # not fit, and the edit refuses them.
            leaves = leaves_of(entries)
            return joined_entries(entries[:leaves], edit.edited(entries[leaves:]))
        # A group never changes, since readers and caches hold it. The new one gets a fresh name and the next
        # root's number: under the old number, a sweep would take it for an unused group and delete it.
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
