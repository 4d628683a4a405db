"""Objects as files below one folder: a key is a relative path, the bytes of the file are the object's.

    <root>/<key>              an object, whole from the moment its name exists
    <root>/.staging/<name>    a file that is being written; no key begins with a dot, and no listing shows it

A put writes a staged file, syncs it, renames it, and syncs the folder. A create links the file instead
of renaming it: link(2) is the one call that both publishes a whole file and refuses to replace another.
It is atomic, on network file systems too. Blocking calls run in the store's own threads.

A failed sync means lost data, and is never retried: the second one would report success for bytes that are
gone. The error depends on which sync fails:

    of the staged file         TryAgain          nothing is visible; the next try writes every byte again
    of the folder of a put     OutcomeUnknown    the object is visible, and a power cut may take it
    of the folder of a create  OffloadError      the same; but a commit must not rest on it (`_sync_created`)

A file system has one limit that object stores do not have: `a` and `a/b` cannot both be objects. The
second of the two raises `Misuse`.

Invariants: an object has its name only after its bytes were synced; `put`, `create` and `complete` return
only after its folder was synced; a listing syncs a folder before it shows a name in it, whoever wrote
the object (`folders`).
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, islice
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Buffer, Listed, ObjectStore, Span, Suffix, Upload, check_key
from offload.ground.env import REAL_ENV
from offload.ground.errors import AlreadyExists, Misuse, NotFound, OffloadError, OutcomeUnknown
from offload.store.buffers import BufferPool
from offload_posix.failures import explained, failure
from offload_posix.folders import Folders, open_folder
from offload_posix.pool import Pool, settle
from offload_posix.reading import read
from offload_posix.staging import FOLDER, Staged, sweep
from offload_posix.upload import PosixUpload
from offload_posix.walk import level, walk

PAGE_ROWS: Final = 256
"""The rows that one call in a thread lists. A caller that stops early has read few more than it wanted."""


class PosixStore(ObjectStore):
    """The store below `root`. The first write makes the root if it does not exist.

    A root that was seen and is replaced or gone is never made again: `StoreDenied` (`folders`).

    `names` returns names for staged files and must never repeat one. `now_ms` is the clock by which the file
    system dates its folders. `threads` is the greatest number of blocking calls at a time. Any number of
    stores, in any number of processes, may use one root.
    """

    def __init__(
        self,
        *,
        root: str | os.PathLike[str],
        names: Callable[[], str] = lambda: REAL_ENV.uuid().hex,
        now_ms: Callable[[], int] = REAL_ENV.now_ms,
        threads: int = 8,
    ) -> None:
        self._root = os.path.abspath(root)
        self._names = names
        self._pool = Pool(threads)
        self._buffers = BufferPool()
        self._folders = Folders(self._root, now_ms)
        self._sweeping = threading.Lock()
        self._swept = False

    @property
    def url(self) -> str:
        """`file://` and the absolute path of the root, with `%25` for each `%`, which a URL would decode."""
        return "file://" + str(self._root).replace("%", "%25")

    @property
    def capabilities(self) -> Capabilities:
        """Every capability, within the limits of the file system."""
        return Capabilities(
            atomic_create=True, strong_listing=True, multipart=True, unsized_put=True, durable=True
        )

    async def put(self, key: str, body: Body) -> None:
        """Write, sync, rename. While one window is written, the next one is fetched.

        Raises `Misuse` for metadata, before anything is written: a file has no place for it that survives a
        copy of the folder.
        """
        parts = _parts(key)
        check_metadata(body.metadata, self.capabilities)
        staged = Staged()
        try:
            # `finish` also waits when the task is cancelled: a thread that still writes holds the descriptor,
            # which `discard` closes, and whose number another file could have by then.
            await self._pool.finish(self._open, staged)
            await self._write(staged, body, key)
            await self._pool.finish(self._replace, staged, parts)
        except BaseException:
            # Also if the task was cancelled: no sweep removes a staged file as long as this process has its
            # lock.
            await self._pool.finish(staged.discard)
            raise

    async def create(self, key: str, data: bytes) -> None:
        """Write, sync, link: in one call in a thread, because the object is small."""
        parts = _parts(key)
        await self._pool.finish(self._create, parts, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Open, read, close. If the caller is cancelled, the thread still reads to the end."""
        return await self._pool.submit(self._read, _parts(key), span)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Walk the folders, one page at a time."""
        rows = walk(self._root, prefix, after, self._make_last)
        while page := await self._pool.finish(self._page, rows, prefix):
            for row in page:
                yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """Read one folder, and look for an object in each folder in it."""
        for name in await self._pool.finish(self._level, prefix):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Unlink files folder by folder, and sync each folder once. Folders stay: see `folders`."""
        for folder, group in groupby(sorted(map(_parts, keys)), key=lambda parts: parts[:-1]):
            await self._pool.finish(self._unlink, folder, [parts[-1] for parts in group])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Stage a file for the parts. Raises `Misuse` for metadata, as `put`."""
        parts = _parts(key)
        check_metadata(metadata, self.capabilities)
        staged = Staged()
        try:
            await self._pool.finish(self._open, staged)
        except BaseException:
            await self._pool.finish(staged.discard)
            raise
        publish = partial(self._pool.finish, self._replace, staged, parts)
        return PosixUpload(key, self._path(parts), staged, self._pool, publish)

    async def aclose(self) -> None:
        """Release the threads. Later calls raise `Misuse`."""
        self._pool.close()
        self._buffers.clear()

    async def _write(self, staged: Staged, body: Body, key: str) -> None:
        """Write the windows in the pool; at most one is written and one fetched at a time."""
        at = 0
        writing: asyncio.Future[None] | None = None
        windows = body.windows()
        try:
            async for window in windows:
                if writing is not None:
                    # Shielded: a cancelled future would look done although its thread still writes.
                    await asyncio.shield(writing)
                # Not awaited here: the next turn of the loop fetches a window while this one is written.
                writing = self._pool.submit(self._write_window, staged, window, at, key)
                at += len(window)
                if at > body.size_bytes:
                    break  # a body without end would fill the disk
            if writing is not None:
                await asyncio.shield(writing)
        finally:
            if writing is not None:
                await settle(writing)  # the thread uses the descriptor, which the caller closes next
            if isinstance(windows, AsyncGenerator):
                await windows.aclose()
        # Checked before the caller renames the file, so a body that is cut short never becomes visible.
        body.check_size(at)

    # The methods below block. They run in the pool.

    def _write_window(self, staged: Staged, window: Buffer, at: int, key: str) -> None:
        with explained("writing", f"{self._root}/{key}"):
            staged.write(window, at)

    def _open(self, staged: Staged) -> None:
        with explained("staging a file in", f"{self._root}/{FOLDER}"):
            folder = self._folders.open_for_writing([FOLDER])
            # Once for each store, before its first write: leftovers of dead processes take up space.
            with self._sweeping:
                if not self._swept:
                    sweep(folder)
                    self._swept = True
            staged.open(folder, self._names)

    def _replace(self, staged: Staged, parts: Sequence[str]) -> None:
        with explained("writing", self._path(parts)):
            # Folders first, bytes second, the name third, the folder's sync last. After a power cut at any
            # moment there is either no object, or a whole one in folders that exist.
            folder = self._folders.open_for_writing(parts[:-1])
            try:
                staged.rename(folder, parts[-1])  # syncs the bytes before it gives them the name
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
                    self._link(staged, folder, parts)  # syncs the bytes before it gives them the name
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
            # link(2) refuses a name that a folder or a symbolic link has, too. `AlreadyExists` promises an
            # object that can be read, so such a name is `Misuse`.
            if not stat.S_ISREG(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                raise Misuse(f"creating {self._path(parts)}: a folder or a link has this name") from error
            raise AlreadyExists("/".join(parts)) from error

    def _sync(self, folder: int, parts: Sequence[str]) -> None:
        """Make the names in an open folder durable. They are visible already: hence `OutcomeUnknown`."""
        try:
            os.fsync(folder)
        except OSError as error:
            raise OutcomeUnknown(
                f"syncing the folder of {self._path(parts)}: {error.strerror}; "
                f"the change is visible and may not survive a power cut: check the device"
            ) from error

    def _sync_created(self, folder: int, parts: Sequence[str]) -> None:
        """Sync as `_sync` does, but raise an error that the commit protocol does not resolve by listing.

        After `OutcomeUnknown` a writer lists, finds its root, and calls that a commit. The name may not
        survive a power cut here, so the commit would be lost with it.
        """
        try:
            self._sync(folder, parts)
        except OutcomeUnknown as error:
            raise OffloadError(str(error)) from error

    def _make_last(self, folder: int, parts: Sequence[str]) -> None:
        """Make the names durable that a listing is about to show.

        A failure is a plain `OffloadError`, which is never retried: the next sync of the folder may report
        success although the names were lost.
        """
        try:
            self._folders.make_last(folder, parts)
        except OSError as error:
            raise OffloadError(
                f"syncing {self._path(parts)}: {error.strerror}; "
                f"the files in it may not survive a power cut: check the kernel's log"
            ) from error

    def _read(self, parts: Sequence[str], span: Span | Suffix | None) -> Buffer:
        absent = NotFound("/".join(parts), store=self.url)
        with explained("reading", self._path(parts), absent=absent):
            try:
                return read(self._root, parts, span, self._buffers, absent=absent)
            except (NotFound, OSError):
                self._folders.check_root()  # without its root, the store knows of no absence
                raise

    def _unlink(self, folder_parts: Sequence[str], names: Sequence[str]) -> None:
        try:
            folder = open_folder(self._root, folder_parts)
        except (FileNotFoundError, NotADirectoryError):
            return  # without the folder there is no object: deleting what is absent succeeds
        except OSError as error:
            raise failure(error, "deleting below", self._path(folder_parts)) from error
        try:
            for name in names:
                with explained("deleting", self._path([*folder_parts, name])):
                    _unlink_object(folder, name)
            # One sync covers all names of the folder.
            self._sync(folder, [*folder_parts, names[0]])
        finally:
            os.close(folder)

    def _page(self, rows: Iterator[Listed], prefix: str) -> Sequence[Listed]:
        with explained("listing", self._path([prefix])):
            self._folders.check_root()
            return tuple(islice(rows, PAGE_ROWS))

    def _level(self, prefix: str) -> Sequence[str]:
        with explained("listing", self._path([prefix])):
            self._folders.check_root()
            return tuple(level(self._root, prefix))

    def _path(self, parts: Sequence[str]) -> str:
        return "/".join((self._root, *parts))


def _parts(key: str) -> tuple[str, ...]:
    """Return the folders and the file name of a key. Raises `Misuse` if it is no key."""
    return tuple(check_key(key).split("/"))


def _unlink_object(folder: int, name: str) -> None:
    """Remove a file if there is one. A folder is no object, and is left alone."""
    with suppress(FileNotFoundError, IsADirectoryError):
        os.unlink(name, dir_fd=folder)
