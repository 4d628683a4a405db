"""Candidates by libcurl (pycurl) for a transport: in threads, on the event loop, or on one beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from transport_task import Move, Piece, Task, all_at_once, in_threads

UPLOAD_BUFFER_KIB_MAX = 2048
"""The largest buffer that libcurl takes for sending. That for receiving may have 10 MiB."""


def _curl_of(task: Task) -> Any:
    import pycurl

    curl = pycurl.Curl()
    curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    curl.setopt(pycurl.NOSIGNAL, 1)
    curl.setopt(pycurl.NOPROXY, "*")
    curl.setopt(pycurl.BUFFERSIZE, task.buffer_kib * 1024)
    curl.setopt(pycurl.UPLOAD_BUFFERSIZE, min(task.buffer_kib, UPLOAD_BUFFER_KIB_MAX) * 1024)
    curl.setopt(pycurl.PATH_AS_IS, 1)
    curl.setopt(pycurl.FAILONERROR, 1)
    if task.authority:
        curl.setopt(pycurl.CAINFO, task.authority)
    return curl


def _prepare(curl: Any, task: Task, piece: Piece, buffer: memoryview) -> list[int]:
    """Set one request on a handle, and return a list of one number: how many bytes have moved."""
    import pycurl

    moved = [0]

    def write(chunk: memoryview) -> None:
        start = moved[0]
        buffer[start : start + len(chunk)] = chunk
        moved[0] = start + len(chunk)

    def read(size_bytes: int) -> memoryview:
        start = moved[0]
        moved[0] = min(start + size_bytes, len(buffer))
        return buffer[start : moved[0]]

    headers = [f"{name}: {value}" for name, value in task.headers(piece).items()]
    curl.setopt(pycurl.URL, task.endpoint + task.target(piece))
    if task.is_read:
        curl.setopt(pycurl.WRITEFUNCTION, write, use_memoryview=True)
    else:
        curl.setopt(pycurl.UPLOAD, 1)
        curl.setopt(pycurl.INFILESIZE_LARGE, piece.size_bytes)
        curl.setopt(pycurl.READFUNCTION, read)
        curl.setopt(pycurl.WRITEFUNCTION, lambda chunk: None, use_memoryview=True)
    curl.setopt(pycurl.HTTPHEADER, [*headers, "Expect:"])
    return moved


def in_own_threads(task: Task) -> None:
    """Move by `Curl.perform`, with one handle for each thread."""

    def mover() -> Move:
        curl = _curl_of(task)

        def move(piece: Piece, buffer: memoryview) -> int:
            moved = _prepare(curl, task, piece, buffer)
            curl.perform()
            return moved[0]

        return move

    in_threads(task, mover)


class _Pool:
    """Handles and buffers that are used again, on one event loop."""

    def __init__(self, task: Task, multi: Any) -> None:
        self._task, self._multi = task, multi
        self._free: list[tuple[Any, memoryview]] = []
        self._largest = max(piece.size_bytes for piece in task.pieces)

    async def move(self, piece: Piece) -> int:
        """Move one piece."""
        if self._free:
            curl, buffer = self._free.pop()
        else:
            curl = _curl_of(self._task)
            buffer = memoryview(bytearray(self._largest) if self._task.is_read else self._task.data)
        moved = _prepare(curl, self._task, piece, buffer[: piece.size_bytes])
        await self._multi.perform(curl)
        self._free.append((curl, buffer))
        return moved[0]


def on_the_loop(task: Task) -> None:
    """Move by `AsyncCurlMulti` on the event loop of the caller."""
    import pycurl

    async def main() -> None:
        async with pycurl.AsyncCurlMulti() as multi:
            pool = _Pool(task, multi)
            await all_at_once(task, pool.move)

    task.headers(task.pieces[0])
    asyncio.run(main())


def beside_the_loop(task: Task) -> None:
    """Move by `AsyncCurlMulti` on an event loop in a thread of its own; the caller's loop waits."""
    import pycurl

    started: Future[tuple[asyncio.AbstractEventLoop, Callable[[], None], _Pool]] = Future()

    async def serve() -> None:
        end = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with pycurl.AsyncCurlMulti() as multi:
            pool = _Pool(task, multi)
            started.set_result((loop, lambda: loop.call_soon_threadsafe(end.set), pool))
            await end.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    task.headers(task.pieces[0])
    thread.start()
    loop, stop, pool = started.result()

    async def move(piece: Piece) -> int:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pool.move(piece), loop))

    asyncio.run(all_at_once(task, move))
    stop()
    thread.join()
