"""The contract of a change, which is passed to `LedgerOffloader.commit_manifest`.

Each change has two methods. `apply` returns the changed manifest, or raises if the change does not fit.
`verdict` says whether a manifest contains the change already. It decides a commit whose reply was lost: by
content, never by the reply (docs/commit-protocol.md, step 1). The changes are in `offload.commit`, by author:
`writer`, `job`, `guest`, `rebuild`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from offload.model.entry import (
    Entries,
)
from offload.model.manifest import Manifest
from offload.model.tree import Tree

__all__ = ["Change", "CommitVerdict"]


class CommitVerdict(Enum):
    """The answer of one manifest to the question whether a change was committed."""

    IN = auto()
    OUT = auto()
    UNKNOWN = auto()
    """The manifest no longer shows it: the change's data was trimmed, or copied into another fragment."""


class Change(ABC):
    """One change of a manifest."""

    __slots__ = ()

    @abstractmethod
    def apply(self, base: Manifest | None) -> Manifest:
        """Return `base` with the change applied. The commit sets the version and the commit ids.

        Until then they are those of `base`. Only the fence of a rebuild sets a higher version itself.

        Raises `Fenced`, `StreamDeleted` or `Conflict` if the precondition does not hold, and `Misuse` if
        only the caller can have caused that.
        """

    @abstractmethod
    async def verdict(self, tree: Tree) -> CommitVerdict:
        """Return whether the manifest of `tree` contains the change.

        Raises `Fenced` or `StreamDeleted` if the change's author may not commit on this manifest: a fenced
        writer stops, even if its last commit landed. Any other error leaves the verdict open.
        """

    @property
    def edit(self) -> Edit | None:
        """The fragments that the change replaces in their places. None if it replaces none.

        `apply` leaves the entries as they are for such a change.
        """
        return None


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of fragments whose entries are together: in the root, or in one group."""

    offset: int
    """A live offset of a fragment to replace. It leads to the root's entries, or to the group's."""

    edited: Callable[[Entries], Entries]
    """Return the new entries for all entries of that root or group. Raises `Conflict` if it does not fit."""
