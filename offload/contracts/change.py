"""The contract of a change: what `LedgerOffloader.commit_manifest` is given.

Each change answers two questions about a manifest. `apply` says what the manifest becomes, or why the
change does not fit. `verdict` says whether the change is in already. This decides a commit whose reply was
lost: by content, never by the reply (docs/commit-protocol.md, step 1). The changes themselves are in
`offload.commit`, by who makes them: `writer`, `job`, `guest`, `rebuild`.
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
    """Whether a change was committed, as far as one manifest shows it."""

    IN = auto()
    OUT = auto()
    UNKNOWN = auto()
    """The manifest shows it no longer: what the change named was trimmed, or copied into another fragment."""


class Change(ABC):
    """One change of a manifest."""

    __slots__ = ()

    @abstractmethod
    def apply(self, base: Manifest | None) -> Manifest:
        """Return `base` with the change in it; version and commit ids are still those of `base`.

        Raises `Fenced`, `StreamDeleted` or `Conflict` if the precondition does not hold, and `Misuse` if
        nobody but the caller can have caused that.
        """

    @abstractmethod
    async def verdict(self, tree: Tree) -> CommitVerdict:
        """Return whether the manifest of `tree` holds the change.

        Raises `Fenced` or `StreamDeleted` if its author may not commit on this manifest: a writer that was
        fenced stops, even if its last commit landed. Any other error leaves the verdict open.
        """

    @property
    def edit(self) -> Edit | None:
        """The fragments that the change replaces where they are, if it does that.

        `apply` leaves the entries of such a change as they are.
        """
        return None


@dataclass(frozen=True, slots=True)
class Edit:
    """Other fragments in the place of some that stand together: in the root, or in one group."""

    offset: int
    """A live one, among the fragments to edit."""

    edited: Callable[[Entries], Entries]
    """What all fragments that stand together around `offset` become. Raises `Conflict` if it does not fit."""
