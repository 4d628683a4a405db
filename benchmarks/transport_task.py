"""The task of a candidate for a transport: its pieces, its signer, its clock, and two ways to move all."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

REGION: Final = "us-east-1"
MIB: Final = 2**20


@dataclass(frozen=True)
class Piece:
    """One request: `size_bytes` of an object from `start`, or a part of an upload with its number."""

    key: str
    start: int
    size_bytes: int
    is_whole: bool
    upload_id: str = ""
    number: int = 0


@dataclass(frozen=True)
class Task:
    """The pieces, the server, and the login. `authority` is the file that TLS trusts; empty without TLS.

    `buffer_kib` is how much libcurl receives and sends at once.
    """

    endpoint: str
    authority: str
    bucket: str
    key: str
    secret: str
    at_once: int
    job: str
    buffer_kib: int
    pieces: list[Piece]

    @property
    def is_read(self) -> bool:
        """True for the jobs that fetch."""
        return self.job.startswith("get")

    @cached_property
    def data(self) -> bytes:
        """The bytes of every piece that is sent."""
        return os.urandom(MIB) * (max(piece.size_bytes for piece in self.pieces) // MIB)

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context, None without TLS."""
        return ssl.create_default_context(cafile=self.authority) if self.authority else None

    def target(self, piece: Piece) -> str:
        """Return the path and query of a piece's request."""
        query = f"?partNumber={piece.number}&uploadId={piece.upload_id}" if piece.upload_id else ""
        return f"/{self.bucket}/{piece.key}{query}"

    def headers(self, piece: Piece) -> dict[str, str]:
        """Return the signed headers of a piece's request."""
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        sent: dict[str, str] = {"Accept-Encoding": "identity"}
        if self.is_read and not piece.is_whole:
            sent["Range"] = f"bytes={piece.start}-{piece.start + piece.size_bytes - 1}"
        if not self.is_read:
            sent["Content-Length"] = str(piece.size_bytes)
        method = "GET" if self.is_read else "PUT"
        request = AWSRequest(method, self.endpoint + self.target(piece), headers=sent)
        request.context["client_config"] = _Unsigned()
        S3SigV4Auth(Credentials(self.key, self.secret), "s3", REGION).add_auth(request)
        return dict(request.headers.items())


class _Unsigned:
    """The part of a client's configuration that the signer reads."""

    s3: Final = {"payload_signing_enabled": False}


@dataclass
class Meter:
    """The seconds and CPU seconds of this process between `start` and `stop`."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def start(self) -> None:
        """Start. Candidates call this when they could send their first request."""
        self.seconds, self.cpu_seconds = -time.perf_counter(), -time.process_time()

    def stop(self) -> None:
        """Stop."""
        self.seconds, self.cpu_seconds = (
            self.seconds + time.perf_counter(),
            self.cpu_seconds + time.process_time(),
        )


METER: Final = Meter()
Move = Callable[[Piece, memoryview], int]
"""Moves a piece, and returns the number of bytes. A read may use the buffer, a write sends it."""


def in_threads(task: Task, move: Callable[[], Move]) -> None:
    """Move all pieces in threads. Each thread has a mover and a buffer of its own."""
    local = threading.local()
    largest = max(piece.size_bytes for piece in task.pieces)

    def one(piece: Piece) -> None:
        if not hasattr(local, "move"):
            local.move = move()
            local.buffer = memoryview(bytearray(largest) if task.is_read else task.data)
        moved = local.move(piece, local.buffer[: piece.size_bytes])
        if moved != piece.size_bytes:
            raise SystemExit(f"{piece}: {moved} bytes came")

    task.headers(task.pieces[0])  # imports the signer before the clock starts
    _ = task.is_read or task.data
    METER.start()
    with ThreadPoolExecutor(task.at_once) as pool:
        list(pool.map(one, task.pieces))
    METER.stop()


async def all_at_once(task: Task, move: Callable[[Piece], Any]) -> None:
    """Move all pieces in tasks of one event loop, as many at once as the task says."""
    turns = asyncio.Semaphore(task.at_once)

    async def one(piece: Piece) -> None:
        async with turns:
            moved = await move(piece)
        if moved != piece.size_bytes:
            raise SystemExit(f"{piece}: {moved} bytes came")

    METER.start()
    await asyncio.gather(*map(one, task.pieces))
    METER.stop()
