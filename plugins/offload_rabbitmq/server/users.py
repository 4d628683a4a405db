"""Who may log in: the file of users, and the check of a login.

    NAME:$scrypt$ln=14,r=8,p=5$SALT$HASH

Each line is a user. NAME is UTF-8. SALT has 16 bytes and HASH 32, in base64 without padding (RFC 7914, in the
notation of the PHC string format). `offload users add` writes the lines, and the password is nowhere.

A login costs a fifth of a second of a processor. One thread does this work, so other connections are served
meanwhile. The clients of one host take turns, so a host that tries many passwords delays others by one try at
most. A password that was right is known again by a keyed hash in memory: a service that connects many times
pays once.

Invariants: an unknown name costs what a known one costs; comparisons take the same time wherever texts
differ; no password is kept or shown.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
from base64 import b64decode, b64encode
from collections.abc import MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from hashlib import scrypt
from typing import Final
from weakref import WeakValueDictionary

from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.ground.outside import Unreadable, text_outside
from offload_rabbitmq.stream_frames import Code

SALT_SIZE_BYTES: Final = 16
HASH_SIZE_BYTES: Final = 32
COSTS: Final = "$scrypt$ln=14,r=8,p=5$"
"""All lines have these, so that all logins cost the same. A hash takes 16 MiB."""

PASSWORD_SIZE_BYTES_MAX: Final = 1024
NAME_SIZE_BYTES_MAX: Final = 255
FILE_SIZE_BYTES_MAX: Final = 8 * 2**20
PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"

_ENCODED: Final = r"([A-Za-z0-9+/]{%d})"  # base64 of 16 and of 32 bytes
_LINE: Final = re.compile(rf"([^:]+):{re.escape(COSTS)}{_ENCODED % 22}\${_ENCODED % 43}")

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """The hash of a password."""

    salt: bytes
    hash: bytes

    @classmethod
    def of(cls, password: bytes, salt: bytes) -> PasswordHash:
        """Compute it, which takes long."""
        return cls(salt, scrypt(password, salt=salt, n=2**14, r=8, p=5, maxmem=2**25, dklen=HASH_SIZE_BYTES))

    def line(self, name: str) -> str:
        """Return the line of a user."""
        salt, found = (b64encode(each).decode().rstrip("=") for each in (self.salt, self.hash))
        return f"{name}:{COSTS}{salt}${found}"


def read_users(path: str) -> dict[str, PasswordHash]:
    """Return the users of a file. Raises `Misuse`, with the number of the line, if one is wrong or cut."""
    try:
        text = text_outside(path, size_bytes_max=FILE_SIZE_BYTES_MAX)
    except (OSError, Unreadable) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Misuse(f"the file of users {path!r} cannot be read: {why}") from error
    users = dict[str, PasswordHash]()
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        if (found := _LINE.fullmatch(line)) is None:
            # Without the line itself: it may be a password that somebody wrote there.
            raise Misuse(
                f"line {number} of the file of users {path!r} is no line of `offload users add`, or is cut"
            )
        name, salt, hashed = found.groups()
        if name in users:
            raise Misuse(f"line {number} of the file of users {path!r} names {name!r} a second time")
        users[name] = PasswordHash(b64decode(salt + "=="), b64decode(hashed + "="))
    return users


def write_user(path: str, name: str, password: bytes, env: Env) -> bool:
    """Add a user to a file, or give one another password. Return True if the user is new.

    The file is replaced at once, and only its owner can read it. Raises `Misuse` if the name or the password
    cannot be used, and as `read_users`.
    """
    if not name.isprintable() or ":" in name or not 0 < len(name.encode()) <= NAME_SIZE_BYTES_MAX:
        raise Misuse(f"a name has 1 to {NAME_SIZE_BYTES_MAX} bytes, can be printed, and has no colon")
    if not 0 < len(password) <= PASSWORD_SIZE_BYTES_MAX or b"\0" in password:
        raise Misuse(f"a password has 1 to {PASSWORD_SIZE_BYTES_MAX} bytes, and none of them is NUL")
    path = os.path.realpath(path)
    try:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
    except OSError as error:
        raise Misuse(f"the file of users {path!r} cannot be written: {error.strerror}") from error
    try:
        flock(folder, LOCK_EX)  # two commands at once would lose a user
        users = read_users(path) if os.path.exists(path) else {}
        is_new = name not in users
        users[name] = PasswordHash.of(password, env.secret(SALT_SIZE_BYTES))
        text = "".join(each.line(user) + "\n" for user, each in users.items())
        _replace(path, f"{path}.{env.secret(4).hex()}.new", text)
        os.fsync(folder)
    except OSError as error:
        raise Misuse(f"the file of users {path!r} cannot be written: {error.strerror}") from error
    finally:
        os.close(folder)
    return is_new


def _replace(path: str, staged: str, text: str) -> None:
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            if os.path.exists(path):  # it stays the file of the service's user, whoever adds to it
                os.fchown(descriptor, os.stat(path).st_uid, os.stat(path).st_gid)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(staged, path)
    except BaseException:
        os.unlink(staged)
        raise


class Everybody:
    """Lets everybody in who speaks one of the mechanisms."""

    mechanisms: Sequence[str] = (PLAIN, ANONYMOUS)

    async def may_enter(self, mechanism: str, data: bytes | None, *, host: str) -> Code:
        """Return `OK`, or the code for a mechanism or for data that is wrong."""
        if mechanism not in self.mechanisms:
            return Code.NO_MECHANISM
        return Code.SASL_ERROR if mechanism == PLAIN and _plain(data) is None else Code.OK

    def close(self) -> None:
        """Do nothing."""


class UsersInFile:
    """Lets the users of a file in. The file is read again if it has changed."""

    mechanisms: Sequence[str] = (PLAIN,)

    def __init__(self, path: str, env: Env, problems: MutableMapping[str, str]) -> None:
        """Read the file. Raises `Misuse` as `read_users`. `problems` takes what an operator must know."""
        self._path, self._problems = path, problems
        self._seen = self._version()
        self._users = read_users(path)
        self._key = env.secret(32)
        self._known: dict[str, bytes] = {}
        self._nobody = PasswordHash(env.secret(SALT_SIZE_BYTES), env.secret(HASH_SIZE_BYTES))
        self._thread = ThreadPoolExecutor(1, "offload-logins")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def may_enter(self, mechanism: str, data: bytes | None, *, host: str) -> Code:
        """Return `OK`, or the code of the refusal."""
        if mechanism not in self.mechanisms:
            return Code.NO_MECHANISM
        if (login := _plain(data)) is None:
            return Code.SASL_ERROR
        turn = self._turns.setdefault(host, asyncio.Lock())
        async with turn:
            loop = asyncio.get_running_loop()
            is_right = await loop.run_in_executor(self._thread, self._is_right, *login)
        return Code.OK if is_right else Code.AUTHENTICATION_FAILED

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_right(self, name: str, password: bytes) -> bool:
        # Runs in the thread, as everything below.
        self._look()
        keyed = hmac.digest(self._key, password, "sha256")
        if hmac.compare_digest(self._known.get(name, b""), keyed):
            return True
        stored = self._users.get(name, self._nobody)
        is_right = hmac.compare_digest(PasswordHash.of(password, stored.salt).hash, stored.hash)
        if is_right:
            self._known[name] = keyed
        return is_right

    def _look(self) -> None:
        """Read the file if it is another one. If it is wrong, the users of before stay."""
        version = self._version()
        if version == self._seen:
            return
        self._seen = version
        try:
            self._users = read_users(self._path)
        except Misuse as error:
            self._problems[self._path] = f"{error}; the users of before may still log in"
            _log.error("%s", self._problems[self._path])
        else:
            self._known.clear()
            self._problems.pop(self._path, None)

    def _version(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns


def _plain(data: bytes | None) -> tuple[str, bytes] | None:
    """Return the name and the password of a login (RFC 4616). None if it is malformed.

    What the user wants to act as is ignored, as RabbitMQ does it: all users may read everything.
    """
    parts = (data or b"").split(b"\0")
    return (parts[1].decode("utf-8", "replace"), parts[2]) if len(parts) == 3 else None
