"""The door of a process for people on its machine: a Unix socket with the routes, and with commands.

    GET /status and the other routes     as on the port (`service.http`)
    POST /streams/retry, pause, resume   a document: {"streams": ["orders"]}, or {"all": true}

The socket is at `control` of the configuration, or in a folder that a reboot may remove: the one that systemd
made (`RUNTIME_DIRECTORY`), `/run/offload`, that of the user (`XDG_RUNTIME_DIR`), or one below `/tmp`. Its
name there comes from source and tier. So `offload ctl` finds it by the same configuration, or takes the only
one.

Invariants:

- Only the user of the process and root are heard. The mode of the socket is 0600, and the kernel says who has
  connected: a mode that somebody has changed lets nobody in.
- A lock beside the socket is held as long as the process lives. The socket of a dead process is replaced, and
  that of a living one never.
- Requests have the bounds of `service.http`, and a size.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offload.ground.errors import Misuse
from offload.ground.urls import FILE_SCHEME, scheme_of

__all__ = [
    "Door",
    "connect_door",
    "default_name",
    "find_doors",
    "open_door",
    "peer_user_of",
    "runtime_folder",
]


SHARED_FOLDER: Final = Path("/run/offload")
"""The folder of the service in examples/sidecar."""

LIVING_SECONDS: Final = 1.0
"""The kernel accepts for a process that lives, also if it is busy."""

_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group of a peer, as `SO_PEERCRED` has them."""

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Door:
    """A socket that listens at a path, and the lock that says that its process lives."""

    path: Path
    listener: socket.socket
    lock: int
    """The descriptor of the file that is locked."""

    def close(self) -> None:
        """Close and remove the socket and its lock. Idempotent."""
        if self.lock < 0:
            return
        for each in (self.path, self.path.with_name(f"{self.path.name}.lock")):
            with suppress(OSError):
                each.unlink()
        self.listener.close()
        os.close(self.lock)
        self.lock = -1


def runtime_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder for the sockets of this user's processes. Makes it if it is the user's own.

    Raises `OSError` if it cannot be made, or belongs to somebody else.
    """
    if named := environ.get("RUNTIME_DIRECTORY"):
        return Path(named.partition(":")[0])
    if os.access(SHARED_FOLDER, os.W_OK) and SHARED_FOLDER.stat().st_uid == os.geteuid():
        return SHARED_FOLDER
    folder = _own_folders(environ)[0]
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_own(folder)
    return folder


def find_doors(environ: Mapping[str, str]) -> list[Path]:
    """Return the sockets at which a living process of this user listens, in order of names.

    A process that was killed leaves its socket behind.
    """
    folders = [SHARED_FOLDER, *_own_folders(environ)]
    if named := environ.get("RUNTIME_DIRECTORY"):
        folders.insert(0, Path(named.partition(":")[0]))
    found = []
    for folder in dict.fromkeys(folders):
        with suppress(OSError):
            found += [each for each in folder.iterdir() if each.suffix == ".sock" and _is_living(each)]
    return sorted(found)


def _is_living(path: Path) -> bool:
    try:
        connect_door(path, timeout_seconds=LIVING_SECONDS).close()
    except OSError:
        return False
    return True


def default_name(source: str, tier: str) -> str:
    """Return the name of the socket of a process that follows this source on this tier."""
    places = "\0".join(map(_absolute, (source, tier)))
    return f"run-{hashlib.sha256(places.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}.sock"


def open_door(path: Path) -> Door:
    """Listen at a path.

    Raises `Misuse` if a living process listens there, if something else is there, or if this cannot be done.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise Misuse(f"cannot listen at {path}: this system does not say who connects")
    try:
        with _at(path) as (folder, name):
            lock = _locked(folder, path)
            try:
                return Door(path=path, listener=_listening(folder, name, path), lock=lock)
            except BaseException:
                os.close(lock)
                raise
    except OSError as error:
        raise Misuse(f"cannot listen at {path}: {error.strerror or error}") from error


def connect_door(path: Path, *, timeout_seconds: float) -> socket.socket:
    """Return a connection to the process that listens at a path. Raises `OSError`."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.settimeout(timeout_seconds)
    try:
        with _at(path) as (_, name):
            connected.connect(name)
    except BaseException:
        connected.close()
        raise
    return connected


def peer_user_of(connected: socket.socket) -> int:
    """Return the number of the user who has connected, as the kernel has it. Raises `OSError`."""
    _, user, _ = _CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(user)


@contextmanager
def _at(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a descriptor of the folder, and a short name for the path: that of a socket has 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder, f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _locked(folder: int, path: Path) -> int:
    """Return the descriptor of the lock. Raises `Misuse` if a living process has it."""
    name, flags = f"{path.name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        lock = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A process that ends removes the file. A lock on a file without a name keeps nobody away.
            if os.path.samestat(os.fstat(lock), os.stat(name, dir_fd=folder, follow_symlinks=False)):
                return lock
        except BlockingIOError as error:
            os.close(lock)
            raise Misuse(f"cannot listen at {path}: another process that lives answers there") from error
        except FileNotFoundError:
            pass
        os.close(lock)


def _listening(folder: int, name: str, path: Path) -> socket.socket:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise Misuse(f"cannot listen at {path}: this is no socket; remove it, or name another path")
        os.unlink(path.name, dir_fd=folder)  # its process is dead: the lock was free
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(listener.fileno(), 0o600)  # before the bind, so that the name never has another mode
        listener.bind(name)
        os.chmod(path.name, 0o600, dir_fd=folder)  # where the line above has no effect
        listener.listen(16)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _own_folders(environ: Mapping[str, str]) -> list[Path]:
    user, found = os.geteuid(), []
    if named := environ.get("XDG_RUNTIME_DIR"):
        found.append(Path(named) / "offload")
    return [*found, Path(tempfile.gettempdir()) / f"offload-{user}"]


def _check_own(folder: Path) -> None:
    """Refuse a folder that somebody else made, or may write: that could hold a false socket."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of this user alone")


def _absolute(url: str) -> str:
    scheme = scheme_of(url)
    if scheme not in (None, FILE_SCHEME, "rabbitmq"):
        return url
    path = url if scheme is None else url.partition("//")[2]
    return f"{scheme or FILE_SCHEME}://{os.path.abspath(path)}"
