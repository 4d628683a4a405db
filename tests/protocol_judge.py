"""The judge, which inspects the objects of a bucket directly and names each broken invariant.

It shares only the layout tables with the code under test. Keys, walking, checksums and rules are its own.
`Objects` is the bucket. It shows each change to the judge at the moment it happens. So the judge knows
facts that one listing cannot show: when each root became the newest, and which number below the newest
was created again (a zombie, which decides nothing).

A root names the objects in its own rows and, if these are groups, the objects in their rows, down to the
fragments. Of a partly trimmed group, only the live objects count as named.

    1  no hole, no overlap         each root's fragments touch and cover [first_offset, next_offset); its
                                   totals are theirs
    2  named objects exist         whole, with the stated checksum, and the source's exact bytes; a group
                                   agrees with the entry that names it
    3  objects do not change       no key ever gets other bytes; no two processes put one key
    4  history is linear           the newest root's parent is the root that was newest before it
    5  superseded means powerless  only a claim changes the writer, and it raises the epoch. A root by anyone
                                   but its parent's writer only removes running attempts or a prefix of
                                   fragments. A root by a job only adds its own running attempts, or appends
                                   their fragments and removes only these attempts. A prefix is removed alone.
                                   Nobody else appends an attempt that a job announced, and no writer removes
                                   it. A running attempt keeps the kind that it was announced with. Fragments
                                   in the middle are removed alone, for copies that the job announced as
                                   copies and that end with it: of the same ledger, with the same messages
                                   and bytes, with attempts of the same token, and never the newest fragment.
                                   Nothing else is ever a copy
    6  nothing is deleted early    a condemned object is never named later; the root that a group was made for
                                   is the first to name it; the newest root stays
    7  (crashes)                   1 to 6 hold at every moment, so also if a process dies then
    8  nothing unchecked           2, against the source's bytes
    9  next_offset never falls     nor do first_offset, source_epoch or epoch; and each commit that succeeded
                                   for its writer is in the history
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Any, Final
from uuid import UUID

import google_crc32c

from offload.formats.group import GROUP_HEADER
from offload.formats.root import ENTRY, ROOT_HEADER, RUNNING
from offload.model.manifest import Manifest

ROOT: Final = re.compile(r"[^/]+/metadata/root\.([0-9]{20})\.manifest")
DATA: Final = re.compile(r"[^/]+/data/([0-9]{20})\.([0-9a-f-]{36})\.fragment")
GROUP: Final = re.compile(r"[^/]+/groups/([0-9]{20})\.([0-9]{20})\.([0-9a-f-]{36})\.[km]?group")
LIVE, DELETED, REBUILDING = 0, 1, 2
STREAM, JOB, COPY = 0, 1, 2
GROUP_KINDS: Final = {1: "group", 2: "kgroup", 3: "mgroup"}
SUMS: Final = (
    "records", "messages", "data_size_bytes", "stored_size_bytes", "fragments", "ledgers",
)  # fmt: skip

Row = dict[str, Any]
"""An entry of a root or of a group, field by field."""


@dataclass(frozen=True)
class Root:
    """A root as the judge reads it. The judge follows its groups to find all objects that it names."""

    fields: dict[str, Any]
    announced: dict[bytes, Row]
    """Running attempts, each by its UUID."""

    entries: tuple[Row, ...]
    """The root's own rows."""

    fragments: tuple[Row, ...] = ()
    """The live fragments, at any depth, in order of offsets."""

    named: dict[str, Row] = field(default_factory=dict)
    """The live fragments by key below `data/`."""

    groups: dict[str, Row] = field(default_factory=dict)
    """Each group with live fragments, at any depth, by key below `groups/`."""

    @property
    def running(self) -> frozenset[bytes]:
        """Return the running attempts."""
        return frozenset(self.announced)

    def running_for(self, job: bytes, *kinds: int) -> frozenset[bytes]:
        """Return the running attempts of this job, of these kinds."""
        rows = self.announced.items()
        return frozenset(uid for uid, row in rows if row["kind"] in kinds and row["writer"] == job)

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]


@dataclass(frozen=True)
class Group:
    """A group as the judge reads it."""

    fields: dict[str, Any]
    rows: tuple[Row, ...]
    row: Row
    """The values that the entry of this group must have."""


@lru_cache(4096)
def read_root(raw: bytes) -> Root:
    """Decode a root. Raises `AssertionError` with the broken rule."""
    assert google_crc32c.value(raw[:-4]) == int.from_bytes(raw[-4:], "big"), "a root's checksum is off"
    fields = ROOT_HEADER.unpack(raw)
    assert (fields["magic"], fields["format_version"]) == (b"OLMR", 3)
    at = ROOT_HEADER.size_bytes + fields["stream_size_bytes"]
    fields["stream"] = raw[ROOT_HEADER.size_bytes : at]
    running_end = at + fields["running_count"] * RUNNING.size_bytes
    end = running_end + fields["entry_count"] * ENTRY.size_bytes
    assert end + 4 == len(raw), "a root's length is off"
    running = [RUNNING.unpack(raw, i) for i in range(at, running_end, RUNNING.size_bytes)]
    announced = {row["attempt"]: row for row in running}
    assert len(running) == len(announced), "an attempt runs twice"
    entries = tuple(ENTRY.unpack(raw, i) for i in range(running_end, end, ENTRY.size_bytes))
    kinds = [row["kind"] for row in entries]
    assert kinds == sorted(kinds, reverse=True), "smaller kinds come before larger ones"
    return Root(fields, announced, entries)


@lru_cache(4096)
def read_group(raw: bytes) -> Group:
    """Decode a group. Raises `AssertionError` with the broken rule."""
    checksum = google_crc32c.value(raw)
    assert google_crc32c.value(raw[:-4]) == int.from_bytes(raw[-4:], "big"), "a group's checksum is off"
    fields = GROUP_HEADER.unpack(raw)
    assert (fields["magic"], fields["format_version"], fields["reserved"]) == (b"OLMG", 2, 0)
    end = GROUP_HEADER.size_bytes + fields["entry_count"] * ENTRY.size_bytes
    assert end + 4 == len(raw), "a group's length is off"
    rows = tuple(ENTRY.unpack(raw, i) for i in range(GROUP_HEADER.size_bytes, end, ENTRY.size_bytes))
    assert {row["kind"] for row in rows} == {fields["kind"] - 1}, (
        "a group of another kind than the next lower"
    )
    for before, after in pairwise(rows):
        assert end_of(before) == after["first_offset"], "a group with a hole or an overlap"
    row = {
        "first_offset": rows[0]["first_offset"],
        "first_timestamp_ms": min(row["first_timestamp_ms"] for row in rows),
        "last_timestamp_ms": max(row["last_timestamp_ms"] for row in rows),
        "ledger_id": 0,
        "root_version": fields["version"],
        "attempt": fields["uid"],
        "checksum": checksum,
        "tail_size_bytes": 0,
        "kind": fields["kind"],
        "copied": 0,
        "codec": 0,
        "encrypted": 0,
        "reserved": bytes(4),
    }
    return Group(fields, rows, row | {name: sum(row[name] for row in rows) for name in SUMS})


def end_of(row: Row) -> int:
    """Return the first offset behind an entry."""
    return int(row["first_offset"] + row["records"])


def fragment_name(row: Row) -> str:
    """Return the key of a fragment, below `data/`."""
    return f"{row['first_offset']:020d}.{UUID(bytes=row['attempt'])}.fragment"


def group_name(row: Row) -> str:
    """Return the key of a group, below `groups/`."""
    uid, kind = UUID(bytes=row["attempt"]), GROUP_KINDS[row["kind"]]
    return f"{row['first_offset']:020d}.{row['root_version']:020d}.{uid}.{kind}"


def ledgers_of(fragments: Sequence[Row]) -> int:
    """Return the number of ledgers of these fragments."""
    return bool(fragments) + sum(a["ledger_id"] != b["ledger_id"] for a, b in pairwise(fragments))


def _is_guests(parent: Root, root: Root, *, same: bool) -> bool:
    """Return True if a guest may make this root from that one. `same`: it names no more than its parent."""
    added, taken = root.running - parent.running, parent.running - root.running
    if not same:  # a job's append
        own = parent.running_for(root.committer, JOB)
        return not added and taken <= own and {row["attempt"] for row in _appended(parent, root)} <= own
    if added:  # a job's announcement
        epochs = {root.announced[uid]["epoch"] for uid in added}
        return not taken and added <= root.running_for(root.committer, JOB, COPY) and epochs == {parent.epoch}
    return True  # a trim, or somebody's abort


def _replaced(kept: Sequence[Row], fragments: Sequence[Row]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the fragments that were removed from the middle, and the fragments in their place."""
    first = next(i for i, row in enumerate(kept) if i == len(fragments) or fragments[i] != row)
    pairs = zip(reversed(kept[first:]), reversed(fragments[first:]), strict=False)
    last = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return kept[first : len(kept) - last], fragments[first : len(fragments) - last]


def _content_of(rows: Sequence[Row]) -> tuple[Any, ...]:
    """Return the content of these rows, independent of the division into fragments."""
    sums = (sum(row[name] for row in rows) for name in ("messages", "data_size_bytes", "ledgers"))
    times = min(row["first_timestamp_ms"] for row in rows), max(row["last_timestamp_ms"] for row in rows)
    return rows[0]["first_offset"], end_of(rows[-1]), *sums, *times, {row["ledger_id"] for row in rows}


def _token_of(attempt: bytes) -> bytes:
    """Return the token of an attempt of a named batch; empty for a random UUID."""
    return attempt[:8] if UUID(bytes=attempt).version == 8 else b""


def _appended(parent: Root, root: Root) -> list[Row]:
    return [row for row in root.fragments if row["first_offset"] >= parent.next_offset]


class Judge:
    """A judge that records the history of one stream, and each broken invariant in `violations`."""

    def __init__(self, source: Callable[[int, int], bytes]) -> None:
        self.source = source
        self.objects: dict[str, bytes] = {}
        self.history: dict[int, Root] = {}
        """The roots that were the newest at some time, by number: the stream's true history."""
        self.newest = 0
        self.zombies = 0
        self.violations: list[str] = []
        self._condemned: set[str] = set()
        self._first_bytes: dict[str, bytes] = {}
        self._sender: dict[str, str] = {}
        self._sound: dict[str, bytes] = {}
        self._told: dict[bytes, int] = {}
        self._lived: set[bytes] = set()
        """All incarnations so far."""
        self._data = self._groups = ""

    @property
    def root(self) -> Root | None:
        """Return the newest root."""
        return self.history.get(self.newest)

    def named_first_by(self, name: str) -> bytes | None:
        """Return the author of the first root that named this fragment, or None.

        This shows if an append was in: a fragment that it failed to name may be adopted by another writer.
        """
        roots = (self.history[number] for number in sorted(self.history))
        return next((bytes(root.committer) for root in roots if name in root.named), None)

    def ever_named(self, attempt: UUID) -> bool:
        """Return True if any root named a fragment of this attempt."""
        return any(
            row["attempt"] == attempt.bytes for root in self.history.values() for row in root.fragments
        )

    def is_sources(self, first_offset: int, next_offset: int, data: bytes) -> bool:
        """Return True if a committed fragment of these offsets may hold these chunks."""
        return data == self.source(first_offset, next_offset)

    def chunks_in(self, data: bytes, entry: Row) -> bytes:
        """Return the chunks of a fragment, which is stored plain."""
        return data[16 : 16 + int(entry["data_size_bytes"])]

    def stored(self, key: str, before: bytes | None) -> None:
        """Judge an object that appeared or was put again."""
        data = self.objects[key]
        if before not in (None, data):
            self._broken(3, f"{key} was replaced by other bytes")
        if match := ROOT.fullmatch(key):
            prefix = key.partition("/")[0]
            self._data, self._groups = f"{prefix}/data/", f"{prefix}/groups/"
            self._root_stored(int(match[1]), read_root(data))
        elif DATA.fullmatch(key) or GROUP.fullmatch(key):
            if self._first_bytes.setdefault(key, data) != data:
                self._broken(3, f"{key} holds other bytes than when it was first put")
            self._condemn(key)
        self._check_named()

    def removed(self, key: str) -> None:
        """Judge the removal of an object."""
        match = ROOT.fullmatch(key)
        if match and int(match[1]) == self.newest:
            self._broken(6, f"the newest root {self.newest} was deleted")
        self._check_named()

    def sent(self, key: str, process: str) -> None:
        """Record that a process is about to put this key."""
        if self._sender.setdefault(key, process) != process:
            self._broken(3, f"{process} and {self._sender[key]} share the key {key}")

    def told(self, manifest: Manifest, process: str) -> None:
        """Record that a commit of this manifest succeeded for its process."""
        root = self.history.get(manifest.version)
        if root is None or root.commit_id != manifest.commit_id.bytes:
            self._broken(
                9, f"the commit of version {manifest.version} succeeded for {process}, but it is not in"
            )
        incarnation = manifest.incarnation.bytes
        self._told[incarnation] = max(self._told.get(incarnation, 0), manifest.next_offset)
        self._check_told()

    def forget_roots(self, *, above: int = 0) -> None:
        """Continue from the remaining roots after a loss of roots, which no step of the protocol causes.

        A rebuild may name condemned objects again, because nobody sweeps then.
        """
        self.history = {number: root for number, root in self.history.items() if number <= above}
        self._condemned.clear()
        self.newest = max(self.history, default=0)

    def _root_stored(self, number: int, root: Root) -> None:
        if number <= self.newest:
            self.zombies += 1
            return
        root = self._followed(number, root)
        parent = self.root
        if root.state == REBUILDING:  # the operator makes sure that nobody sweeps
            self._condemned.clear()
        elif number != self.newest + 1 and self.history:
            self._broken(4, f"root {number} follows root {self.newest}")
        if root.version != number:
            self._broken(4, f"root {number} contains the version {root.version}")
        self._check_coverage(number, root)
        self._check_totals(number, root)
        if parent is not None:
            self._check_step(number, parent, root)
        for name in (*root.named, *root.groups):
            if name in self._condemned:
                self._broken(6, f"root {number} names {name}, which a sweep may have condemned before")
        self._check_new_groups(number, root, parent)
        self.newest = number
        self.history[number] = root
        self._lived.add(root.incarnation)
        for key in self.objects:
            self._condemn(key)
        self._check_told()

    def _followed(self, number: int, root: Root) -> Root:
        """Return the root with all objects that it names, through every group with live fragments."""
        fragments: list[Row] = []
        groups: dict[str, Row] = {}

        def follow(rows: Iterable[Row]) -> None:
            for row in rows:
                if end_of(row) <= root.first_offset:
                    continue
                if row["kind"]:
                    groups[group_name(row)] = row
                    follow(self._rows_in(number, root, row))
                else:
                    fragments.append(row)

        follow(root.entries)
        named = {fragment_name(row): row for row in fragments}
        return replace(root, fragments=tuple(fragments), named=named, groups=groups)

    def _rows_in(self, number: int, root: Root, row: Row) -> Sequence[Row]:
        """Return the rows of the group that this row of the root's tree names; none if the group
        is absent.
        """
        name = group_name(row)
        data = self.objects.get(self._groups + name)
        if data is None:
            self._broken(2, f"root {number} names {name}, which is absent")
            return ()
        group = read_group(data)
        if group.row != row:
            wrong = sorted(name for name in row if row[name] != group.row[name])
            self._broken(2, f"root {number} and {name} disagree: {wrong}")
        if group.fields["stream_digest"] != hashlib.sha256(root.stream).digest():
            self._broken(2, f"root {number} names {name}, which belongs to another stream")
        if group.fields["incarnation"] != root.incarnation:
            self._broken(2, f"root {number} names {name}, which is of another incarnation")
        self._sound[name] = data
        return group.rows

    def _check_coverage(self, number: int, root: Root) -> None:
        at = root.first_offset
        for row in root.fragments:
            if row["first_offset"] != at or not row["records"]:
                self._broken(1, f"root {number} has a hole or an overlap at offset {at}")
            at = end_of(row)
        if at != root.next_offset:
            self._broken(1, f"root {number} ends at {at} and claims {root.next_offset}")

    def _check_totals(self, number: int, root: Root) -> None:
        """Check the totals. Those of a tombstone and of a rebuild's fence are zero, because they
        name nothing.
        """
        live = root.fragments
        found = {name: sum(row[name] for row in live) for name in SUMS if name != "records"}
        found["ledgers"] = ledgers_of(live)
        if live:
            found["last_ledger_id"] = live[-1]["ledger_id"]
        for name, total in found.items():
            if root.fields[name] != total:
                self._broken(1, f"root {number} claims {root.fields[name]} as {name}, but has {total}")

    def _check_new_groups(self, number: int, root: Root, parent: Root | None) -> None:
        known = {} if parent is None else parent.groups
        for name, row in root.groups.items():
            if name not in known and row["root_version"] != number:
                self._broken(
                    6, f"root {number} is the first to name {name}, which was made for another number"
                )

    def _check_step(self, number: int, parent: Root, root: Root) -> None:
        if root.parent_commit_id != parent.commit_id:
            self._broken(4, f"root {number} was not made on the root that was newest before it")
        if root.source_epoch < parent.source_epoch or root.epoch < parent.epoch:
            self._broken(9, f"root {number}: an epoch fell")
        if root.writer == parent.writer and root.epoch != parent.epoch:
            self._broken(5, f"root {number}: the epoch rose without a claim")
        if root.writer != parent.writer and root.epoch <= parent.epoch:
            self._broken(5, f"root {number}: the writer changed without a higher epoch")
        if root.state == REBUILDING:  # the fence of a rebuild: everybody waits, and no named object is lost
            if root.running or root.writer == parent.writer or root.named.keys() != parent.named.keys():
                self._broken(5, f"root {number}: a fence that lost named objects, or lets somebody continue")
            return
        if parent.state == REBUILDING:  # the one commit of a rebuild, on its own fence
            if root.writer != parent.writer or root.state != LIVE:
                self._broken(5, f"root {number}: another writer ended a rebuild")
            return
        if root.state == DELETED:
            if root.entries or root.running or any(root.writer):
                self._broken(6, f"root {number}: a tombstone names an object")
            return
        if parent.state == DELETED:
            if root.incarnation in self._lived or root.entries:
                self._broken(
                    4, f"root {number}: a stream was begun again with data of an earlier incarnation"
                )
            return
        if root.incarnation != parent.incarnation:
            self._broken(4, f"root {number}: another incarnation without a deletion")
        if root.next_offset < parent.next_offset:
            self._broken(9, f"root {number}: next_offset fell from {parent.next_offset}")
        if root.first_offset < parent.first_offset:
            self._broken(9, f"root {number}: first_offset fell from {parent.first_offset}")
        kept = tuple(row for row in parent.fragments if end_of(row) > root.first_offset)
        if root.fragments[: len(kept)] != kept:
            self._check_replacement(number, parent, root)
            return
        same = root.fragments == kept
        trimmed = root.first_offset != parent.first_offset
        if trimmed and not (same and (root.writer, root.running) == (parent.writer, parent.running)):
            self._broken(5, f"root {number}: a trim changed something else as well")
        if root.writer != parent.writer:
            if not same or root.running != parent.running:
                self._broken(5, f"root {number}: a claim changed something else as well")
        elif root.committer != parent.writer and not _is_guests(parent, root, same=same):
            self._broken(5, f"root {number}: a superseded writer changed the readers' view")
        self._check_attempts(number, parent, root)

    def _check_replacement(self, number: int, parent: Root, root: Root) -> None:
        """Check that copies of the same records replace fragments that were removed without a trim."""
        moved = {"first_offset", "next_offset", "writer", "epoch"}
        if any(parent.fields[name] != root.fields[name] for name in moved):
            self._broken(9, f"root {number}: committed entries were removed")
            return
        old, new = _replaced(parent.fragments, root.fragments)
        if not new or not old or _content_of(old) != _content_of(new):
            self._broken(9, f"root {number}: committed entries were replaced by other ones")
            return
        own = parent.running_for(root.committer, COPY)
        copies = {row["attempt"] for row in new}
        if not copies <= own or parent.running - root.running != copies or root.running - parent.running:
            self._broken(5, f"root {number}: the replacement was not announced as a copy of the job")
        if not all(row["copied"] for row in new):
            self._broken(5, f"root {number}: a replacement is not marked as a copy")
        if len({_token_of(row["attempt"]) for row in (*old, *new)}) > 1:
            self._broken(5, f"root {number}: a copy has another token than the originals")
        if old[-1] is parent.fragments[-1]:
            self._broken(5, f"root {number}: the newest fragment was replaced")
        self._check_attempts(number, parent, root)

    def _check_attempts(self, number: int, parent: Root, root: Root) -> None:
        """Check that attempts keep their announcement, and that no writer names or removes a job's."""
        kept = parent.running & root.running
        if any(parent.announced[uid] != root.announced[uid] for uid in kept):
            self._broken(5, f"root {number}: a running attempt differs from its announcement")
        jobs = {uid: row["writer"] for uid, row in parent.announced.items() if row["kind"]}
        if any(jobs.get(row["attempt"], root.committer) != root.committer for row in _appended(parent, root)):
            self._broken(5, f"root {number}: somebody else appended an attempt of a job")
        copies = parent.running_for(root.committer, COPY)
        if any(row["copied"] or row["attempt"] in copies for row in _appended(parent, root)):
            self._broken(5, f"root {number}: a copy was appended")
        if root.committer == root.writer and not root.running >= jobs.keys():
            self._broken(5, f"root {number}: a writer removed an attempt of a job")

    def _condemn(self, key: str) -> None:
        """Record the objects that a sweep that looks now may delete at any later time."""
        root, name = self.root, key.rpartition("/")[2]
        if root is None or root.state == REBUILDING:  # a fence names nothing, and condemns nothing
            return
        if match := DATA.fullmatch(key):
            goes = name not in root.named and UUID(match[2]).bytes not in root.running
        elif match := GROUP.fullmatch(key):
            goes = name not in root.groups and int(match[2]) <= self.newest
        else:
            return
        if goes:
            self._condemned.add(name)

    def _check_named(self) -> None:
        root = self.root
        if root is None or root.state != LIVE:
            return
        for name in root.groups:
            data = self.objects.get(self._groups + name)
            if data is None:
                self._broken(2, f"root {self.newest} names {name}, which is absent")
            elif self._sound.get(name) != data:
                self._broken(2, f"{name} is not the group that root {self.newest} names")
        for name, entry in root.named.items():
            data = self.objects.get(self._data + name)
            if data is None:
                self._broken(2, f"root {self.newest} names {name}, which is absent")
            elif self._sound.get(name) is not data:
                self._check_object(name, data, entry)

    def _check_object(self, name: str, data: bytes, entry: Row) -> None:
        first, next_offset = entry["first_offset"], end_of(entry)
        if (len(data), google_crc32c.value(data)) != (entry["stored_size_bytes"], entry["checksum"]):
            self._broken(2, f"{name} is not the object that root {self.newest} names")
        elif not self.is_sources(first, next_offset, self.chunks_in(data, entry)):
            self._broken(8, f"{name} does not hold the source's bytes of [{first}, {next_offset})")
        else:
            self._sound[name] = data

    def _check_told(self) -> None:
        root = self.root
        if root and root.state == LIVE and root.next_offset < self._told.get(root.incarnation, 0):
            self._broken(9, f"a reported commit ends behind root {self.newest}")

    def _broken(self, invariant: int, how: str) -> None:
        self.violations.append(f"invariant {invariant}: {how}")


class Objects(dict[str, bytes]):
    """A bucket that shows each change to a judge."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self.judge = judge
        judge.objects = self

    def __setitem__(self, key: str, data: bytes) -> None:
        before = self.get(key)
        super().__setitem__(key, data)
        self.judge.stored(key, before)

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove an object, and let the judge check it."""
        there = key in self
        data = super().pop(key, default)
        if there:
            self.judge.removed(key)
        return data

    def lose_roots(self, *, above: int = 0) -> None:
        """Lose every root above this number, an accident outside the protocol."""
        for key in list(self):
            match = ROOT.fullmatch(key)
            if match and int(match[1]) > above:
                super().pop(key)
        self.judge.forget_roots(above=above)
