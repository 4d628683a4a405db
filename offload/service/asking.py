"""Asking the process of a configuration for its status, by the address on which it listens.

Only a process on this machine is asked: one that listens on all addresses is asked on the loopback address.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from socket import SHUT_RDWR, socket
from threading import Event, Timer
from typing import Any, Final

from offload.outside import json_outside

__all__ = ["AskedProcess", "ask_process"]


PATIENCE_SECONDS: Final = 3.0
"""The routes answer from memory, so a process that takes longer hangs. For each byte, and for all of them."""

STATUS_REPLY_SIZE_BYTES_MAX: Final = 64 * 2**20
"""The status of a hundred thousand streams is smaller."""

ASKED: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here
"""The address to ask, if a process listens on all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedProcess:
    """What a process said. Without an address there is no process to ask."""

    url: str | None = None
    status: dict[str, Any] | None = None
    """The document of `/status`. None if no process said it."""

    error: str = ""
    """Why there is no status."""

    @property
    def states(self) -> dict[str, str]:
        """The state of each stream: `leading`, `standby` or `paused`. Empty if there is no status."""
        rows = [] if self.status is None else self.status.get("streams", [])
        return {row["stream"]: row["state"] for row in rows}


async def ask_process(address: tuple[str, int] | None) -> AskedProcess:
    """Return the status of the process that listens on an address. Raises nothing."""
    if address is None:
        return AskedProcess()
    host, port = ASKED.get(address[0], address[0]), address[1]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        status = await asyncio.to_thread(_fetch, host, port)
    except TimeoutError:
        return AskedProcess(url=url, error=f"no answer within {PATIENCE_SECONDS:g} s")
    except OSError as error:
        return AskedProcess(url=url, error=error.strerror or str(error))
    except (HTTPException, ValueError):
        return AskedProcess(url=url, error="another program answers there")
    return AskedProcess(url=url, status=status)


def _fetch(host: str, port: int) -> dict[str, Any]:
    raw = _reply(host, port)
    found = json_outside(raw, size_bytes_max=STATUS_REPLY_SIZE_BYTES_MAX)
    if not isinstance(found, dict):
        raise ValueError("this is no status")
    if not isinstance(found.get("summary"), str) or not isinstance(found.get("problems"), list):
        raise ValueError("this is no status of `offload run`")
    rows = found.get("streams", [])
    if not isinstance(rows, list) or not all(_is_stream(row) for row in rows):
        raise ValueError("these are no streams of `offload run`")
    return found


def _reply(host: str, port: int) -> bytes:
    """Return the body of the reply, or a little more of it than is allowed. Raises `TimeoutError` in time."""
    connection = HTTPConnection(host, port, timeout=PATIENCE_SECONDS)
    is_over = Event()

    def end(connected: socket) -> None:
        is_over.set()
        with suppress(OSError):  # the server has hung up
            connected.shutdown(SHUT_RDWR)

    try:
        connection.connect()
        # A timeout of the socket alone begins again with each byte.
        ending = Timer(PATIENCE_SECONDS, end, [connection.sock])
        ending.start()
        try:
            connection.request("GET", "/status")
            raw = connection.getresponse().read(STATUS_REPLY_SIZE_BYTES_MAX + 1)
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
    return raw


def _is_stream(row: object) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("stream", "state"))
