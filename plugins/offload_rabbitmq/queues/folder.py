"""The folder of a node, as RabbitMQ itself would recover it, in memory: every queue with its live messages.

    msg_stores/vhosts/<V>/.vhost, .config, recovery.dets, msg_store_persistent/, queues/<Q>/.queue_name, index

<V> and <Q> are digests of the names. Each level of a priority queue has a folder, and its name ends with 0
and the level. All levels are one queue here, the highest first.

- Persistent messages count, if nobody acknowledged them. The broker drops all others when it starts.
- A stop was clean if the message store says so and `recovery.dets` has the terms of the queue. If not, every
  message counts as redelivered.
- Bindings, and which queues exist, are in the broker's database, which is not read: each folder is a queue.

Invariants: nothing is written; what cannot be read is counted, and hinders no other queue; files that change
meanwhile raise `TryAgain`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_from_bytes

import numpy as np

from offload.ground.errors import Corrupt, NotOffloaded
from offload.local.files import explained, opened, read_at, shown_path
from offload_rabbitmq.queues.index_v1 import entries_of_segment, read_index_v1
from offload_rabbitmq.queues.index_v2 import read_index_v2
from offload_rabbitmq.queues.store_files import (
    IN_STORE,
    REDELIVERED,
    ROW,
    Damages,
    QueueRows,
    VhostFiles,
    changed,
    scan_store,
)
from offload_rabbitmq.queues.terms import decode_term

STORE: Final = "msg_store_persistent"
_NAME_SIZE_BYTES_MAX: Final = 4096
_TERMS_SIZE_BYTES_MAX: Final = 2**28
_GATHER_SIZE_BYTES: Final = 2**16
_DIGEST: Final = re.compile(r"[0-9A-Z]{20,25}")
"""The name of a vhost's folder, unless somebody gave it another."""

_TERM: Final = re.compile(rb"(\0...)(?=\x83h\x02)", re.DOTALL)
"""The size of an object of `recovery.dets`, which counts itself, before a term that is a pair."""


@dataclass(slots=True)
class ClassicQueue:
    """A queue, all levels of it: its messages in the order in which the broker would deliver them."""

    vhost: bytes
    name: bytes
    files: VhostFiles
    rows: QueueRows
    versions: Sequence[str]
    changed_ms: int
    """The time of the last change of its index."""
    damages: Damages
    """What cannot be read of it. Reading its messages adds those whose terms cannot be decoded."""
    _bad: set[int] = field(default_factory=set)

    @property
    def stream(self) -> str:
        """The name of its stream: the vhost and the queue, both percent-encoded."""
        return f"{quote_from_bytes(self.vhost, safe='')}/{quote_from_bytes(self.name, safe='')}"

    @property
    def size_bytes(self) -> int:
        """The size of the terms of all messages."""
        return int(self.rows["size"].sum())

    def count_bad(self, row: int, reason: str) -> None:
        """Count a message whose term cannot be read, unless it was counted before."""
        if row not in self._bad:
            self._bad.add(row)
            file = self.files.name(int(self.rows["file"][row]))
            self.damages[file, f"a message that cannot be decoded: {reason}"] += 1

    def terms(self, first: int, stop: int) -> list[bytes]:
        """Return the stored terms of some messages. Raises `TryAgain` if the files changed."""
        rows = self.rows[first:stop]
        found = [b""] * len(rows)
        order = np.lexsort((rows["position"], rows["file"]))
        groups = np.split(order, np.flatnonzero(np.diff(rows["file"][order])) + 1)
        for group in groups if len(rows) else ():
            file = self.files.files[int(rows["file"][group[0]])]
            columns = group, rows["position"][group], rows["size"][group]
            with file.window(_GATHER_SIZE_BYTES) as window:
                for row, position, size in zip(*(each.tolist() for each in columns), strict=True):
                    found[row] = window.at(position, size)
        return found


@dataclass(slots=True)
class Vhost:
    """A virtual host: its queues, in order of their names, and what could not be read beside them."""

    name: bytes
    queues: Sequence[ClassicQueue]
    damages: Damages


@dataclass(slots=True)
class _Folder:
    """The folder of a queue, or of one level of it."""

    path: Path
    names: Sequence[str]
    vhost: bytes = b""
    name: bytes = b""
    level: int = 0
    rows: QueueRows = field(default_factory=lambda: np.zeros(0, ROW))
    versions: Sequence[str] = ()
    changed_ms: int = 0
    damages: Damages = field(default_factory=Counter)


def find_vhosts(path: Path) -> Sequence[Path]:
    """Return the folders of vhosts at a path: a node's folder, `msg_stores`, `vhosts`, or one vhost.

    Raises `NotOffloaded` if there is none.
    """
    if (path / "queues").is_dir() or (path / ".vhost").is_file():
        return (path,)
    for below in ("msg_stores/vhosts", "vhosts", "."):
        found = [each for each in _folders(path / below) if (each / "queues").is_dir()]
        if found:
            return found
    raise NotOffloaded(f"{shown_path(path)} has no classic queues: name the folder that has msg_stores in it")


def read_vhost(path: Path) -> Vhost:
    """Return a vhost with its queues. Raises `TryAgain` if its files change meanwhile."""
    files, damages = VhostFiles(path), Damages()
    name = _vhost_name(path, damages)
    folders = [_Folder(each, _names_in(each)) for each in _folders(path / "queues")]
    entries = _entries(path, damages)
    terms = _recovery_terms(path)
    for folder in folders:
        _name_queue(folder, name, files)
        _read_queue(folder, entries, files, terms.get(folder.path.name))
    ids = [each.rows["id"][each.rows["file"] == IN_STORE] for each in folders]
    store = scan_store(path / STORE, np.unique(np.concatenate([*ids, np.zeros(0, "S16")])), files, damages)
    for folder in folders:
        folder.rows = store.resolve(folder.rows, folder.damages, _index_name(folder, files))
    _check_unchanged(path, files, folders)
    return Vhost(name, [*_queues(folders, files)], damages)


def _queues(folders: Sequence[_Folder], files: VhostFiles) -> Iterator[ClassicQueue]:
    levels = defaultdict[tuple[bytes, bytes], list[_Folder]](list)
    for each in sorted(folders, key=lambda each: (each.name, -each.level)):
        levels[each.vhost, each.name].append(each)
    for (vhost, name), those in levels.items():
        yield ClassicQueue(
            vhost=vhost,
            name=name,
            files=files,
            rows=np.concatenate([each.rows for each in those]),
            versions=sorted({version for each in those for version in each.versions}),
            changed_ms=max(each.changed_ms for each in those),
            damages=sum((each.damages for each in those), Damages()),
        )


def _read_queue(folder: _Folder, entries: int, files: VhostFiles, terms: Mapping[str, Any] | None) -> None:
    """Read the index of one folder. `terms` are those of a clean stop."""
    first = len(files.files)
    old = read_index_v1(folder.path, folder.names, entries, files, folder.damages)
    new = read_index_v2(folder.path, folder.names, files, folder.damages)
    # Since 3.10 the terms of a clean stop say how far the queue was delivered, whatever marks an index has.
    delivered = (1 << 63) if terms is None else terms.get("next_deliver_seq_id")
    if delivered is not None:
        for rows in (old, new):
            rows["flags"] = np.where(rows["sequence"] < delivered, REDELIVERED, 0)
    # Both are there if the broker died while it converted a queue: what is in both counts once.
    rows = np.concatenate([new, old[~np.isin(old["sequence"], new["sequence"])]])
    folder.rows = rows[np.argsort(rows["sequence"], kind="stable")]
    folder.rows["level"] = folder.level
    own = files.files[first:]
    folder.changed_ms = max((each.mark[2] // 10**6 for each in own), default=0)
    kinds = {each.path.suffix for each in own}
    folder.versions = ["v1"] * (".idx" in kinds or ".jif" in kinds) + ["v2"] * (".qi" in kinds)


def _entries(path: Path, damages: Damages) -> int:
    try:
        return entries_of_segment(path)
    except Corrupt as error:
        damages[".config", f"{error.what}: {NEW_ENTRIES} entries in each segment are assumed"] += 1
        return NEW_ENTRIES


NEW_ENTRIES: Final = 2048
"""The entries of a segment in vhosts that RabbitMQ 3.8.17 or newer made."""


def _vhost_name(path: Path, damages: Damages) -> bytes:
    file = path / ".vhost"
    name = _read_small(file) if file.is_file() else b""
    if not name or (_digest(name) != path.name and _DIGEST.fullmatch(path.name)):
        damages[".vhost", "not the name to which the folder belongs"] += 1
    return name or os.fsencode(path.name)


def _name_queue(folder: _Folder, vhost: bytes, files: VhostFiles) -> None:
    """Set the names of a queue: those in its `.queue_name`, or the name of the folder if they are damaged."""
    file = folder.path / ".queue_name"
    raw = _read_small(file) if ".queue_name" in folder.names else b""
    raw = raw.removesuffix(b"\nINDEX: v2\n").removesuffix(b"\n")
    found = re.fullmatch(rb"VHOST: (.*)\nQUEUE: (.*)", raw, re.DOTALL)
    if found is None or _digest(b"queue" + found[1] + found[2]) != folder.path.name:
        folder.damages[shown_path(file.relative_to(files.folder)), "no name of a queue"] += 1
        folder.vhost, folder.name = vhost, os.fsencode(folder.path.name)
        return
    folder.vhost, folder.name = found[1], found[2]
    if folder.name[-2:-1] == b"\0":
        folder.name, folder.level = folder.name[:-2], folder.name[-1]


def _digest(name: bytes) -> str:
    """Return the name of a folder: an MD5 as a number of base 36."""
    number, digits = int.from_bytes(hashlib.md5(name, usedforsecurity=False).digest(), "big"), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
    return digits


def _recovery_terms(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the terms of a clean stop, by the name of a queue's folder: none if the stop was not clean."""
    file, found = path / "recovery.dets", dict[str, Mapping[str, Any]]()
    if not (path / STORE / "clean.dot").is_file() or not file.is_file():
        return found
    with opened(file) as descriptor:
        raw = read_at(descriptor, 0, min(os.fstat(descriptor).st_size, _TERMS_SIZE_BYTES_MAX), path=file)
    for each in _TERM.finditer(raw):
        size = max(int.from_bytes(each[1], "big") - 4, 0)
        try:
            key, terms = decode_term(raw[each.end() : each.end() + size], where=shown_path(file))
            found[bytes(key).decode()] = {name: value for name, value in terms if isinstance(value, int)}
        except (Corrupt, TypeError, ValueError):
            continue  # without its terms, a queue counts as one that was not stopped cleanly
    return found


def _check_unchanged(path: Path, files: VhostFiles, folders: Sequence[_Folder]) -> None:
    """Raise `TryAgain` if a file was added, removed or changed since it was read."""
    files.check()
    if [(each, _names_in(each)) for each in _folders(path / "queues")] != [
        (each.path, each.names) for each in folders
    ]:
        raise changed(path / "queues")


def _index_name(folder: _Folder, files: VhostFiles) -> str:
    return shown_path(folder.path.relative_to(files.folder))


def _folders(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return ()
    with explained("list", path), os.scandir(path) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())


def _names_in(path: Path) -> Sequence[str]:
    with explained("list", path):
        return sorted(os.listdir(path))


def _read_small(path: Path) -> bytes:
    with opened(path) as descriptor:
        return read_at(descriptor, 0, _NAME_SIZE_BYTES_MAX, path=path)
