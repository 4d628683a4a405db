"""The judge: looks at a bucket's objects directly and says which invariant of the protocol they break.

It shares the layout tables with the code under test, and nothing else: keys, walking, checksums and
rules are its own. `Objects` is the bucket; it shows each change to the judge at the moment it
happens, so the judge knows what no single look can tell: which root became the newest when, and
which number below the newest was created again (a zombie, which decides nothing).

    1  no hole, no overlap         each root's entries touch and cover [first_offset, next_offset)
    2  what is named exists        whole, with the stated checksum, and the source's very bytes
    3  objects do not change       no key ever holds other bytes; no two processes put one key
    4  history is linear           the newest root's parent is the one that was newest before it
    5  superseded means powerless  only a claim changes the writer, and it raises the epoch; a root by
                                   anyone but its parent's writer takes running attempts away, nothing else
    6  nothing goes too early      an object seen condemned is never named later; the newest root stays
    7  (crashes)                   1 to 6 hold at every moment, so also when a process dies there
    8  nothing unchecked           2, against the source's bytes
    9  next_offset never falls     nor source_epoch or epoch; and what a writer was told is committed is so
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import google_crc32c

from offload.formats.manifest import ENTRY, ROOT_HEADER, RUNNING, Manifest

ROOT: Final = re.compile(r"[^/]+/metadata/root\.([0-9]{20})\.manifest")
DATA: Final = re.compile(r"[^/]+/data/([0-9]{20})\.([0-9a-f-]{36})\.fragment")
LIVE, DELETED, REBUILDING = 0, 1, 2


@dataclass(frozen=True)
class Root:
    """A root as the judge reads it."""

    fields: dict[str, Any]
    running: frozenset[bytes]
    entries: tuple[tuple[tuple[str, Any], ...], ...]
    named: dict[str, dict[str, Any]]
    """By key below `data/`: the entry that names it."""

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]


@lru_cache(4096)
def read_root(raw: bytes) -> Root:
    """Decode a root. An `AssertionError` says what does not hold."""
    assert google_crc32c.value(raw[:-4]) == int.from_bytes(raw[-4:], "big"), "a root's checksum is off"
    fields = ROOT_HEADER.unpack(raw)
    assert (fields["magic"], fields["format_version"]) == (b"OLMR", 2)
    at = ROOT_HEADER.size_bytes + fields["stream_size_bytes"]
    running_end = at + fields["running_count"] * RUNNING.size_bytes
    end = running_end + fields["entry_count"] * ENTRY.size_bytes
    assert end + 4 == len(raw), "a root's length is off"
    running = [RUNNING.unpack(raw, i)["attempt"] for i in range(at, running_end, RUNNING.size_bytes)]
    assert len(running) == len(set(running)), "an attempt runs twice"
    entries = [ENTRY.unpack(raw, i) for i in range(running_end, end, ENTRY.size_bytes)]
    named = {f"{e['first_offset']:020d}.{UUID(bytes=e['attempt'])}.fragment": e for e in entries}
    return Root(fields, frozenset(running), tuple(tuple(e.items()) for e in entries), named)


class Judge:
    """Keeps what was seen of one stream, and every broken invariant as a sentence in `violations`."""

    def __init__(self, source: Callable[[int, int], bytes]) -> None:
        self.source = source
        self.objects: dict[str, bytes] = {}
        self.history: dict[int, Root] = {}
        """The roots that were newest once, by number: the stream's true history."""
        self.newest = 0
        self.zombies = 0
        self.violations: list[str] = []
        self._condemned: set[str] = set()
        self._first_bytes: dict[str, bytes] = {}
        self._sender: dict[str, str] = {}
        self._sound: dict[str, bytes] = {}
        self._told: dict[bytes, int] = {}
        self._data = ""

    @property
    def root(self) -> Root | None:
        """The newest root."""
        return self.history.get(self.newest)

    def stored(self, key: str, before: bytes | None) -> None:
        """An object appeared, or was put again."""
        data = self.objects[key]
        if before not in (None, data):
            self._broken(3, f"{key} was replaced by other bytes")
        if match := ROOT.fullmatch(key):
            self._data = f"{key.partition('/')[0]}/data/"
            self._root_stored(int(match[1]), read_root(data))
        elif DATA.fullmatch(key):
            if self._first_bytes.setdefault(key, data) != data:
                self._broken(3, f"{key} holds other bytes than when it was first put")
            self._condemn(key)
        self._check_named()

    def removed(self, key: str) -> None:
        """An object went."""
        match = ROOT.fullmatch(key)
        if match and int(match[1]) == self.newest:
            self._broken(6, f"the newest root {self.newest} was deleted")
        self._check_named()

    def sent(self, key: str, process: str) -> None:
        """A process is about to put this key."""
        if self._sender.setdefault(key, process) != process:
            self._broken(3, f"{process} and {self._sender[key]} share the key {key}")

    def told(self, manifest: Manifest, process: str) -> None:
        """A process was told that this manifest is committed."""
        root = self.history.get(manifest.version)
        if root is None or root.commit_id != manifest.commit_id.bytes:
            self._broken(9, f"{process} was told that its version {manifest.version} is committed: it is not")
        incarnation = manifest.incarnation.bytes
        self._told[incarnation] = max(self._told.get(incarnation, 0), manifest.next_offset)
        self._check_told()

    def forget_roots(self) -> None:
        """Roots were lost, which nothing in the protocol does: begin anew, without a history."""
        self.history.clear()
        self.newest = 0

    def _root_stored(self, number: int, root: Root) -> None:
        if number <= self.newest:
            self.zombies += 1
            return
        parent = self.root
        if number != self.newest + 1 and self.history:
            self._broken(4, f"root {number} follows root {self.newest}")
        if root.version != number:
            self._broken(4, f"root {number} calls itself {root.version}")
        self._check_coverage(number, root)
        if parent is not None:
            self._check_step(number, parent, root)
        for name in root.named:
            if name in self._condemned:
                self._broken(6, f"root {number} names {name}, which a sweep may have condemned before")
        self.newest = number
        self.history[number] = root
        for key in self.objects:
            if DATA.fullmatch(key):
                self._condemn(key)
        self._check_told()

    def _check_coverage(self, number: int, root: Root) -> None:
        at = root.first_offset
        for entry in map(dict, root.entries):
            if entry["first_offset"] != at or not entry["records"]:
                self._broken(1, f"root {number} has a hole or an overlap at offset {at}")
            at = entry["first_offset"] + entry["records"]
        if at != root.next_offset:
            self._broken(1, f"root {number} ends at {at} and claims {root.next_offset}")

    def _check_step(self, number: int, parent: Root, root: Root) -> None:
        if root.parent_commit_id != parent.commit_id:
            self._broken(4, f"root {number} was not made on the root that was newest before it")
        if root.source_epoch < parent.source_epoch or root.epoch < parent.epoch:
            self._broken(9, f"root {number}: an epoch fell")
        if root.writer == parent.writer and root.epoch != parent.epoch:
            self._broken(5, f"root {number}: the epoch rose without a claim")
        if root.writer != parent.writer and root.epoch <= parent.epoch:
            self._broken(5, f"root {number}: the writer changed without a higher epoch")
        if root.state == DELETED or parent.state == DELETED:
            return
        if root.incarnation != parent.incarnation:
            self._broken(4, f"root {number}: another incarnation without a deletion")
        if root.next_offset < parent.next_offset:
            self._broken(9, f"root {number}: next_offset fell from {parent.next_offset}")
        if root.entries[: len(parent.entries)] != parent.entries:
            self._broken(9, f"root {number}: committed entries went")
        if root.writer != parent.writer:
            if (root.entries, root.running) != (parent.entries, parent.running):
                self._broken(5, f"root {number}: a claim that changed something else as well")
        elif root.committer != parent.writer and (
            root.entries != parent.entries or not root.running <= parent.running
        ):
            self._broken(5, f"root {number}: a superseded writer changed what readers see")

    def _condemn(self, key: str) -> None:
        """Remember what a sweep that looks now may delete at any later time."""
        root = self.root
        name = key.rpartition("/")[2]
        match = DATA.fullmatch(key)
        if match and root and name not in root.named and UUID(match[2]).bytes not in root.running:
            self._condemned.add(name)

    def _check_named(self) -> None:
        root = self.root
        if root is None or root.state != LIVE:
            return
        for name, entry in root.named.items():
            data = self.objects.get(self._data + name)
            if data is None:
                self._broken(2, f"root {self.newest} names {name}, which is absent")
            elif self._sound.get(name) is not data:
                self._check_object(name, data, entry)

    def _check_object(self, name: str, data: bytes, entry: dict[str, Any]) -> None:
        first, next_offset = entry["first_offset"], entry["first_offset"] + entry["records"]
        if (len(data), google_crc32c.value(data)) != (entry["stored_size_bytes"], entry["checksum"]):
            self._broken(2, f"{name} is not the object that root {self.newest} names")
        elif data[16 : 16 + entry["data_size_bytes"]] != self.source(first, next_offset):
            self._broken(8, f"{name} does not hold the source's bytes of [{first}, {next_offset})")
        else:
            self._sound[name] = data

    def _check_told(self) -> None:
        root = self.root
        if root and root.state == LIVE and root.next_offset < self._told.get(root.incarnation, 0):
            self._broken(9, f"what was told to be committed ends behind root {self.newest}")

    def _broken(self, invariant: int, how: str) -> None:
        self.violations.append(f"invariant {invariant}: {how}")


class Objects(dict[str, bytes]):
    """A bucket under the eyes of a judge."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self.judge = judge
        judge.objects = self

    def __setitem__(self, key: str, data: bytes) -> None:
        before = self.get(key)
        super().__setitem__(key, data)
        self.judge.stored(key, before)

    def pop(self, key: str, default: Any = None) -> Any:
        """Remove, and have it judged."""
        there = key in self
        data = super().pop(key, default)
        if there:
            self.judge.removed(key)
        return data

    def lose_roots(self) -> None:
        """An accident outside the protocol: every root is gone."""
        for key in [key for key in self if ROOT.fullmatch(key)]:
            super().pop(key)
        self.judge.forget_roots()
