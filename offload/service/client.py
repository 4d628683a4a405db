"""Asking the process of a configuration for its status, and telling it what to do.

It is asked at its door, the Unix socket of `service.door`, and if nobody answers there by the address on
which it listens. Only the door takes commands.

Only a process on this machine is asked: one that listens on all addresses is asked on the loopback address.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Event, Timer
from typing import Any, Final

from offload.follow.rules import Verb
from offload.ground.errors import NotOffloaded, OffloadError, TryAgain
from offload.ground.outside import json_outside
from offload.service.door import connect_door

__all__ = ["AskedProcess", "ask_process", "tell_process"]


PATIENCE_SECONDS: Final = 3.0
"""The routes answer from memory, so a process that takes longer hangs. For each byte, and for all of them."""

COMMAND_SECONDS: Final = 20.0
"""A command waits for its outcome, at most `service.commanding.OUTCOME_SECONDS`."""

UNIX: Final = "unix"
"""The scheme of a URL that names the path of a door."""

OK: Final = 200
NOT_FOUND: Final = 404

STATUS_REPLY_SIZE_BYTES_MAX: Final = 64 * 2**20
"""The status of a hundred thousand streams is smaller."""

ASKED: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
"""The address to ask, if a process listens on all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedProcess:
    """The answer of a process. Without an address there is no process to ask."""

    url: str | None = None
    status: dict[str, Any] | None = None
    """The document of `/status`. None if no process said it."""

    error: str = ""
    """Why there is no status."""

    def command(self, route: str) -> str:
        """Return the command that prints a route of the process."""
        scheme, _, path = (self.url or "").partition(":")
        if scheme == UNIX:
            return f"curl -s --unix-socket {shlex.quote(path)} http://localhost{route}"
        return f"curl -s {self.url}{route}"

    @property
    def states(self) -> dict[str, str]:
        """The state of each stream: `leading`, `standby` or `paused`. Empty if there is no status."""
        rows = [] if self.status is None else self.status.get("streams", [])
        return {row["stream"]: row["state"] for row in rows}

    @property
    def lags(self) -> list[float]:
        """The seconds by which streams lag, as far as the process knows. Without those that do not."""
        rows = [] if self.status is None else self.status.get("streams", [])
        found = [row.get("lag_seconds") for row in rows]
        return [float(each) for each in found if isinstance(each, (int, float)) and each > 0]


async def ask_process(address: tuple[str, int] | None, door: Path | None = None) -> AskedProcess:
    """Return the status of the process behind a door, or of the one on an address. Raises nothing."""
    if door is not None:
        found = await _asked(f"{UNIX}:{door}", partial(_DoorConnection, door))
        if found.status is not None or address is None:
            return found
    if address is None:
        return AskedProcess()
    host, port = ASKED.get(address[0], address[0]), address[1]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return await _asked(url, partial(HTTPConnection, host, port, timeout=PATIENCE_SECONDS))


def tell_process(door: Path, verb: Verb, streams: Sequence[str] | None) -> list[dict[str, Any]]:
    """Tell the process behind a door what to do with streams, or with all of them, and return their statuses.

    Raises `NotOffloaded` if one of the names is that of no stream there, and `TryAgain` if nobody answers.
    """
    command = {"all": True} if streams is None else {"streams": [*streams]}
    try:
        code, raw = _exchange(
            _DoorConnection(door), "POST", f"/streams/{verb.value}", json.dumps(command), COMMAND_SECONDS
        )
        document = json_outside(raw, size_bytes_max=STATUS_REPLY_SIZE_BYTES_MAX)
    except TimeoutError as error:
        raise TryAgain(f"{door}: no answer within {COMMAND_SECONDS:g} s") from error
    except OSError as error:
        raise TryAgain(f"{door}: nobody answers: {error.strerror or error}") from error
    except (HTTPException, ValueError) as error:
        raise TryAgain(f"{door}: another program answers there") from error
    said = document.get("error") if isinstance(document, dict) else None
    if code != OK:
        raise NotOffloaded(str(said)) if code == NOT_FOUND else OffloadError(f"{door}: {said or code}")
    rows = document.get("streams") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(_is_stream(row) for row in rows):
        raise TryAgain(f"{door}: another program answers there")
    return rows


async def _asked(url: str, connection: Callable[[], HTTPConnection]) -> AskedProcess:
    try:
        status = await asyncio.to_thread(_fetch, connection())
    except TimeoutError:
        return AskedProcess(url=url, error=f"no answer within {PATIENCE_SECONDS:g} s")
    except OSError as error:
        return AskedProcess(url=url, error=error.strerror or str(error))
    except (HTTPException, ValueError):
        return AskedProcess(url=url, error="another program answers there")
    return AskedProcess(url=url, status=status)


class _DoorConnection(HTTPConnection):
    """HTTP over the socket at a path."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the process at the path."""
        self.sock = connect_door(self._path, timeout_seconds=PATIENCE_SECONDS)


def _fetch(connection: HTTPConnection) -> dict[str, Any]:
    _, raw = _exchange(connection, "GET", "/status", None, PATIENCE_SECONDS)
    found = json_outside(raw, size_bytes_max=STATUS_REPLY_SIZE_BYTES_MAX)
    if not isinstance(found, dict):
        raise ValueError("this is no status")
    if not isinstance(found.get("summary"), str) or not isinstance(found.get("problems"), list):
        raise ValueError("this is no status of `offload run`")
    rows = found.get("streams", [])
    if not isinstance(rows, list) or not all(_is_stream(row) for row in rows):
        raise ValueError("these are no streams of `offload run`")
    return found


def _exchange(
    connection: HTTPConnection, method: str, path: str, body: str | None, seconds: float
) -> tuple[int, bytes]:
    """Return the code and the body of the reply, or a little more of it than is allowed.

    Raises `TimeoutError` after so many seconds.
    """
    is_over = Event()

    def end(connected: socket) -> None:
        is_over.set()
        with suppress(OSError):  # the server has hung up
            connected.shutdown(SHUT_RDWR)

    try:
        connection.connect()
        connection.sock.settimeout(seconds)
        # A timeout of the socket alone begins again with each byte.
        ending = Timer(seconds, end, [connection.sock])
        ending.start()
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            code, raw = reply.status, reply.read(STATUS_REPLY_SIZE_BYTES_MAX + 1)
        except (HTTPException, OSError) as error:
            if is_over.is_set():
                raise TimeoutError from error
            raise
        finally:
            ending.cancel()
            ending.join()  # it must not find the socket closed
    finally:
        connection.close()
    if is_over.is_set():
        raise TimeoutError
    return code, raw


def _is_stream(row: object) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("stream", "state"))
