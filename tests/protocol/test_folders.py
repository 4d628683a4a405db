"""Tests of the promises of a folder: listings never miss the newest root, and names are durable."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from offload_conformance import Asynchronous, Run
from offload_posix import PosixStore
from protocol_world import STREAM, Crash, Ledger

from offload.contracts.store import Body
from offload.ground.errors import Fenced
from offload.native.offloader import ObjectStoreOffloader
from offload.upkeep.sweep.tier import sweep
from offload.write.writer import StreamWriter

COMMITS: Final = 20
"""A number of commits larger than the number of roots that a sweep keeps."""

ROOTS: Final = 3
"""The roots of a claim, a prepare and an append."""


class TestFolders(Asynchronous):
    def test_a_listing_that_stalls_takes_no_zombie_for_a_commit(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A writer sleeps before its upload, and again in the listing after the create that made a zombie.

        Each time others commit until the roots that were there are swept. The second time the names that the
        writer has read are gone, and those that took their place are not among them.
        """
        stalled_in_listing = False

        async def commit_and_sweep() -> None:
            tier = ObjectStoreOffloader(PosixStore(root=tmp_path, threads=1))
            if stalled_in_listing:
                writer = StreamWriter(offloader=tier, manifest=await tier.load_manifest(STREAM))
            else:
                writer = await StreamWriter.claim(tier, STREAM)
            for _ in range(COMMITS // 2):
                await writer.abort(await writer.prepare([99]))
            await sweep(tier, grace_seconds=0)
            await tier.aclose()

        def stat(path: str, **kwargs: Any) -> os.stat_result:
            nonlocal stalled_in_listing
            if sleeper.created and not stalled_in_listing and "/root." in path:
                stalled_in_listing = True
                meanwhile(commit_and_sweep())
            return os.stat(path, **kwargs)

        class Sleeper(PosixStore):
            uploaded = created = False

            async def put(self, key: str, body: Body) -> None:
                if "/data/" in key:
                    self.uploaded = True
                    meanwhile(commit_and_sweep())
                await super().put(key, body)

            def _create(self, parts: Sequence[str], data: bytes) -> None:
                super()._create(parts, data)
                self.created = self.uploaded

        sleeper = Sleeper(root=tmp_path, threads=1)
        tier = ObjectStoreOffloader(sleeper)
        writer = run(StreamWriter.claim(tier, STREAM))
        monkeypatch.setattr(
            "offload_posix.walk.os", SimpleNamespace(stat=stat, scandir=os.scandir, close=os.close)
        )

        with pytest.raises(Fenced):
            run(writer.offload([Ledger(0, 4)]))

        assert stalled_in_listing
        run(tier.aclose())

    @pytest.mark.parametrize("dies_after", ["rename of a fragment", "link of a root"])
    def test_a_process_syncs_the_names_of_a_dead_one_before_it_believes_them(
        self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_after: str
    ) -> None:
        """Otherwise a power cut could remove a root or a named object after the source deleted its copy."""
        dying = ObjectStoreOffloader(Dying(tmp_path, dies_after))
        writer = run(StreamWriter.claim(dying, STREAM))
        with pytest.raises(Crash):
            run(writer.offload([Ledger(0, 4)]))
        events = watch(monkeypatch, tmp_path)

        tier = ObjectStoreOffloader(PosixStore(root=tmp_path))
        if dies_after == "link of a root":
            found = run(tier.load_manifest(STREAM))
            assert set(events) == {f"sync {STREAM}/metadata"}
        else:
            found = run(StreamWriter.claim(tier, STREAM)).manifest
            _, adopted = (place for place, event in enumerate(events) if event == "link")
            assert f"sync {STREAM}/data" in events[:adopted]

        assert found.next_offset == 4
        for each in (dying, tier):
            run(each.aclose())


class Dying(PosixStore):
    """A process that dies after it gives a name and before it syncs the folder."""

    def __init__(self, root: Path, after: str) -> None:
        super().__init__(root=root)
        self.after = after

    def _sync(self, folder: int, parts: Sequence[str]) -> None:
        if self.after == "rename of a fragment" and "data" in parts:
            raise Crash
        super()._sync(folder, parts)

    def _sync_created(self, folder: int, parts: Sequence[str]) -> None:
        if self.after == "link of a root" and len(os.listdir(folder)) == ROOTS:
            raise Crash
        super()._sync_created(folder, parts)


def meanwhile(job: Coroutine[Any, Any, None]) -> None:
    """Run other tasks to their end within a call."""
    thread = threading.Thread(target=lambda: asyncio.run(job))
    thread.start()
    thread.join()


def watch(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """Record the synced folders and linked files from now on."""
    fsync, link = os.fsync, os.link
    events: list[str] = []

    def watched_sync(fd: int) -> None:
        if os.path.isdir(path := os.readlink(f"/proc/self/fd/{fd}")):
            events.append(f"sync {os.path.relpath(path, root)}")
        fsync(fd)

    def watched_link(*args: Any, **kwargs: Any) -> None:
        events.append("link")
        link(*args, **kwargs)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "link", watched_link)
    return events
