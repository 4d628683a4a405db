"""Objects as files below one folder: a key is a relative path, the bytes of the file are the object's.

    <root>/<key>              an object, whole and durable from the moment its name is there
    <root>/.staging/<name>    a file under way; no key begins with a dot, and no listing shows it

A put writes a staged file, syncs it, renames it, and syncs the folder; a create links it instead,
because link(2) is the one call that both publishes a whole file and refuses to replace another,
atomically and on network file systems too. Blocking calls run in the store's own threads.

A failed sync is lost data, and repeating it would report success without being one. Before the file has
its name nothing was committed: `TryAgain`, and the next try writes every byte anew. After that it is
visible and may not last: `OutcomeUnknown`.

One thing a file system cannot do: `a` and `a/b` cannot both be objects. Whichever comes second
raises `Misuse`.

What a listing shows lasts, whoever wrote it: its folder was synced before (`folders`).
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Upload, check_key
from offload.errors import AlreadyExists, Misuse, NotFound, OffloadError, OutcomeUnknown
from offload_posix.failures import explained, failure
from offload_posix.folders import Folders, open_folder
from offload_posix.pool import Pool, settle
from offload_posix.reading import read
from offload_posix.staging import FOLDER, Staged, sweep
from offload_posix.upload import PosixUpload
from offload_posix.walk import level, walk

PART_SIZE_BYTES_MAX: Final = 255  # of one part of a key: a file name, on every file system we met
PAGE_ROWS: Final = 256


class PosixStore(ObjectStore):
    """The store below `root`, which comes into being with the first write.

    `names` gives names for staged files and must never repeat one; `threads` bounds the blocking
    calls under way. Any number of stores, in any number of processes, may use one root.
    """

    def __init__(
        self,
        *,
        root: str | os.PathLike[str],
        names: Callable[[], str] = lambda: uuid.uuid4().hex,
        threads: int = 8,
    ) -> None:
        self._root = os.path.abspath(root)
        self._names = names
        self._pool = Pool(threads)
        self._folders = Folders(self._root)
        self._sweeping = threading.Lock()
        self._swept = False

    @property
    def url(self) -> str:
        """`file://` and the absolute path of the root, `%XX` for what would not be read back as itself."""
        return "file://" + str(self._root).replace("%", "%25")

    @property
    def capabilities(self) -> Capabilities:
        """All of it, within the limits of the file system."""
        return Capabilities(atomic_create=True, strong_listing=True, multipart=True, durable=True)

    async def put(self, key: str, body: Body) -> None:
        """Write, sync, rename. While a window is being written the next one is fetched."""
        parts = _parts(key)
        staged = Staged()
        try:
            await self._pool.finish(self._open, staged)
            await self._write(staged, body, key)
            await self._pool.finish(self._replace, staged, parts)
        except BaseException:
            await self._pool.finish(staged.discard)
            raise

    async def create(self, key: str, data: bytes) -> None:
        """Write, sync, link: in one go, as the object is small."""
        parts = _parts(key)
        await self._pool.finish(self._create, parts, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Open, read, close. Cancelling leaves the read to end by itself."""
        return await self._pool.submit(self._read, _parts(key), span)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Walk the folders, a page at a time."""
        rows = walk(self._root, prefix, after, self._make_last)
        while page := await self._pool.finish(self._page, rows, prefix):
            for row in page:
                yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """One folder is read, and into each folder in it is looked for an object."""
        for name in await self._pool.finish(self._level, prefix):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Unlink, folder by folder, and sync each folder once. Folders stay: see `folders`."""
        for folder, group in groupby(sorted(map(_parts, keys)), key=lambda parts: parts[:-1]):
            await self._pool.finish(self._unlink, folder, [parts[-1] for parts in group])

    async def start_upload(self, key: str) -> Upload:
        """Stage a file for the parts."""
        parts = _parts(key)
        staged = Staged()
        try:
            await self._pool.finish(self._open, staged)
        except BaseException:
            await self._pool.finish(staged.discard)
            raise
        publish = partial(self._pool.finish, self._replace, staged, parts)
        return PosixUpload(key, self._path(parts), staged, self._pool, publish)

    async def aclose(self) -> None:
        """Let the threads go. Calls made afterwards raise `Misuse`."""
        self._pool.close()

    async def _write(self, staged: Staged, body: Body, key: str) -> None:
        """Hand window after window to the pool, at most one being written and one fetched."""
        at = 0
        writing: asyncio.Future[None] | None = None
        windows = body.windows()
        try:
            async for window in windows:
                if writing is not None:
                    await asyncio.shield(writing)
                writing = self._pool.submit(self._write_window, staged, window, at, key)
                at += len(window)
                if at > body.size_bytes:
                    break  # rather than fill the disk with it
            if writing is not None:
                await asyncio.shield(writing)
        finally:
            if writing is not None:
                await settle(writing)  # the thread holds the descriptor
            if isinstance(windows, AsyncGenerator):
                await windows.aclose()
        if at != body.size_bytes:
            raise Misuse(f"the body of {key!r} announced {body.size_bytes} bytes and yielded {at}")

    # What follows blocks, and runs in the pool.

    def _write_window(self, staged: Staged, window: bytes, at: int, key: str) -> None:
        with explained("writing", f"{self._root}/{key}"):
            staged.write(window, at)

    def _open(self, staged: Staged) -> None:
        with explained("staging a file in", f"{self._root}/{FOLDER}"):
            folder = self._folders.open_for_writing([FOLDER])
            with self._sweeping:
                if not self._swept:
                    sweep(folder)
                    self._swept = True
            staged.open(folder, self._names)

    def _replace(self, staged: Staged, parts: Sequence[str]) -> None:
        with explained("writing", self._path(parts)):
            folder = self._folders.open_for_writing(parts[:-1])
            try:
                staged.rename(folder, parts[-1])
                self._sync(folder, parts)
            finally:
                os.close(folder)
        staged.discard()

    def _create(self, parts: Sequence[str], data: bytes) -> None:
        staged = Staged()
        try:
            self._open(staged)
            with explained("creating", self._path(parts)):
                staged.write(data, 0)
                folder = self._folders.open_for_writing(parts[:-1])
                try:
                    self._link(staged, folder, parts)
                    staged.discard()
                    self._sync_created(folder, parts)
                finally:
                    os.close(folder)
        finally:
            staged.discard()

    def _link(self, staged: Staged, folder: int, parts: Sequence[str]) -> None:
        try:
            staged.link(folder, parts[-1])
        except FileExistsError as error:
            if not stat.S_ISREG(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                raise Misuse(f"creating {self._path(parts)}: what has this name is no object") from error
            raise AlreadyExists("/".join(parts)) from error

    def _sync(self, folder: int, parts: Sequence[str]) -> None:
        """Make names in an open folder last. They are visible already: hence `OutcomeUnknown`."""
        try:
            os.fsync(folder)
        except OSError as error:
            raise OutcomeUnknown(
                f"syncing the folder of {self._path(parts)}: {error.strerror}; "
                f"the change is visible and may not survive a power cut: check the device"
            ) from error

    def _sync_created(self, folder: int, parts: Sequence[str]) -> None:
        """As `_sync`, but no listing may make a success of it: a power cut would take a commit."""
        try:
            self._sync(folder, parts)
        except OutcomeUnknown as error:
            raise OffloadError(str(error)) from error

    def _make_last(self, folder: int, parts: Sequence[str]) -> None:
        """Let a listing show only names that last; no retry may make a success of a sync that failed."""
        try:
            self._folders.make_last(folder, parts)
        except OSError as error:
            raise OffloadError(
                f"syncing {self._path(parts)}: {error.strerror}; "
                f"the files in it may not survive a power cut: look into the kernel's log"
            ) from error

    def _read(self, parts: Sequence[str], span: Span | Suffix | None) -> bytes:
        absent = NotFound("/".join(parts), store=self.url)
        with explained("reading", self._path(parts), absent=absent):
            return read(self._root, parts, span, absent=absent)

    def _unlink(self, folder_parts: Sequence[str], names: Sequence[str]) -> None:
        try:
            folder = open_folder(self._root, folder_parts)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise failure(error, "deleting below", self._path(folder_parts)) from error
        try:
            for name in names:
                with explained("deleting", self._path([*folder_parts, name])):
                    _unlink_object(folder, name)
            self._sync(folder, [*folder_parts, names[0]])
        finally:
            os.close(folder)

    def _page(self, rows: Iterator[Listed], prefix: str) -> Sequence[Listed]:
        with explained("listing", self._path([prefix])):
            return tuple(islice(rows, PAGE_ROWS))

    def _level(self, prefix: str) -> Sequence[str]:
        with explained("listing", self._path([prefix])):
            return tuple(level(self._root, prefix))

    def _path(self, parts: Sequence[str]) -> str:
        return "/".join((self._root, *parts))


def _parts(key: str) -> tuple[str, ...]:
    """The folders and the file name of a key, or `Misuse` where it cannot be a path."""
    parts = tuple(check_key(key).split("/"))
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError as error:
        raise Misuse(f"{key!r} is not an object key: it is not UTF-8") from error
    if max(sizes) > PART_SIZE_BYTES_MAX:
        raise Misuse(f"{key[:40]!r}… is too long: a part of it has more than {PART_SIZE_BYTES_MAX} bytes")
    return parts


def _unlink_object(folder: int, name: str) -> None:
    """Remove a file, or nothing where there is none; a folder is no object, and stays."""
    with suppress(FileNotFoundError, IsADirectoryError):
        os.unlink(name, dir_fd=folder)
