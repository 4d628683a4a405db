"""The offsets that consumers store, in memory, and on the disk if a file is given.

A query is answered from memory, so it sees what was stored just before: clients poll an offset until they
read it back. The file is an SQLite database with one table:

    offsets    stream, reference, offset (decimal digits: a number of SQLite has 63 bits); newest row last

It is written `COMMIT_SECONDS` after a store at most, and at the end. A process that is killed loses what was
stored since, so a consumer reads some messages again. If the file cannot be written, offsets stay in memory,
and writing is tried again. If it was removed or replaced meanwhile, all offsets are written to the one that
has its name now, since what is written to a file without a name is lost.

Invariants: one process has the file, and a second one is refused at its start; of more than `OFFSETS_MAX`
pairs of stream and reference, those that were stored last are kept, in memory and in the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Final

from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.ground.outside import number_outside

OFFSETS_MAX: Final = 100_000
COMMIT_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 5.0
APPLICATION_ID: Final = int.from_bytes(b"OFLO", "big")
"""Marks our files in the header of SQLite's, so that no other program's database is written to."""

ConsumerKey = tuple[str, str]
"""A stream and the reference of a consumer."""

_log: Final = logging.getLogger(__name__)


class OffsetsInMemory:
    """The offsets that were stored since the process began."""

    def __init__(self) -> None:
        self._offsets: OrderedDict[ConsumerKey, int] = OrderedDict()

    def store(self, stream: str, reference: str, offset: int) -> None:
        """Remember an offset. The pair that was stored the longest ago makes room."""
        self._offsets[stream, reference] = offset
        self._offsets.move_to_end((stream, reference))
        self._note((stream, reference), offset)
        if len(self._offsets) > OFFSETS_MAX:
            self._note(self._offsets.popitem(last=False)[0], None)

    def query(self, stream: str, reference: str) -> int | None:
        """Return the offset that was stored last."""
        return self._offsets.get((stream, reference))

    async def keep(self) -> None:
        """Write what is stored, until this is cancelled. Nothing is written without a file."""

    async def aclose(self) -> None:
        """Write what is not written yet, and let the file go."""

    def _note(self, pair: ConsumerKey, offset: int | None) -> None:
        """Note what the file lacks."""


class OffsetsInFile(OffsetsInMemory):
    """Offsets that a restart does not forget."""

    def __init__(self, path: str, env: Env, problems: MutableMapping[str, str]) -> None:
        """Open the file, or make it. `problems` takes what an operator must know.

        Raises `Misuse` if it is damaged, is no file of offsets, cannot be read, or is in use.
        """
        super().__init__()
        self._path, self._env, self._problems = path, env, problems
        self._lacking: dict[ConsumerKey, int | None] = {}
        """What the file lacks, in the order of the stores. None for a pair that is forgotten."""

        self._is_lacking = asyncio.Event()
        self._writing = threading.Lock()
        with _refused(path):
            self._offsets.update(self._take())

    async def keep(self) -> None:
        """See `OffsetsInMemory.keep`."""
        while True:
            await self._is_lacking.wait()
            await self._env.sleep(COMMIT_SECONDS)
            if not await self._written():
                await self._env.sleep(RETRY_SECONDS)

    async def aclose(self) -> None:
        """See `OffsetsInMemory.aclose`."""
        await self._written()
        self._file.close()

    def _take(self) -> Mapping[ConsumerKey, int]:
        """Open the file of this name, and return the offsets in it. Raises `sqlite3.Error`."""
        self._file = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            found = _opened(self._file)
            self._identity = _identity(self._path)
        except BaseException:
            self._file.close()
            raise
        return found

    def _note(self, pair: ConsumerKey, offset: int | None) -> None:
        self._lacking.pop(pair, None)  # the newest comes last
        self._lacking[pair] = offset
        self._is_lacking.set()

    async def _written(self) -> bool:
        """Write what the file lacks. Return False if that fails."""
        is_lost = await asyncio.to_thread(_identity, self._path) != self._identity
        if is_lost:
            self._lacking = dict[ConsumerKey, int | None](self._offsets)
        taken = dict(self._lacking)
        error = await asyncio.to_thread(self._write, taken, is_lost=is_lost)
        if error is not None:
            if self._path not in self._problems:
                _log.error("offsets stay in memory, because %r cannot be written: %s", self._path, error)
            self._problems[self._path] = f"offsets are only in memory: {self._path}: {error}"
            return False
        if self._problems.pop(self._path, None) is not None:
            _log.info("offsets are written to %r again", self._path)
        if is_lost:
            _log.warning("%r was removed or replaced: all offsets were written to it again", self._path)
        # Only now: if this is cancelled while a thread writes, all of it is written once more.
        self._lacking = {pair: each for pair, each in self._lacking.items() if taken.get(pair, -1) != each}
        if not self._lacking:
            self._is_lacking.clear()
        return True

    def _write(self, taken: Mapping[ConsumerKey, int | None], *, is_lost: bool) -> Exception | None:
        rows = [(*pair, str(offset)) for pair, offset in taken.items() if offset is not None]
        try:
            with self._writing:
                if is_lost:
                    self._file.close()
                    self._take()
                with _transaction(self._file) as file:
                    file.executemany("DELETE FROM offsets WHERE stream = ? AND reference = ?", taken)
                    file.executemany("INSERT INTO offsets VALUES (?, ?, ?)", rows)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            return error
        return None


def _identity(path: str) -> tuple[int, int] | None:
    """Return what distinguishes the file of this name from others. None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _opened(file: sqlite3.Connection) -> Mapping[ConsumerKey, int]:
    """Take the file for this process, and return the offsets in it. Raises `sqlite3.Error`."""
    file.execute("PRAGMA locking_mode = EXCLUSIVE")  # the lock of a transaction is never released
    with _transaction(file):
        [(found,)] = file.execute("PRAGMA application_id")
        [(tables,)] = file.execute("SELECT count(*) FROM sqlite_master")
        if found != APPLICATION_ID and (found or tables):
            raise sqlite3.DatabaseError("it is a database of another program")
        file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        file.execute(
            "CREATE TABLE IF NOT EXISTS offsets (stream TEXT NOT NULL, reference TEXT NOT NULL, "
            "offset TEXT NOT NULL, UNIQUE (stream, reference))"
        )
    [(verdict,)] = file.execute("PRAGMA quick_check(1)")
    if verdict != "ok":
        raise sqlite3.DatabaseError("it is damaged")
    offsets = dict[ConsumerKey, int]()
    newest = "SELECT stream, reference, offset FROM offsets ORDER BY rowid DESC LIMIT ?"
    for stream, reference, text in reversed(file.execute(newest, (OFFSETS_MAX,)).fetchall()):
        offset = number_outside(str(text))
        if offset is None or offset >= 2**64:
            raise sqlite3.DatabaseError("a row of it has no offset")
        offsets[str(stream), str(reference)] = offset
    return offsets


@contextmanager
def _transaction(file: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    file.execute("BEGIN EXCLUSIVE")
    try:
        yield file
        file.execute("COMMIT")
    except BaseException:
        if file.in_transaction:
            file.execute("ROLLBACK")
        raise


@contextmanager
def _refused(path: str) -> Iterator[None]:
    """Raise `Misuse` for what SQLite says at the start."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # damage may be in a name, too
        is_locked = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
        why = "another process has it" if is_locked else error
        raise Misuse(f"the file of offsets {path!r} cannot be used: {why}") from error
