"""Stores in several processes, which race, die and run out of room: the contract holds between them too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from campaign import campaign
from offload_conformance import Asynchronous, Run
from offload_posix import PosixStore

from offload.contracts.store import Body

PRELUDE = """
import asyncio, os, sys
from offload.ground.errors import *
from offload.contracts.store import Body
from offload_posix import PosixStore
root = sys.argv[1]
"""


def start(script: str, *args: object) -> subprocess.Popen[str]:
    """Start another process, which runs `script` with the root as its first argument."""
    command = [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(script), *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """Return the output of a process, and assert that it succeeded."""
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def in_small_namespace(folder: Path, script: str) -> str:
    """Run `script` with a private file system of 1 MiB mounted at `folder`."""
    command = 'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"'
    python = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), f"{folder}/tier"]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", command, "sh", str(folder), *python],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"this test needs user and mount namespaces: {done.stderr}"
    return done.stdout


class TestProcesses(Asynchronous):
    @campaign("eight processes that create one object in a folder; make test has the clause that says it")
    def test_exactly_one_of_eight_processes_creates_an_object(self, tmp_path: Path, run: Run) -> None:
        """The processes wait for each other before each round. The object holds the bytes of the one that
        reports a win.
        """
        script = """
            async def main():
                store = PosixStore(root=root, threads=1)
                print("ready", flush=True)
                for key in iter(sys.stdin.readline, ""):
                    try:
                        await store.create(key.strip(), sys.argv[2].encode())
                        print("won", flush=True)
                    except AlreadyExists:
                        print("lost", flush=True)
                await store.aclose()
            asyncio.run(main())
        """
        racers = [start(script, tmp_path, number) for number in range(8)]
        for racer in racers:
            assert line(racer) == "ready"

        for turn in range(20):
            for racer in racers:
                tell(racer, f"race/{turn}")
            outcomes = [line(racer) for racer in racers]

            assert sorted(outcomes) == ["lost"] * 7 + ["won"]
            assert int((tmp_path / f"race/{turn}").read_bytes()) == outcomes.index("won")
        for racer in racers:
            finish(racer)

    def test_a_process_killed_while_it_puts_leaves_nothing_visible(self, tmp_path: Path, run: Run) -> None:
        """The next writer removes the staged files of a dead process and keeps those of a living one."""
        dying, living = (start(SLOW_PUT, tmp_path, key) for key in ("dying", "living"))
        assert line(dying) == line(living) == "under way"
        assert len(staged(tmp_path)) == 2
        dying.send_signal(signal.SIGKILL)
        dying.communicate()
        assert len(staged(tmp_path)) == 2

        keys = run(put_and_list(PosixStore(root=tmp_path), "next"))

        assert keys == ["next"]
        assert len(staged(tmp_path)) == 1
        finish(living)
        assert (tmp_path / "living").read_bytes() == b"firstsecond"
        assert staged(tmp_path) == []

    def test_a_forked_child_does_not_keep_the_locks_of_its_parent(self, tmp_path: Path, run: Run) -> None:
        """The parent dies and the child lives. The parent's staged file still counts as a leftover."""
        parent = start(SLOW_PUT.replace("# fork", "fork()"), tmp_path, "dying")
        child = int(line(parent))
        assert line(parent) == "under way"
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        try:
            run(put_and_list(PosixStore(root=tmp_path), "next"))

            assert staged(tmp_path) == []
        finally:
            os.kill(child, signal.SIGKILL)
            parent.communicate()

    def test_a_store_works_in_a_forked_child(self, tmp_path: Path) -> None:
        """The store was used before the fork. It works after it, in the child's own event loop."""
        script = """
            store = PosixStore(root=root)
            asyncio.run(store.create("parent", b""))
            child = os.fork()
            if not child:
                asyncio.run(asyncio.wait_for(store.create("child", b""), 60))
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """

        assert finish(start(script, tmp_path)) == "0\n"
        assert (tmp_path / "child").exists()


SLOW_PUT = """
    def fork():
        ready, told = os.pipe()
        child = os.fork()
        if not child:
            import signal
            os.write(told, b".")
            signal.pause()
        os.read(ready, 1)  # a child gives up the locks when it first runs
        print(child, flush=True)

    async def windows():
        yield b"first"
        await asyncio.sleep(0.05)
        # fork
        print("under way", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        yield b"second"

    async def main():
        store = PosixStore(root=root)
        await store.put(sys.argv[2], Body(size_bytes=11, windows=windows))
        await store.aclose()
    asyncio.run(main())
"""


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin
    process.stdin.write(word + "\n")
    process.stdin.flush()


def staged(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".staging").iterdir())


async def put_and_list(store: PosixStore, key: str) -> list[str]:
    try:
        await store.put(key, Body.of(key.encode()))
        return [row.key async for row in store.list("")]
    finally:
        await store.aclose()


class TestPlaces:
    def test_a_full_file_system_raises_no_space(self, tmp_path: Path) -> None:
        """Put and create report it in one line with the path, and neither leaves a file."""
        script = """
            async def attempt(call):
                try:
                    await call
                    print("done")
                except NoSpace as error:
                    print("NoSpace", root in str(error), type(error.__cause__).__name__)

            async def main():
                store = PosixStore(root=root)
                big = bytes(2 << 20)
                await attempt(store.put("put", Body.of(big)))
                await attempt(store.create("created", big))
                await attempt(store.put("small", Body.of(b"small")))
                print([row.key async for row in store.list("")], os.listdir(root + "/.staging"))
                await store.aclose()
            asyncio.run(main())
        """

        said = in_small_namespace(tmp_path, script)

        assert said.splitlines() == ["NoSpace True OSError"] * 2 + ["done", "['small'] []"]

    def test_writing_to_a_read_only_folder_is_denied(self, tmp_path: Path) -> None:
        """Reading still works. Every way of writing is denied and creates nothing."""
        script = """
            import subprocess

            async def denied(call):
                try:
                    await call
                except Denied as error:
                    return "read-only" in str(error)

            async def main():
                store = PosixStore(root=root)
                await store.put("old", Body.of(b"old"))
                subprocess.run(["mount", "-o", "remount,ro", os.path.dirname(root)], check=True)
                print(await denied(store.put("new", Body.of(b""))))
                print(await denied(store.create("new", b"")))
                print(await denied(store.delete(["old"])))
                print(await denied(PosixStore(root=root + "/new").put("new", Body.of(b""))))
                print(await store.get("old"), [row.key async for row in store.list("")])
                await store.aclose()
            asyncio.run(main())
        """

        said = in_small_namespace(tmp_path, script)

        assert said.splitlines() == ["True"] * 4 + ["b'old' ['old']"]
