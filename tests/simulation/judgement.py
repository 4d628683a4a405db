"""The judge of a simulated world. It knows the broker's chunks and the invariants during a loss of roots.

No step of the protocol deletes a newest root, so its invariants do not cover a loss. While roots are lost,
these invariants hold instead:

    no fragment that the lost root named is deleted, for as long as it proves the loss: the newest root of
    that moment neither names nor runs it, and is older than the `base_version` of the fragment
    no stream is begun while such a fragment exists
    the end of a rebuild names every object that the lost root named and that was never deleted
    a fragment that it names lacks its key only if a newest root showed, while roots were lost, that the life
    of the stream is over: then somebody may have shredded it. The operator gives up such a stream again

If processes continue while roots are lost, or while the stream is rebuilt, only this may be lost:

    data that was committed between the loss and the fence of the rebuild
    fragments that prove the loss no longer: commits on an older root overtook their `base_version`
    data that was trimmed, aborted or deleted before the loss, and that the rebuild brings back: a sweep that
    looked before the loss may still delete it
    the data of a torn object, which no store should leave: a rebuild reads only its tail
    data of the lost roots behind the end of an older root that a late create brought back: if a writer
    continues there, its epoch is higher, and the rebuild prefers its fragments. The others stay, unnamed
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
    Row,
    end_of,
    fragment_name,
    read_root,
)
from protocol_world import source

from offload.formats.fragment import FragmentTail
from offload.formats.fragment_trailer import TRAILER, FragmentTrailer
from offload.ground.errors import Corrupt
from offload.model.manifest import Manifest
from simulation.broker import Broker
from simulation.keys import KeyHouse
from simulation.locksmith import data_key_of, plain_chunks


@dataclass
class Loss:
    """A loss of roots, and the newest of them."""

    root: Root
    history: dict[int, Root]
    """The true history until the loss. It continues if a late create brings the lost roots back."""
    condemned: set[str]
    """The objects that a sweep may have condemned before the loss."""
    overtaken: set[str] = field(default_factory=set)
    """Groups, and fragments that prove nothing any more. A sweep that looks may delete them."""
    trimmed: int = 0
    """The highest first offset of roots that were committed since."""
    branched: int = 2**64
    """The lowest next offset of these roots. A writer may have continued there."""
    has_ended: bool = False
    """True if a newest root since showed that the lost root's life is over. Then its keys may go."""


@lru_cache(4096)
def base_version(data: bytes) -> int:
    """Return the number of the root that the fragment's writer knew; 0 if the fragment is torn."""
    try:
        return FragmentTrailer.decode(data[-TRAILER.size_bytes :], where="a fragment").base_version
    except Corrupt:
        return 0


def source_epoch(data: bytes) -> int:
    """Return the leader epoch of the broker that this fragment records; 0 if there is none."""
    try:
        return FragmentTail.decode(data, where="a fragment", size_bytes=len(data)).source_epoch
    except Corrupt:
        return 0


class SimulationJudge(Judge):
    """A judge, as the module's docstring describes it."""

    def __init__(self, broker: Broker, house: KeyHouse) -> None:
        super().__init__(source)
        self.broker, self.house = broker, house
        self.encrypted: set[bytes] = set()
        """The incarnations to which an encrypted fragment was appended."""
        self._data_keys: dict[bytes, str] = {}
        """The fragment of each data key."""
        self.asked: set[bytes] = set()
        """The commits that were decided while no root was lost. They may land at any time."""
        self.loss: Loss | None = None
        self.last: Loss | None = None
        """The last loss that a late create ended."""
        self.losses = 0
        """The number of losses that began or ended. A process that sees it change has seen a loss."""
        self.healed = 0
        """The number of losses that ended by a root that was made on the lost one."""
        self.fence = 0
        """The number of the last rebuild. Earlier results of commits need not hold."""
        self.all_stopped = False
        """True while no process runs and nothing is in flight."""
        self.torn: set[str] = set()
        """The keys of objects that a crash left damaged. A rebuild reads only tails, so it may name them."""
        self.perhaps_gone: set[str] = set()
        """Names in the newest root that a sweep may delete, because processes continued."""
        self.brought_back: set[bytes] = set()
        """The incarnations that ended while roots were lost, and came back. Their keys may be gone."""

    def is_sources(self, first_offset: int, next_offset: int, data: bytes) -> bool:
        """Return `Broker.wrote` for the newest root."""
        assert self.root is not None
        return self.broker.wrote(self.root, first_offset, next_offset, data)

    def chunks_in(self, data: bytes, entry: Row) -> bytes:
        """Return the chunks of a fragment, in the clear."""
        coded = entry["codec"] or entry["encrypted"]
        return plain_chunks(data, self.house) if coded else super().chunks_in(data, entry)

    @property
    def is_proven(self) -> bool:
        """Return True if an object proves a loss to every process that looks now."""
        if self.loss is None:
            return False
        if not self.newest:
            return any(DATA.fullmatch(key) for key in self.objects)
        return any(self._proves(key, data) for key, data in self.objects.items())

    def asks(self, key: str, data: bytes, *, decided_before: bool) -> None:
        """Record that a process is about to create this object, perhaps by a view from before a loss."""
        if ROOT.fullmatch(key) and (self.loss is None or decided_before):
            self.asked.add(read_root(data).commit_id)

    def forget_roots(self, *, above: int = 0) -> None:
        """Forget roots as `Judge.forget_roots` does. Processes that continue may have looked before."""
        assert self.root is not None
        self.loss, self.losses = Loss(self.root, self.history, set(self._condemned)), self.losses + 1
        super().forget_roots(above=above)
        self._look_around()

    def stored(self, key: str, before: bytes | None) -> None:
        """Judge as `Judge.stored` does, and look for objects that a sweep may delete."""
        super().stored(key, before)
        self._look_around()
        if DATA.fullmatch(key) and key not in self.torn:
            self._check_data_key(key)

    def _check_data_key(self, key: str) -> None:
        try:
            found = data_key_of(self.objects[key], self.house)
        except Corrupt:  # a crash is tearing it
            return
        if found and self._data_keys.setdefault(found, key) != key:
            self.violations.append(f"{key} and {self._data_keys[found]} share a data key")

    def removed(self, key: str) -> None:
        """Judge as `Judge.removed` does. An object that proves the loss must stay."""
        name = key.rpartition("/")[2]
        if self.loss is not None and name in self.loss.root.named and name not in self.loss.overtaken:
            self.violations.append(f"{name} was deleted: a lost root names it, and it proves the loss")
        super().removed(key)
        self._look_around()

    def told(self, manifest: Manifest, process: str) -> None:
        """Record as `Judge.told` does. A commit during a loss may be lost."""
        if self.loss is None and manifest.version > self.fence:
            super().told(manifest, process)

    def _root_stored(self, number: int, root: Root) -> None:
        before = self.root
        if root.state == REBUILDING and self.loss is None and self.last is not None and number > self.newest:
            # An operator had begun before a late create brought the lost roots back. Later data is lost.
            self.loss, self.losses, lost = self.last, self.losses + 1, self.last.root
            self._told[lost.incarnation] = min(self._told.get(lost.incarnation, 0), lost.next_offset)
            self._forget(lost.incarnation, lost.next_offset)
            self.last.overtaken |= self._condemned
            self.last.trimmed = max(self.last.trimmed, before.first_offset if before else 0)
        super()._root_stored(number, root)
        if self.newest == number:
            self._check_secrecy(number, before)
        if self.loss is None or self.newest != number:
            return
        is_birth = root.state == LIVE and not any(root.parent_commit_id)
        if is_birth and root.commit_id not in self.asked and self.is_left():
            self.violations.append(f"root {number} begins a stream although data of it exists")
        if root.state == REBUILDING:
            self.fence = number
        elif before and before.state == REBUILDING and root.parent_commit_id == before.commit_id:
            self._check_rebuilt(self.loss)
            self._forget(self.loss.root.incarnation, self.loss.branched)
            self.perhaps_gone = set() if self.all_stopped else self.loss.condemned | self.loss.overtaken
            self._bring_back(self.loss)
            self.loss, self.losses = None, self.losses + 1
        elif root.parent_commit_id == self.loss.root.commit_id:  # a late create brings it all back
            self.history = self.loss.history | self.history
            self._condemned, self.perhaps_gone = self.loss.condemned, self.loss.overtaken
            self._bring_back(self.loss)
            self.last, self.loss, self.losses, self.fence = self.loss, None, self.losses + 1, number - 1
            self.healed += 1
        elif root.state == LIVE:
            self.loss.trimmed = max(self.loss.trimmed, root.first_offset)
            self.loss.branched = min(self.loss.branched, root.next_offset)

    def _bring_back(self, loss: Loss) -> None:
        if loss.has_ended:
            self.brought_back.add(loss.root.incarnation)

    def _check_secrecy(self, number: int, parent: Root | None) -> None:
        """Check that no data is appended in the clear behind encrypted data, or copied into the clear."""
        root = self.history[number]
        known = () if parent is None else parent.fragments
        is_judged = self.loss is None and parent is not None and parent.state != REBUILDING
        for row in (row for row in root.fragments if row not in known):
            if row["copied"]:
                secret = any(each["encrypted"] for each in known if _overlap(each, row))
            else:
                secret = root.incarnation in self.encrypted
            if row["encrypted"] and not row["copied"]:
                self.encrypted.add(root.incarnation)
            if secret and not row["encrypted"] and is_judged:
                self.violations.append(
                    f"root {number} adds {fragment_name(row)} in the clear to encrypted data"
                )

    def _forget(self, incarnation: bytes, offset: int) -> None:
        """Allow other chunks from this offset on. All fragments are read again."""
        self.broker.forget(incarnation, offset)
        for name in [name for name in self._sound if name.endswith(".fragment")]:
            del self._sound[name]

    def _check_rebuilt(self, loss: Loss) -> None:
        root, lost = self.root, loss.root
        assert root is not None
        left = [row for row in lost.named.values() if end_of(row) > loss.trimmed]
        left = [row for row in left if fragment_name(row) not in loss.overtaken]
        if root.incarnation != lost.incarnation:
            self.violations.append("a rebuild has another incarnation than the lost root")
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
        """Return True if an object of the lost root exists."""
        assert self.loss is not None
        return any(key.rpartition("/")[2] in self.loss.root.named for key in self.objects)

    def _proves(self, key: str, data: bytes) -> bool:
        """Return True if this is a fragment that the newest root condemns, made on a lost root."""
        root, match = self.root, DATA.fullmatch(key)
        if root is None or match is None:
            return False
        names = key.rpartition("/")[2] in root.named or UUID(match[2]).bytes in root.running
        return not names and key not in self.torn and base_version(data) > self.newest

    def _look_around(self) -> None:
        """Record the objects that a sweep that looks now may delete."""
        if self.loss is None or self.root is None or self.root.state == REBUILDING:
            return
        is_same_life = self.root.state == LIVE and self.root.incarnation == self.loss.root.incarnation
        self.loss.has_ended |= not is_same_life
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
        # If a root names a missing group, nobody knows the offsets that it covers.
        gone = bool(self.perhaps_gone) and (
            invariant == 1 or (invariant == 2 and any(name in how for name in self.perhaps_gone))
        )
        torn = bool(self.fence) and invariant == 2 and any(key.rpartition("/")[2] in how for key in self.torn)
        if self.loss is None and not gone and not torn:
            super()._broken(invariant, how)

    def _condemn(self, key: str) -> None:
        if self.loss is None:
            super()._condemn(key)


def _overlap(one: Row, other: Row) -> bool:
    return end_of(one) > other["first_offset"] and end_of(other) > one["first_offset"]


def roots_in(objects: Mapping[str, bytes]) -> list[int]:
    """Return the numbers of all roots, in order."""
    return sorted(int(match[1]) for key in objects if (match := ROOT.fullmatch(key)))
