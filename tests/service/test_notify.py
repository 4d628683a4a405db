"""Tests of the messages to the service manager, by a socket as systemd opens it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from offload.follow.follower import FollowState, FollowStatus
from offload.ground.env import Env
from offload.ground.errors import Denied
from offload.service.health import Health
from offload.service.notify import BEAT_SECONDS_MAX, Notifier, notifier_of

PAGE_SIZE_BYTES = 4096
"""systemd drops longer messages."""


class Fixed:
    """Stands in for a dispatcher with one stream, paused by an error of this text."""

    error = None

    def __init__(self, text: str = "no right") -> None:
        self.source = None
        self.statuses = [
            FollowStatus(
                stream="orders",
                state=FollowState.PAUSED,
                error=Denied(text),
                source_next_offset=10,
                committed_offset=4,
                dispatched_offset=4,
                lag_records=6,
                lag_seconds=2.5,
                alarm_seconds=15.0,
            )
        ]


def notifier(address: object, text: str = "no right") -> Notifier:
    health = Health(dispatchers=[Fixed(text)])  # type: ignore[list-item]
    return Notifier(address=str(address), beat_seconds=0.02, health=health)


def manager(path: object) -> socket.socket:
    """Return the socket of a service manager."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    opened.bind(str(path))
    opened.setblocking(False)
    return opened


def taken(opened: socket.socket) -> Iterator[bytes]:
    """Yield the messages that wait."""
    while True:
        try:
            yield opened.recv(2 * PAGE_SIZE_BYTES)
        except BlockingIOError:
            return


async def some(opened: socket.socket, number: int = 1) -> list[str]:
    """Return the next messages."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        return [(await loop.sock_recv(opened, 2 * PAGE_SIZE_BYTES)).decode() for _ in range(number)]


async def ended(running: asyncio.Task[None]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_messages_come_again_and_again_and_change_when_the_process_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        stopping = asyncio.Event()
        with manager(tmp_path / "socket") as opened:
            running = asyncio.create_task(notifier(tmp_path / "socket").run(stopping))
            before = await some(opened, 3)
            stopping.set()
            await asyncio.sleep(0)
            list(taken(opened))
            after = await some(opened, 2)
            await ended(running)

        problem = "leads 0 of 1 streams, stands by for 0; stream 'orders' is paused: no right"
        assert before == [f"READY=1\nWATCHDOG=1\nSTATUS={problem}"] * 3
        assert after == [f"STOPPING=1\nWATCHDOG=1\nSTATUS={problem}"] * 2

    asyncio.run(scenario())


def test_a_loop_that_hangs_sends_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        with manager(tmp_path / "socket") as opened:
            running = asyncio.create_task(notifier(tmp_path / "socket").run(asyncio.Event()))
            await some(opened)
            list(taken(opened))
            time.sleep(0.2)  # noqa: ASYNC251 - this is the hang
            during = list(taken(opened))
            await some(opened)
            await ended(running)
        assert during == []

    asyncio.run(scenario())


def test_a_manager_that_reads_nothing_or_is_gone_stops_nobody(tmp_path: Path) -> None:
    """Once it reads, messages arrive again."""

    async def scenario() -> None:
        running = asyncio.create_task(notifier(tmp_path / "socket").run(asyncio.Event()))
        await asyncio.sleep(0.1)
        with manager(tmp_path / "socket") as opened:
            await some(opened)
            flood = notifier(tmp_path / "socket")
            began = time.monotonic()
            for _ in range(5000):  # more than a queue of Unix datagrams takes
                flood._send("READY=1")
            assert time.monotonic() - began < 10  # a sender that waits would take minutes, or for ever
            assert 0 < len(list(taken(opened))) < 5000
            await some(opened)
        await ended(running)

    asyncio.run(scenario())


def test_an_abstract_address_is_taken(tmp_path: Path) -> None:
    with manager(f"\0{tmp_path}") as opened:
        notifier(f"@{tmp_path}")._send("READY=1")

        assert next(taken(opened)).startswith(b"READY=1\n")


@pytest.mark.parametrize("text", ["ä" * 5000, "x" + "ä" * 5000, "a\nREADY=0\nMAINPID=1"])
def test_no_error_breaks_a_message_or_its_bound(tmp_path: Path, text: str) -> None:
    with manager(tmp_path / "socket") as opened:
        notifier(tmp_path / "socket", text)._send("READY=1")

        (message,) = taken(opened)
        assert len(message) < PAGE_SIZE_BYTES
        assert [line.partition("=")[0] for line in message.decode().split("\n")] == [
            "READY", "WATCHDOG", "STATUS",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "beat_seconds"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": ""}, None),
        ({"NOTIFY_SOCKET": "/run/x"}, BEAT_SECONDS_MAX),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000"}, 1.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "own"}, 1.0),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, BEAT_SECONDS_MAX),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "600000000"}, BEAT_SECONDS_MAX),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "0"}, BEAT_SECONDS_MAX),
        ({"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"}, BEAT_SECONDS_MAX),
    ],
)
def test_the_beat_is_a_third_of_the_watchdog_of_this_process(
    environ: dict[str, str], beat_seconds: float | None
) -> None:
    here = {name: str(os.getpid()) if value == "own" else value for name, value in environ.items()}
    found = notifier_of(here, Health(dispatchers=[]), Env())

    assert (None if found is None else found.beat_seconds) == beat_seconds
