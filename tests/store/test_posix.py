"""The behaviour of a folder beyond the contract: links, walks, syncs and errno."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from offload_conformance import Asynchronous, Run
from offload_posix import PosixStore
from offload_posix.failures import failure
from offload_posix.walk import walk

from offload.contracts.store import Body, Listed
from offload.ground.env import REAL_ENV
from offload.ground.errors import (
    Denied,
    Misuse,
    NoSpace,
    NotFound,
    OffloadError,
    OutcomeUnknown,
    StoreDenied,
    TryAgain,
)
from offload.store.buffers import BufferPool


class TestFolder(Asynchronous):
    @pytest.fixture
    def store(self, tmp_path: Path, run: Run) -> Iterator[PosixStore]:
        store = PosixStore(root=tmp_path / "root", threads=2)
        yield store
        run(store.aclose())

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "root"

    def test_reading_does_not_create_the_root(self, run: Run, store: PosixStore, root: Path) -> None:
        with pytest.raises(NotFound):
            run(store.get("key"))
        assert run(listed(store)) == []
        run(store.delete(["key"]))

        assert not root.exists()

    @pytest.mark.parametrize("left", ["nothing", "an empty folder"])
    @pytest.mark.parametrize("seen_by", ["put", "list"])
    def test_a_store_never_leaves_the_root_that_it_saw_first(
        self, run: Run, store: PosixStore, root: Path, left: str, seen_by: str
    ) -> None:
        """An unmounted file system leaves an empty folder. Data that is written there is lost to readers."""
        other = PosixStore(root=root, threads=1)
        run((store if seen_by == "put" else other).put("a/key", Body.of(b"1")))
        run(listed(store))
        away = root.rename(root.with_name("away"))
        if left != "nothing":
            root.mkdir()

        for use in (
            lambda: store.put("a/key", Body.of(b"2")),
            lambda: store.create("a/new", b"2"),
            lambda: store.start_upload("a/part"),
            lambda: store.get("a/key"),
            lambda: listed(store),
        ):
            with pytest.raises(StoreDenied, match="unmounted, moved or replaced"):
                run(use())
        assert not root.exists() or not list(root.iterdir())

        if left != "nothing":
            root.rmdir()
        away.rename(root)
        run(store.put("a/key", Body.of(b"3")))
        assert run(store.get("a/key")) == b"3"
        run(other.aclose())

    def test_a_root_that_is_made_during_the_first_look_for_it_is_no_loss(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two first calls at the same time: one misses the root, and the other makes it meanwhile."""
        looked, look = [], os.stat

        def late(path: Any, *args: Any, **options: Any) -> os.stat_result:
            try:
                return look(path, *args, **options)
            except FileNotFoundError:
                if path == str(root) and not looked:
                    looked.append(path)
                    run(store.put("a/key", Body.of(b"1")))
                raise

        monkeypatch.setattr("offload_posix.folders.os.stat", late)

        store._folders.check_root()

        assert looked == [str(root)]

    @pytest.mark.parametrize("kind", ["folder", "file"])
    def test_no_link_leads_out_of_the_root(self, run: Run, store: PosixStore, root: Path, kind: str) -> None:
        """This holds for linked folders and linked files, and for reading, listing, writing and deleting."""
        outside = root.parent / "outside"
        outside.mkdir()
        secret = outside / "secret"
        secret.write_bytes(b"secret")
        root.mkdir()
        link = root / "link"
        link.symlink_to(outside if kind == "folder" else secret)
        key = "link/secret" if kind == "folder" else "link"

        with pytest.raises(NotFound):
            run(store.get(key))
        assert run(listed(store)) == run(listed(store, "link")) == run(listed(store, "link/")) == []
        with pytest.raises(Misuse):
            run(store.create(key, b"changed"))
        if kind == "folder":
            with pytest.raises(Misuse):
                run(store.put(key, Body.of(b"changed")))
            run(store.delete([key]))
        else:
            run(store.put(key, Body.of(b"changed")))
            assert not link.is_symlink()

        assert [path.name for path in outside.iterdir()] == ["secret"]
        assert secret.read_bytes() == b"secret"

    def test_a_staging_folder_that_is_a_link_is_refused(
        self, run: Run, store: PosixStore, root: Path
    ) -> None:
        outside = root.parent / "outside"
        outside.mkdir()
        (outside / "file").touch()
        root.mkdir()
        (root / ".staging").symlink_to(outside)

        with pytest.raises(Misuse):
            run(store.put("key", Body.of(b"")))

        assert [path.name for path in outside.iterdir()] == ["file"]

    def test_the_root_itself_may_be_a_link(self, run: Run, store: PosixStore, root: Path) -> None:
        root.with_name("real").mkdir()
        root.symlink_to("real")

        run(store.put("a/key", Body.of(b"data")))

        assert run(store.get("a/key")) == b"data"
        assert run(listed(store)) == ["a/key"]

    def test_only_regular_files_are_objects(self, run: Run, store: PosixStore, root: Path) -> None:
        """Reading a pipe does not block. Hidden names and names that are not UTF-8 are not listed."""
        run(store.put("object", Body.of(b"")))
        os.mkfifo(root / "pipe")
        (root / ".hidden").touch()
        (root / ".folder").mkdir()
        (root / ".folder/key").touch()
        Path(os.fsdecode(bytes(root) + b"/\xff")).touch()

        with pytest.raises(NotFound):
            run(asyncio.wait_for(store.get("pipe"), 60))
        assert run(listed(store)) == ["object"]

    def test_a_key_cannot_be_both_an_object_and_a_folder(self, run: Run, store: PosixStore) -> None:
        """A file system cannot do this, so the store raises `Misuse` with the reason and changes nothing."""
        run(store.put("a", Body.of(b"a")))
        run(store.put("b/c", Body.of(b"c")))

        for key in ("a/b", "b"):
            with pytest.raises(Misuse, match=r"folder|no object"):
                run(store.put(key, Body.of(b"new")))
            with pytest.raises(Misuse, match=r"folder|no object"):
                run(store.create(key, b"new"))
            with pytest.raises(NotFound):
                run(store.get(key))

        assert run(listed(store)) == ["a", "b/c"]

    @pytest.mark.parametrize("key", ["k" * 256, "é" * 128, "a/" + "k" * 256, "\udcff"], ids=ascii)
    def test_a_key_that_cannot_be_a_path_is_misuse(
        self, run: Run, store: PosixStore, root: Path, key: str
    ) -> None:
        for call in (
            store.put(key, Body.of(b"")),
            store.create(key, b""),
            store.get(key),
            store.delete([key]),
        ):
            with pytest.raises(Misuse):
                run(call)

        assert not root.exists()

    def test_a_closed_store_takes_no_calls_and_keeps_no_memory_of_reads(
        self, run: Run, tmp_path: Path
    ) -> None:
        of_others = [each for each in gc.get_objects() if isinstance(each, BufferPool)]
        store = PosixStore(root=tmp_path)
        run(store.put("key", Body.of(bytes(2**20))))
        run(store.get("key"))
        (pool,) = [
            each for each in gc.get_objects() if isinstance(each, BufferPool) and each not in of_others
        ]
        assert pool.free_size_bytes > 0

        run(store.aclose())

        assert pool.free_size_bytes == 0

        with pytest.raises(Misuse):
            run(store.get("key"))

    def test_a_listing_opens_only_folders_that_can_hold_a_wanted_key(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder in "abcde":
            for number in range(3):
                run(store.put(f"x/{folder}/{number}", Body.of(b"")))
        opened, asked = watch(monkeypatch, root)

        rows = [row.key for row in walk(str(root), "x/", "x/c/1", trusts)]

        assert rows == ["x/c/2", "x/d/0", "x/d/1", "x/d/2", "x/e/0", "x/e/1", "x/e/2"]
        assert opened == ["x", "x/c", "x/d", "x/e"]
        assert len(asked) == len(rows)

    def test_a_listing_reads_only_as_far_as_the_caller_iterates(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for folder in "abcde":
            run(store.put(f"{folder}/key", Body.of(b"")))
        opened, asked = watch(monkeypatch, root)

        rows = walk(str(root), "", "", trusts)
        first = next(rows)

        assert first.key == "a/key"
        assert opened == [".", "a"]
        assert len(asked) == 1

    def test_a_listing_skips_files_that_vanish(self, run: Run, store: PosixStore, root: Path) -> None:
        for key in ("a/1", "b", "c/1", "d"):
            run(store.put(key, Body.of(b"")))

        rows = walk(str(root), "", "", trusts)
        first = next(rows)
        (root / "b").unlink()
        (root / "c/1").unlink()
        (root / "c").rmdir()

        assert [first.key, *(row.key for row in rows)] == ["a/1", "d"]

    def test_a_listing_shows_the_successor_of_a_vanished_file(
        self, run: Run, store: PosixStore, root: Path
    ) -> None:
        for key in ("m/root.1", "m/root.2", "m/root.3"):
            run(store.put(key, Body.of(b"")))

        rows = walk(str(root), "m/root.", "", trusts)
        first = next(rows)
        run(store.put("m/root.4", Body.of(b"size")))
        run(store.delete(["m/root.1", "m/root.2", "m/root.3"]))

        assert first.key == "m/root.1"
        assert [*rows] == [Listed("m/root.4", 4)]

    def test_a_listing_reads_a_changed_folder_again(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The system reads a large folder in parts. A new name may be in a part already read, an old one
        in a later part.
        """
        run(store.put("m/root.1", Body.of(b"")))
        age(root / "m")

        def succeed() -> None:
            (root / "m/root.2").touch()
            (root / "m/root.1").unlink()

        reads = read_in_parts(monkeypatch, meanwhile=[succeed])

        assert [row.key for row in walk(str(root), "m/", "", trusts)] == ["m/root.2"]
        assert reads == [[], ["root.2"]]

    def test_new_files_alone_do_not_keep_a_folder_from_being_listed(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A folder that receives uploads all the time always changes while it is read."""
        run(store.put("m/0", Body.of(b"")))
        age(root / "m")
        reads = read_in_parts(
            monkeypatch, meanwhile=[lambda n=n: (root / f"m/{n}").touch() for n in range(1, 9)]
        )

        assert [row.key for row in walk(str(root), "m/", "", trusts)] == ["m/0", "m/1"]
        assert len(reads) == 2

    def test_a_listing_that_makes_progress_does_not_fail(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sweep deletes every second file meanwhile, so the folder is read again more often than the
        limit without progress.
        """
        monkeypatch.setattr("offload_posix.walk.READS_MAX", 3)
        (root / "m").mkdir(parents=True)
        for number in range(20):
            (root / f"m/{number:02}").touch()

        rows = []
        for row in walk(str(root), "m/", "", trusts):
            rows.append(row.key)
            (root / f"m/{int(row.key[2:]) + 1:02}").unlink()

        assert rows == [f"m/{number:02}" for number in range(0, 20, 2)]

    def test_a_listing_raises_try_again_if_files_vanish_faster_than_it_reads(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(store.put("m/key", Body.of(b"")))
        stat = os.stat

        def gone(path: Any, **kwargs: Any) -> os.stat_result:
            return stat(f"{path}.gone" if path == f"{root}/m/key" else path, **kwargs)

        monkeypatch.setattr(os, "stat", gone)

        with pytest.raises(TryAgain, match="are removed faster"):
            run(listed(store))

    def test_a_listing_syncs_a_folder_once_before_it_shows_a_name(
        self, run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The writer may have died before its sync. A power cut could then remove the object."""
        (root / "m/empty").mkdir(parents=True)
        (root / "m/from-a-dead-process").touch()
        age(root / "m")
        store = PosixStore(root=root, now_ms=lambda: REAL_ENV.now_ms() + 60_000)
        synced = watch_syncs(monkeypatch, root)

        assert run(listed(store, "m/")) == run(listed(store, "m/f")) == ["m/from-a-dead-process"]
        assert synced == ["m"]

        (root / "m/from-another").touch()
        assert run(listed(store, "m/from-another")) == ["m/from-another"]
        assert synced == ["m", "m"]
        run(store.aclose())

    def test_a_folder_that_changed_just_now_is_synced_by_every_listing(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two changes within one clock tick leave the same time, so a recent time proves nothing."""
        (root / "m").mkdir(parents=True)
        (root / "m/key").touch()
        synced = watch_syncs(monkeypatch, root)

        run(listed(store))
        run(listed(store))

        assert synced == ["m", "m"]

    @pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EINVAL], ids=errno.errorcode.get)
    def test_a_mount_without_sync_can_be_read(
        self, run: Run, store: PosixStore, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        run(store.put("m/key", Body.of(b"data")))
        monkeypatch.setattr(os, "fsync", failing(number))

        assert run(listed(store)) == ["m/key"]
        assert run(store.get("m/key")) == b"data"

    def test_a_listing_shows_no_name_that_it_could_not_sync(
        self, run: Run, store: PosixStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does not repeat the sync: a second one could report a false success."""
        run(store.put("m/key", Body.of(b"")))
        fail_syncs(monkeypatch, of_folders=True)

        with pytest.raises(OffloadError, match="power cut") as refused:
            run(listed(store))

        assert type(refused.value) is OffloadError

    def test_short_reads_and_writes_are_continued(
        self, run: Run, store: PosixStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The system may move fewer bytes than requested. No byte is lost, duplicated or shifted."""
        pread, pwrite = os.pread, os.pwrite
        monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data[:7]), at))
        data = bytes(range(100))

        run(store.put("key", Body.of(data)))

        assert run(store.get("key")) == data

    def test_a_write_overlaps_the_fetching_of_the_next_window(
        self, run: Run, store: PosixStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At most two windows are in memory: the one being written and the one being fetched."""
        fetched = 0

        async def windows() -> AsyncIterator[bytes]:
            nonlocal fetched
            for _ in range(5):
                fetched += 1
                yield b"window"

        writes: list[int] = []
        write_window = store._write_window

        def slowly(*args: Any) -> None:
            writes.append(fetched)
            write_window(*args)

        monkeypatch.setattr(store, "_write_window", slowly)
        run(store.put("key", Body(size_bytes=30, windows=windows)))

        assert len(writes) == 5
        assert all(number <= seen <= number + 1 for number, seen in enumerate(writes, 1))

    @pytest.mark.parametrize("call", ["pwrite", "rename"])
    def test_a_cancelled_put_does_not_return_before_its_thread(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """A thread still writes to the descriptor. Once closed, it could belong to another file."""
        blocked, released = threading.Event(), threading.Event()
        real = getattr(os, call)

        def block(*args: Any, **kwargs: Any) -> Any:
            blocked.set()
            assert released.wait(60)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, call, block)

        async def scenario() -> None:
            putting = asyncio.create_task(store.put("key", Body.of(b"data")))
            await asyncio.to_thread(blocked.wait, 60)
            for _ in range(2):  # a second cancellation does not end the wait either
                putting.cancel()
                await asyncio.wait([putting], timeout=0.05)
                assert not putting.done()
            released.set()
            with pytest.raises(asyncio.CancelledError):
                await putting

        run(scenario())

        assert staged(root) == []
        assert run(listed(store)) == (["key"] if call == "rename" else [])

    def test_a_failed_sync_before_the_name_commits_nothing(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sync is not repeated. The next try writes a new file."""
        syncs = fail_syncs(monkeypatch, of_folders=False)

        with pytest.raises(TryAgain) as caught:
            run(store.put("put", Body.of(b"data")))
        with pytest.raises(TryAgain):
            run(store.create("created", b"data"))

        assert isinstance(caught.value.__cause__, OSError)
        assert len(syncs) == 2
        assert run(listed(store)) == staged(root) == []

    def test_a_failed_sync_of_the_folder_leaves_the_outcome_unknown(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The object exists but may not survive a power cut, so no success is reported.

        A create is not even in doubt: a listing would show the object, and a commit would depend on it.
        """
        run(store.put("warm", Body.of(b"")))
        fail_syncs(monkeypatch, of_folders=True)

        with pytest.raises(OutcomeUnknown):
            run(store.put("put", Body.of(b"data")))
        with pytest.raises(OffloadError) as refused:
            run(store.create("created", b"data"))
        assert not isinstance(refused.value, OutcomeUnknown | TryAgain)
        with pytest.raises(OutcomeUnknown):
            run(store.delete(["warm"]))

        assert sorted(path.name for path in root.iterdir()) == [".staging", "created", "put"]
        assert staged(root) == []

    def test_new_folders_are_synced_from_the_top_down_and_names_last(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A power cut never leaves an object in a folder that has no name."""
        synced = watch_syncs(monkeypatch, root)

        run(store.put("a/b/key", Body.of(b"")))

        *before, file, folder = [path for path in synced if path != ".."]
        assert before == [".", ".", "a"]  # these syncs are for .staging, a and b
        assert file.startswith(".staging/")
        assert folder == "a/b"

    def test_a_create_succeeds_if_the_file_server_lost_the_answer(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The call fails although the link exists. The number of links decides, also against `EEXIST`."""
        link = os.link
        for key, number in (("a", errno.ETIMEDOUT), ("b", errno.EEXIST)):

            def lost(*args: Any, number: int = number, **kwargs: Any) -> None:
                link(*args, **kwargs)
                raise OSError(number, os.strerror(number))

            monkeypatch.setattr(os, "link", lost)
            run(store.create(key, b"data"))

        assert run(listed(store)) == ["a", "b"]
        assert staged(root) == []

    def test_an_upload_with_a_missing_part_is_not_completed(
        self, run: Run, store: PosixStore, root: Path
    ) -> None:
        """Nor is an upload whose sizes leave a gap. A refused part does not count as written."""

        async def scenario(*parts: tuple[int, int]) -> None:
            upload = await store.start_upload("key")
            try:
                for number, size in parts:
                    await upload.put_part(number, bytes(size))
                with pytest.raises(Misuse):
                    await upload.complete()
            finally:
                await upload.abort()

        run(scenario())
        run(scenario((2, 10)))
        run(scenario((1, 10), (3, 10)))
        run(scenario((1, 10), (2, 5), (3, 5)))
        with pytest.raises(Misuse):
            run(scenario((1, 10), (2, 11)))
        with pytest.raises(Misuse):
            run(scenario((2, 10), (1, 9)))
        assert run(listed(store)) == staged(root) == []

    def test_a_part_that_failed_is_missing_until_it_is_put_again(
        self, run: Run, store: PosixStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A part counts only once its bytes are in the file."""

        async def scenario() -> None:
            upload = await store.start_upload("key")
            await upload.put_part(2, b"last")
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", failing(errno.EIO))
                with pytest.raises(TryAgain):
                    await upload.put_part(1, b"first")
            with pytest.raises(Misuse):
                await upload.complete()
            await upload.put_part(1, b"first")
            await upload.complete()

        run(scenario())

        assert run(store.get("key")) == b"firstlast"

    def test_a_file_system_without_locks_can_be_written(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Leftovers then remain, because nothing shows which process owns them."""
        (root / ".staging").mkdir(parents=True)
        (root / ".staging/leftover").touch()
        monkeypatch.setattr("fcntl.flock", failing(errno.EOPNOTSUPP))

        run(store.put("key", Body.of(b"data")))

        assert run(store.get("key")) == b"data"
        assert staged(root) == ["leftover"]

    def test_a_put_replaces_a_staged_file_that_was_swept_before_its_lock(
        self, run: Run, store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sweeper can delete a file between its opening and its lock. Deleted files get no bytes."""
        import fcntl

        flock = fcntl.flock
        swept: list[str] = []

        def late(fd: int, operation: int) -> None:
            if not swept:
                swept.extend(staged(root))
                (root / ".staging" / swept[0]).unlink()
            flock(fd, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        run(store.put("key", Body.of(b"data")))

        assert len(swept) == 1
        assert run(store.get("key")) == b"data"


def trusts(_folder: int, _parts: Sequence[str]) -> None:
    """Treat every folder as synced."""


def age(folder: Path) -> None:
    """Set back the time of a folder's last change, so that no other change can leave the same time."""
    os.utime(folder, ns=(0, 0))


def read_in_parts(monkeypatch: pytest.MonkeyPatch, *, meanwhile: list[Callable[[], None]]) -> list[list[str]]:
    """Let others act while a folder is read, after all of its new names and before its old ones.

    Return the names that each reading saw.
    """
    scandir = os.scandir
    reads: list[list[str]] = []

    @contextmanager
    def in_parts(folder: int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(folder) as entries:
            names = {entry.name for entry in entries}
        if len(reads) < len(meanwhile):
            meanwhile[len(reads)]()
        with scandir(folder) as entries:
            seen = [entry for entry in entries if entry.name in names]
        reads.append([entry.name for entry in seen])
        yield seen

    monkeypatch.setattr(os, "scandir", in_parts)
    return reads


def watch_syncs(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """Return the paths that are synced from now on, relative to the root."""
    fsync = os.fsync
    synced: list[str] = []

    def watched(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), root))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    return synced


def staged(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".staging").iterdir())


async def listed(store: PosixStore, prefix: str = "") -> list[str]:
    return [row.key async for row in store.list(prefix)]


def failing(number: int) -> Any:
    """Return a system call that fails with this errno."""

    def call(*_args: object, **_kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


def fail_syncs(monkeypatch: pytest.MonkeyPatch, *, of_folders: bool) -> list[int]:
    """Let the sync of every folder, or of every file, fail. Return those that failed."""
    fsync = os.fsync
    failed: list[int] = []

    def sync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}") is of_folders:
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync)
    return failed


def watch(monkeypatch: pytest.MonkeyPatch, root: Path) -> tuple[list[str], list[str]]:
    """Return the folders that are scanned, and the paths whose size is read, from now on."""
    scandir, stat = os.scandir, os.stat
    opened: list[str] = []
    asked: list[str] = []

    def watched_scandir(folder: Any) -> Any:
        opened.append(os.path.relpath(os.readlink(f"/proc/self/fd/{folder}"), root))
        return scandir(folder)

    def watched_stat(path: Any, **kwargs: Any) -> os.stat_result:
        asked.append(path)
        return stat(path, **kwargs)

    monkeypatch.setattr(os, "scandir", watched_scandir)
    monkeypatch.setattr(os, "stat", watched_stat)
    return opened, asked


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EACCES, Denied),
        (errno.EPERM, Denied),
        (errno.EROFS, StoreDenied),
        (errno.ENAMETOOLONG, Misuse),
        (errno.EINVAL, Misuse),
        (errno.EISDIR, Misuse),
        (errno.ENOTDIR, Misuse),
        (errno.ELOOP, Misuse),
        (errno.EMFILE, TryAgain),
        (errno.ENFILE, TryAgain),
        (errno.EAGAIN, TryAgain),
        (errno.ETIMEDOUT, TryAgain),
        (errno.ESTALE, TryAgain),
        (errno.ENOENT, TryAgain),
        (errno.EIO, TryAgain),
        (errno.EDOM, OffloadError),
    ],
    ids=lambda value: errno.errorcode.get(value) if isinstance(value, int) else value.__name__,
)
def test_an_errno_of_a_write_says_what_to_do_next(number: int, expected: type[OffloadError]) -> None:
    raised = failure(OSError(number, os.strerror(number)), "writing", "/root/key")

    assert type(raised) is expected
    assert "/root/key" in str(raised)
    assert "\n" not in str(raised)


def test_an_errno_can_mean_something_else_for_a_read() -> None:
    """Absence has many forms. An object that cannot be read now will not be readable at once."""
    absent = NotFound("key")

    def reading(number: int) -> OffloadError:
        return failure(OSError(number, os.strerror(number)), "reading", "/root/key", absent=absent)

    assert {reading(number) for number in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)} == {
        absent
    }
    assert type(reading(errno.EIO)) is OffloadError
    assert type(reading(errno.ESTALE)) is TryAgain
    assert type(reading(errno.EACCES)) is Denied
