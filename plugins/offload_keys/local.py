"""Key services whose master keys are in the process: in files, or in variables of the environment.

A master key is 32 random bytes, written as base64. A wrapped key is a version (1 byte, 1) and the key sealed
by the master key, with the label and the context as associated data.

Master keys of a folder may be made and destroyed by the program, for streams with a master key of their own.
Keys in one file and in variables may not.

Invariants: a master key is read for each call and kept nowhere; no error shows a part of one; a label never
leads to a file outside its folder.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import shlex
import stat
import tempfile
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from offload.contracts.keys import KeyService, check_label
from offload.ground.errors import Denied, Misuse, NoSuchKey
from offload_keys.binding import KEY_SIZE_BYTES, SEALED_SIZE_BYTES, bound, opened, sealed

VERSION: Final = b"\x01"
WRAPPED_SIZE_BYTES: Final = len(VERSION) + SEALED_SIZE_BYTES
FILE_SIZE_BYTES_MAX: Final = 1024 * 1024

NEW_KEY: Final = "head -c 32 /dev/urandom | base64"
"""The shell command that makes a master key."""

LINE: Final = "a line has a label, a space, and a key"


class LocalKeys(KeyService):
    """A key service that finds the text of a master key by `find`, which may block on the disk.

    `find` raises `Denied` if it has no key of this label.
    """

    __slots__ = ("_find", "_url")

    def __init__(self, url: str, find: Callable[[str], bytes]) -> None:
        self._url, self._find = url, find

    def __repr__(self) -> str:
        return f"LocalKeys({self._url!r})"

    async def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        """See `KeyService.wrap`."""
        if len(key) != KEY_SIZE_BYTES:
            raise Misuse(f"a key of a stream has {KEY_SIZE_BYTES} bytes, and this one has {len(key)}")
        return VERSION + sealed(await self._master(label), key, bound(label, context))

    async def unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """See `KeyService.unwrap`."""
        master = await self._master(label)
        if len(wrapped) != WRAPPED_SIZE_BYTES or wrapped[:1] != VERSION:
            raise Denied(
                f"{self._url}: this is no key that a file or variable has wrapped; use another --keys"
            )
        key = opened(master, wrapped[len(VERSION) :], bound(label, context))
        if key is None:
            raise Denied(f"{self._url.removesuffix(':')}: the master key {label!r} did not wrap this key")
        return key

    async def _master(self, label: str) -> bytes:
        # A thread, because a key file may be on a disk that does not answer.
        text = await asyncio.to_thread(self._find, check_label(label))
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except binascii.Error:
            key = b""
        if len(key) != KEY_SIZE_BYTES:
            raise Denied(
                f"{self._url.removesuffix(':')}: the master key {label!r} is not 32 bytes as base64; "
                f"restore it from a backup; only for new streams, make a new one: {NEW_KEY}"
            )
        return key


class FileKeys(LocalKeys):
    """The key service of a folder with a file for each label, or of one file with lines."""

    __slots__ = ("_place",)

    def __init__(self, place: Path) -> None:
        super().__init__(f"keyfile:{place}", partial(_in_files, place))
        self._place = place

    async def create(self, label: str) -> None:
        """See `KeyService.create`. The file belongs to its owner alone."""
        await asyncio.to_thread(_make, self._of_its_own(label))

    async def destroy(self, label: str) -> float:
        """See `KeyService.destroy`. A backup of the folder still has the key."""
        await asyncio.to_thread(_remove, self._of_its_own(label))
        return 0.0

    def _of_its_own(self, label: str) -> Path:
        if not self._place.is_dir():
            raise Denied(f"{self._url}: a stream's own master key needs a folder of keys, and this is none")
        return self._place / check_label(label)


def open_files(url: str) -> LocalKeys:
    """Return the key service of `keyfile:/path`, without access to the disk.

    The path is a folder with one file for each label, or a file with lines of a label and a key. Raises
    `Misuse` if it is no absolute path.
    """
    path = url.partition(":")[2].removeprefix("//")
    if not path.startswith("/") or "\0" in path:
        raise Misuse(
            f"{url!r} is no place of master keys: use keyfile: and an absolute path, keyfile:/etc/keys"
        )
    return FileKeys(Path(path))


def open_environment(url: str) -> LocalKeys:
    """Return the key service of `keyenv:`. The master key of label `a-1` is in `OFFLOAD_KEY_A_1`."""
    if url.partition(":")[2].removeprefix("//"):
        raise Misuse(f"{url!r}: nothing follows keyenv:, because the variables are named after the labels")
    return LocalKeys("keyenv:", _in_environment)


def _in_environment(label: str) -> bytes:
    # Labels have no underscore, so no two of them have the same variable.
    name = f"OFFLOAD_KEY_{label.upper().replace('-', '_')}"
    if (text := os.environ.get(name)) is None:
        missing = f"keyenv: has no master key {label!r}: set {name}"
        raise NoSuchKey(f"{missing}; only for new streams, make a new one: {NEW_KEY}")
    return text.encode(errors="replace")


def _in_files(place: Path, label: str) -> bytes:
    try:
        if not place.is_dir():
            return _in_lines(_private(place), place, label)
        path = place / label
        if place.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Denied(f"{place}: others can replace its keys; run chmod go-w {shlex.quote(str(place))}")
        return _private(path)
    except FileNotFoundError:
        target = place / label
        make = f"(umask 077; {NEW_KEY} > {shlex.quote(str(target))})"
        # A new key of this name opens nothing that the lost one has encrypted.
        missing = f"{target}: there is no such master key; restore it from a backup"
        raise NoSuchKey(f"{missing}; only for new streams, make a new one: {make}") from None
    except OSError as exc:
        raise Denied(f"{place}: cannot read the master key {label!r}: {exc.strerror}") from exc


def _in_lines(text: bytes, path: Path, label: str) -> bytes:
    """Return the key of a line `label key`. Empty lines and comments after `#` are skipped."""
    found = [line.split()[1:] for line in text.splitlines() if line.split()[:1] == [label.encode()]]
    if not found:
        raise NoSuchKey(f"{path}: it has no line for the master key {label!r}; {LINE}")
    if len(found) != 1 or len(found[0]) != 1:
        raise Denied(f"{path}: it needs exactly one line for the master key {label!r}; {LINE}")
    return found[0][0]


def _make(path: Path) -> None:
    try:
        # Under another name first: whoever reads the file at this moment must not find half a key. A link
        # fails if the file exists, which is then the same key from a call whose reply was lost.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-") as draft:
            # A master key that somebody else could choose would be no secret, so nobody passes it in.
            key = os.urandom(KEY_SIZE_BYTES)  # noqa: TID251 - see above
            draft.write(base64.b64encode(key) + b"\n")
            draft.flush()
            os.fsync(draft.fileno())
            with suppress(FileExistsError):
                os.link(draft.name, path)
        _make_lasting(path.parent)  # a key that a power failure takes would take the data with it
    except OSError as exc:
        raise Denied(f"{path.parent}: cannot make the master key {path.name!r}: {exc.strerror}") from exc


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        _make_lasting(path.parent)  # a power failure must not bring back a key that was said to be destroyed
    except OSError as exc:
        raise Denied(f"{path.parent}: cannot destroy the master key {path.name!r}: {exc.strerror}") from exc


def _make_lasting(folder: Path) -> None:
    """Write the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _private(path: Path) -> bytes:
    """Return the bytes of a file that only its owner can read. Raises `Denied` for any other file."""
    # The open file is judged, because another one may have its name by the time of the read. Without
    # `O_NONBLOCK` the opening of a pipe would wait for a writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Denied(f"{path}: a master key is in a regular file")
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            mode, quoted = stat.S_IMODE(found.st_mode), shlex.quote(str(path))
            raise Denied(f"{path}: others can use this key (mode {mode:03o}); run chmod 600 {quoted}")
        if found.st_uid not in (0, os.geteuid()):
            raise Denied(f"{path}: it belongs to another user (uid {found.st_uid}), who can change the key")
        text = file.read(FILE_SIZE_BYTES_MAX + 1)
    if len(text) > FILE_SIZE_BYTES_MAX:
        raise Denied(f"{path}: a file of keys has at most {FILE_SIZE_BYTES_MAX} bytes")
    return text.removeprefix(BOM_UTF8)  # editors of Windows put it first
