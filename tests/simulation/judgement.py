"""The judge of a simulated world, who also knows what a broker wrote, and what holds while roots are lost.

Nothing in the protocol deletes a newest root, so its invariants say nothing of a loss. While roots are lost,
these hold in their place:

    no fragment that the lost root named is deleted, for as long as it proves the loss: the newest root of
    that moment neither names nor runs it, and is older than the `base_version` of the fragment
    no stream is begun while such a fragment exists
    the end of a rebuild names all that the lost root named and that was never deleted

If people live on while roots are lost, or while the stream is rebuilt, this may be lost, and no more:

    what was committed between the loss and the fence of the rebuild
    what proves the loss no more: numbers overtook its `base_version`, by commits on an older root
    what was trimmed, aborted or deleted before the loss, and comes back by the rebuild: a sweep that looked
    before the loss may still delete it
    what a torn object claims to hold, as no store should leave one: a rebuild reads no more than its tail
    what the lost roots named behind the end of an older root that a sleeper brought back: if a writer goes on
    from there, its epoch is higher, and the rebuild prefers its fragments. The others are left out, and stay
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from protocol_judge import (
    DATA,
    GROUP,
    LIVE,
    REBUILDING,
    ROOT,
    Judge,
    Root,
    end_of,
    fragment_name,
    read_root,
)
from protocol_world import source

from offload.errors import Corrupt
from offload.formats.fragment import TRAILER, FragmentTail, FragmentTrailer
from offload.model.manifest import Manifest
from simulation.broker import Broker


@dataclass
class Loss:
    """Roots that are lost, and what the newest of them named."""

    root: Root
    history: dict[int, Root]
    """The true history until then. It goes on where a sleeper brings the lost roots back."""
    condemned: set[str]
    """What a sweep may have condemned before."""
    overtaken: set[str] = field(default_factory=set)
    """Fragments that prove nothing any more, and groups: a sweep that looks may delete them."""
    trimmed: int = 0
    """Where the stream begins by roots that were committed since."""
    branched: int = 2**64
    """Where the first of these ends: a writer may have gone on from there."""


@lru_cache(4096)
def base_version(data: bytes) -> int:
    """The root that the writer of this fragment knew; 0 if the fragment is torn."""
    try:
        return FragmentTrailer.decode(data[-TRAILER.size_bytes :], where="a fragment").base_version
    except Corrupt:
        return 0


def source_epoch(data: bytes) -> int:
    """The leader epoch of the broker that this fragment records; 0 if there is none."""
    try:
        return FragmentTail.decode(data, where="a fragment", size_bytes=len(data)).source_epoch
    except Corrupt:
        return 0


class SimulationJudge(Judge):
    """See the module's head."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(source)
        self.broker = broker
        self.asked: set[bytes] = set()
        """The commits of all that were decided while no root was lost: they may land at any time."""
        self.loss: Loss | None = None
        self.last: Loss | None = None
        """The last one that a sleeper ended."""
        self.losses = 0
        """Begun and ended ones together: whoever sees another number has lived through one."""
        self.healed = 0
        """How many losses ended by a root that was made on the lost one."""
        self.fence = 0
        """The number of the last rebuild; what was told before it is over."""
        self.all_stopped = False
        """Whether nobody is alive, and nothing is under way."""
        self.torn: set[str] = set()
        """The keys of objects that a crash left damaged. A rebuild, which reads tails, may name them."""
        self.perhaps_gone: set[str] = set()
        """What the newest root may name though a sweep may delete it, since people lived on."""

    def is_sources(self, first_offset: int, next_offset: int, data: bytes) -> bool:
        """See `Broker.wrote`."""
        assert self.root is not None
        return self.broker.wrote(self.root, first_offset, next_offset, data)

    @property
    def is_proven(self) -> bool:
        """Whether some object proves a loss to everybody who looks now."""
        if self.loss is None:
            return False
        if not self.newest:
            return any(DATA.fullmatch(key) for key in self.objects)
        return any(self._proves(key, data) for key, data in self.objects.items())

    def asks(self, key: str, data: bytes, *, decided_before: bool) -> None:
        """Somebody is about to create this object, perhaps by what they saw before the last loss."""
        if ROOT.fullmatch(key) and (self.loss is None or decided_before):
            self.asked.add(read_root(data).commit_id)

    def forget_roots(self, *, above: int = 0) -> None:
        """See `Judge.forget_roots`. Whoever lives on may have looked before."""
        assert self.root is not None
        self.loss, self.losses = Loss(self.root, self.history, set(self._condemned)), self.losses + 1
        super().forget_roots(above=above)
        self._look_around()

    def stored(self, key: str, before: bytes | None) -> None:
        """See `Judge.stored`."""
        super().stored(key, before)
        self._look_around()

    def removed(self, key: str) -> None:
        """See `Judge.removed`."""
        name = key.rpartition("/")[2]
        if self.loss is not None and name in self.loss.root.named and name not in self.loss.overtaken:
            self.violations.append(f"{name} was deleted: a lost root names it, and it proves the loss")
        super().removed(key)
        self._look_around()

    def told(self, manifest: Manifest, process: str) -> None:
        """See `Judge.told`. What is told while roots are lost may be lost."""
        if self.loss is None and manifest.version > self.fence:
            super().told(manifest, process)

    def _root_stored(self, number: int, root: Root) -> None:
        before = self.root
        if root.state == REBUILDING and self.loss is None and self.last is not None and number > self.newest:
            # An operator had begun before a sleeper brought the lost roots back. What came behind is lost.
            self.loss, self.losses, lost = self.last, self.losses + 1, self.last.root
            self._told[lost.incarnation] = min(self._told.get(lost.incarnation, 0), lost.next_offset)
            self._forget(lost.incarnation, lost.next_offset)
            self.last.overtaken |= self._condemned
            self.last.trimmed = max(self.last.trimmed, before.first_offset if before else 0)
        super()._root_stored(number, root)
        if self.loss is None or self.newest != number:
            return
        is_birth = root.state == LIVE and not any(root.parent_commit_id)
        if is_birth and root.commit_id not in self.asked and self.is_left():
            self.violations.append(f"root {number} begins a stream of which data is there")
        if root.state == REBUILDING:
            self.fence = number
        elif before and before.state == REBUILDING and root.parent_commit_id == before.commit_id:
            self._check_rebuilt(self.loss)
            self._forget(self.loss.root.incarnation, self.loss.branched)
            self.perhaps_gone = set() if self.all_stopped else self.loss.condemned | self.loss.overtaken
            self.loss, self.losses = None, self.losses + 1
        elif root.parent_commit_id == self.loss.root.commit_id:  # a sleeper brings it all back
            self.history = self.loss.history | self.history
            self._condemned, self.perhaps_gone = self.loss.condemned, self.loss.overtaken
            self.last, self.loss, self.losses, self.fence = self.loss, None, self.losses + 1, number - 1
            self.healed += 1
        elif root.state == LIVE:
            self.loss.trimmed = max(self.loss.trimmed, root.first_offset)
            self.loss.branched = min(self.loss.branched, root.next_offset)

    def _forget(self, incarnation: bytes, offset: int) -> None:
        """From this offset on, other chunks may be committed: all fragments are read again."""
        self.broker.forget(incarnation, offset)
        for name in [name for name in self._sound if name.endswith(".fragment")]:
            del self._sound[name]

    def _check_rebuilt(self, loss: Loss) -> None:
        root, lost = self.root, loss.root
        assert root is not None
        left = [row for row in lost.named.values() if end_of(row) > loss.trimmed]
        left = [row for row in left if fragment_name(row) not in loss.overtaken]
        if root.incarnation != lost.incarnation:
            self.violations.append("a rebuild of another incarnation than the one that was lost")
        known = max(
            (source_epoch(self.objects.get(self._data + name, b"")) for name in lost.named), default=0
        )
        if root.source_epoch < known:
            self.violations.append(f"a rebuild forgot the source epoch {known}")
        for row in left:
            if not root.first_offset <= row["first_offset"] < root.next_offset:
                self.violations.append(
                    f"a rebuild left out offset {row['first_offset']}, which was committed"
                )

    def is_left(self) -> bool:
        """Whether anything is there that the lost root named."""
        assert self.loss is not None
        return any(key.rpartition("/")[2] in self.loss.root.named for key in self.objects)

    def _proves(self, key: str, data: bytes) -> bool:
        """Whether this is a fragment that the newest root condemns, made on a root that is lost."""
        root, match = self.root, DATA.fullmatch(key)
        if root is None or match is None:
            return False
        names = key.rpartition("/")[2] in root.named or UUID(match[2]).bytes in root.running
        return not names and key not in self.torn and base_version(data) > self.newest

    def _look_around(self) -> None:
        """Take note of what a sweep that looks now may delete."""
        if self.loss is None or self.root is None or self.root.state == REBUILDING:
            return
        for key, data in self.objects.items():
            name, fragment, group = key.rpartition("/")[2], DATA.fullmatch(key), GROUP.fullmatch(key)
            if group is not None:
                goes = name not in self.root.groups and int(group[2]) <= self.newest
            elif fragment is not None and name not in self.root.named:
                runs = UUID(fragment[2]).bytes in self.root.running
                goes = not runs and not self._proves(key, data)
            else:
                goes = False
            if goes:
                self.loss.overtaken.add(name)

    def _check_named(self) -> None:
        if self.loss is None:
            super()._check_named()

    def _broken(self, invariant: int, how: str) -> None:
        # Of a root that names a group which is gone, nobody knows what it covers.
        gone = bool(self.perhaps_gone) and (
            invariant == 1 or (invariant == 2 and any(name in how for name in self.perhaps_gone))
        )
        torn = bool(self.fence) and invariant == 2 and any(key.rpartition("/")[2] in how for key in self.torn)
        if self.loss is None and not gone and not torn:
            super()._broken(invariant, how)

    def _condemn(self, key: str) -> None:
        if self.loss is None:
            super()._condemn(key)


def roots_in(objects: Mapping[str, bytes]) -> list[int]:
    """The numbers of all roots, in order."""
    return sorted(int(match[1]) for key in objects if (match := ROOT.fullmatch(key)))
