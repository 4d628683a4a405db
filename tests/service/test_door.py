"""Tests of the door of a process: who is heard, whose socket is replaced, and what a command may be."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from growing_source import GrowingSource, GrowingStream

from offload import ObjectStoreOffloader
from offload.contracts.events import StreamPaused, StreamResumed
from offload.follow.dispatcher import Dispatcher
from offload.follow.gaps import SeenTail
from offload.follow.rules import FollowRules, Verb
from offload.ground.errors import Misuse, NoSpace, NotOffloaded, TryAgain
from offload.service import client as asking
from offload.service import http
from offload.service.client import ask_process, tell_process
from offload.service.commanding import Commanding, PauseNotes
from offload.service.door import Door, connect_door, default_name, find_doors, open_door, runtime_folder
from offload.service.health import Health
from offload.service.http import door_routes, serve_door
from offload.store.memory import MemoryStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a path that is longer than the address of a socket may be."""
    folder = tmp_path / ("f" * 100)
    folder.mkdir()
    return folder / "run.sock"


@pytest.fixture
def door(path: Path) -> Iterator[Door]:
    """Return a door that is open."""
    opened = open_door(path)
    yield opened
    opened.close()


def test_the_socket_of_a_living_process_is_not_replaced_and_is_for_its_user_alone(door: Door) -> None:
    with pytest.raises(Misuse, match="another process that lives answers there"):
        open_door(door.path)

    assert stat.S_IMODE(door.path.stat().st_mode) == 0o600


def test_the_socket_of_a_dead_process_is_replaced(door: Door) -> None:
    door.listener.close()
    os.close(door.lock)  # as the kernel does if the process is killed

    other = open_door(door.path)
    door.lock = -1

    with connect_door(other.path, timeout_seconds=1.0):  # the new one listens
        assert other.path.is_socket()
    other.close()
    assert list(other.path.parent.iterdir()) == []


def test_a_file_that_is_no_socket_is_not_replaced(path: Path) -> None:
    path.write_text("notes of somebody")

    with pytest.raises(Misuse, match="this is no socket"):
        open_door(path)

    assert path.read_text() == "notes of somebody"


def test_the_socket_of_a_killed_process_is_no_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    monkeypatch.setattr("offload.service.door.SHARED_FOLDER", tmp_path / "absent")
    folder = runtime_folder(environ)
    living, killed = open_door(folder / "living.sock"), open_door(folder / "killed.sock")
    killed.listener.close()  # as the kernel does, which leaves the name

    assert killed.path.is_socket()
    assert [each.name for each in find_doors(environ) if each.parent == folder] == ["living.sock"]

    for each in (living, killed):
        each.close()


def test_a_folder_of_another_user_or_open_to_all_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    monkeypatch.setattr("offload.service.door.SHARED_FOLDER", tmp_path / "absent")
    folder = runtime_folder(environ)
    assert (folder, stat.S_IMODE(folder.stat().st_mode)) == (tmp_path / "offload", 0o700)
    opened = open_door(folder / default_name("rabbitmq:///a", "s3://b"))
    assert [each.name for each in find_doors(environ) if each.parent == folder] == [
        default_name("rabbitmq:///a", "s3://b")
    ]
    opened.close()

    folder.chmod(0o777)
    with pytest.raises(PermissionError):
        runtime_folder(environ)


async def told(door: Door, dispatchers: list[Dispatcher], *questions: Any) -> list[Any]:
    """Serve the door while these functions run one after another in threads, and return what they return."""
    commanding = Commanding(dispatchers=dispatchers, notes=PauseNotes())
    application = door_routes(Health(dispatchers=dispatchers), lambda: b"", commanding)
    serving = asyncio.create_task(serve_door(application, door.listener))
    try:
        return [await asyncio.to_thread(each) for each in questions]
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def test_the_kernel_says_who_has_connected_and_another_user_is_not_heard(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process believes to be another user's, so that this test is a stranger for it."""
    monkeypatch.setattr(http, "ROOT", os.geteuid() + 1)
    monkeypatch.setattr("offload.service.http.os.geteuid", lambda: os.getuid() + 2)

    def ask() -> None:
        tell_process(door.path, Verb.PAUSE, None)

    with pytest.raises(TryAgain):
        asyncio.run(told(door, [], ask))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"streams": []}', b'{"streams": ["a"], "all": true}', b'{"streams": [1]}',
        b'{"all": false}', b"[" * 1000, b" " * (http.COMMAND_SIZE_BYTES_MAX + 1),
    ],
)  # fmt: skip
def test_what_is_no_command_is_refused(door: Door, body: bytes) -> None:
    def ask() -> tuple[int, bytes]:
        connection = asking._DoorConnection(door.path)
        return asking._exchange(connection, "POST", "/streams/pause", body.decode(), 10)

    [(code, reply)] = asyncio.run(told(door, [], ask))

    assert code == 400
    assert json.loads(reply)["error"]


def test_a_copy_is_asked_for_by_the_door(door: Door) -> None:
    async def scenario() -> list[Any]:
        stopping, source = asyncio.Event(), GrowingSource()
        source.held = [GrowingStream(name="orders")]
        source.held[0].append()
        # Without the command, the records would wait for an hour.
        plan = ObjectStoreOffloader(MemoryStore()), FollowRules(max_lag_seconds=3600.0, hold_back_seconds=0.0)
        following = Dispatcher(source=source, plan_of=lambda stream: plan)
        running = asyncio.create_task(following.run(stopping))
        while not following.statuses:  # noqa: ASYNC110 - the dispatcher has no event to wait for
            await asyncio.sleep(0)

        def copy() -> list[int]:
            return [row["committed_offset"] for row in tell_process(door.path, Verb.COPY, ["orders"])]

        found = await told(door, [following], copy)
        stopping.set()
        await running
        return found

    assert asyncio.run(scenario()) == [[10]]


def test_a_name_of_no_stream_is_refused_before_anything_is_done(door: Door) -> None:
    async def scenario() -> None:
        stopping, source = asyncio.Event(), GrowingSource()
        source.held = [GrowingStream(name="orders")]
        plan = ObjectStoreOffloader(MemoryStore()), FollowRules(max_lag_seconds=1.0, hold_back_seconds=0.0)
        following = Dispatcher(source=source, plan_of=lambda stream: plan)
        running = asyncio.create_task(following.run(stopping))
        while not following.statuses:  # noqa: ASYNC110 - the dispatcher has no event to wait for
            await asyncio.sleep(0)

        def pause_two() -> str:
            with pytest.raises(NotOffloaded) as raised:
                tell_process(door.path, Verb.PAUSE, ["orders", "nope"])
            return str(raised.value)

        def pause() -> list[str]:
            return [row["waits"] for row in tell_process(door.path, Verb.PAUSE, ["orders"])]

        def resume() -> list[str]:
            return [row["state"] for row in tell_process(door.path, Verb.RESUME, None)]

        def states() -> dict[str, str]:
            return asyncio.run(ask_process(None, door.path)).states

        found = await told(door, [following], pause_two, states, pause, states, resume)
        stopping.set()
        await running
        refused, before, waits, paused, resumed = found
        assert refused == "stream 'nope' is not followed by this process"
        assert (before, waits, paused, resumed) == (
            {"orders": "standby"}, ["resume"], {"orders": "paused"}, ["standby"],
        )  # fmt: skip

    asyncio.run(scenario())


class TestNotes:
    """The notes on paused streams, from one process to the next."""

    def test_the_next_process_knows_what_paused_a_stream_and_who(self, tmp_path: Path) -> None:
        notes = PauseNotes(path=tmp_path / "notes")
        notes.emit(StreamPaused(stream="full", error=NoSpace("no room")))
        notes.emit(StreamPaused(stream="both", error=NoSpace("no room")))
        notes.hold("both", is_held=True)
        notes.emit(StreamPaused(stream="mended", error=NoSpace("no room")))
        notes.emit(StreamResumed(stream="mended"))
        notes.note_tails({"gone": SeenTail(2, 5, is_told=True)})
        following = PauseNotes(path=tmp_path / "notes")
        following.load()

        full, both = following.of("full"), following.of("both")
        assert full is not None
        assert both is not None
        assert (full.kind, full.reason, full.held_ms) == ("NoSpace", "no room", None)
        assert (both.kind, both.held_ms is not None) == ("NoSpace", True)
        assert following.of("mended") is None
        assert following.tails == {"gone": SeenTail(2, 5, is_told=True)}

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            '{"paused": []}',
            '{"paused": {}, "tails": {"a": [1, "2", true]}}',
            '{"paused": {"a": 1}}',
            '{"paused": {"a": {"kind": 1}}}',
            "\udcff",
        ],
    )
    def test_notes_that_cannot_be_read_are_a_line_in_the_log(
        self, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "notes").write_bytes(text.encode("utf-8", "surrogateescape"))

        notes = PauseNotes(path=tmp_path / "notes")
        notes.load()

        assert "cannot be read" in caplog.text
        assert notes.of("a") is None

    def test_a_full_disk_leaves_the_notes_of_before_and_the_process_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        notes = PauseNotes(path=tmp_path / "notes")
        notes.hold("orders", is_held=True)
        before = (tmp_path / "notes").read_text()

        def full(*args: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("offload.service.commanding.os.replace", full)
        notes.hold("payments", is_held=True)

        assert "cannot note which streams are paused" in caplog.text
        assert notes.of("payments") is not None
        assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("notes", before)]
