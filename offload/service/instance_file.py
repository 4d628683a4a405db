"""The file that makes one process after another the same instance, and lets only one of them live.

    run.toml             the configuration
    run.toml.instance    a random text, written once; locked by `flock` as long as the process lives

The kernel frees the lock when the process ends, however it ends. So whoever has the lock knows that every
earlier process with this identity is dead (`copy.instance`).

The identity is a hash of the text, of the file's path and inode, and of the machine's id and name. A copy of
the file has another inode or path, or is on another machine, and so makes another identity. What remains are
machines that were cloned with everything, name and id included, or a file that two machines with one id and
one name share without sharing locks. Then two processes believe each other dead, and each start of one of
them costs the other one a claim, until it notices (`Instance.note_shared`).

The device of the file does not count: on many file systems its number is another after each mount.

Invariant: a process without the lock has no identity. It works as any stranger does, and only waits longer.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from offload.copy.instance import Instance
from offload.ground.env import REAL_ENV, Env
from offload.ground.errors import Conflict
from offload.service.address import OFF

__all__ = ["held_instance", "instance_path"]


SUFFIX: Final = ".instance"
STATE_VARIABLE: Final = "STATE_DIRECTORY"
"""The folder that a service manager gives to a service, for what shall outlive a process."""

MACHINE_IDS: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
INSTANCE_SIZE_BYTES_MAX: Final = 4096
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def instance_path(given: str | None, config: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the place of the file; None if this process is to have no identity.

    `given` is a path, which begins at the folder of `config`, or "off". If none is given, the file is in the
    folder that a service manager gave to the service, or else beside `config`.
    """
    if given == OFF or (given is None and config is None):
        return None
    folder = Path() if config is None else config.parent
    if given is not None:
        return folder / given
    assert config is not None
    state = environ.get(STATE_VARIABLE, "").split(":")[0]
    return Path(state or folder) / f"{config.name}{SUFFIX}"


@contextmanager
def held_instance(path: Path, *, env: Env = REAL_ENV) -> Iterator[Instance]:
    """Hold the identity of a file, which is made if it is absent, until the end of the block.

    Raises `Conflict` if another process holds it, and `OSError` if the file cannot be made, read or locked.
    """
    path = path.absolute()
    descriptor = _locked(path)
    try:
        yield Instance.of(*_facts(path, descriptor, env))
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    while True:
        descriptor = os.open(path, _OPEN, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Somebody may have removed or replaced it meanwhile. Then another process may lock the new one.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise Conflict(
                f"another process with the identity {path} runs already: end it (`fuser {path}` shows it), "
                "or give this one an `instance` of its own"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _facts(path: Path, descriptor: int, env: Env) -> Iterator[bytes]:
    yield b"ledger-offload instance"
    yield _text(descriptor, env)
    yield os.fsencode(path.resolve())
    yield b"%d" % os.fstat(descriptor).st_ino
    yield _machine_id()
    yield socket.gethostname().encode(errors="surrogateescape")


def _text(descriptor: int, env: Env) -> bytes:
    """Return the text of the file, which is written first if there is none."""
    text = os.pread(descriptor, INSTANCE_SIZE_BYTES_MAX, 0)
    # A power cut may leave no text, or a part of one. Any text will do.
    if not text.strip(b"\0\n"):
        text = env.secret(16).hex().encode() + b"\n"
        os.pwrite(descriptor, text, 0)
        os.fsync(descriptor)
    return text


def _machine_id() -> bytes:
    """Return the id of this machine. Empty if it has none, as many containers: then its name counts alone."""
    for path in MACHINE_IDS:
        with suppress(OSError):
            return path.read_bytes().strip()
    return b""
