"""A listener for tests, as small as one can be: a peer names a stream and gets its chunks as they are stored.

The peer sends a line with the name. Each chunk has its size in 32 bits before it. A size of 0 says goodbye.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

from offload.contracts.listener import Listener, ListenerCounts, ServedStreams
from offload.contracts.plugin import ListenerType, hookimpl
from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload.model.position import AtEdge
from offload.service.address import listen


@hookimpl
def offload_listeners() -> Sequence[ListenerType]:
    """Declare the listener."""
    return [ListenerType(name="chunks", target=f"{__name__}:open_listener", schemes=("chunks",))]


def open_listener(url: str, *, env: Env) -> Listener:
    """Return the listener of `chunks://HOST:PORT`. The option `stays` makes it deaf to the end."""
    if (query := urlsplit(url).query) not in ("", "stays"):
        raise Misuse(f"chunks:// has no option {query!r}")
    return ChunkListener(url, stays=bool(query))


class ChunkListener(Listener):
    """The listener."""

    def __init__(self, url: str, *, stays: bool) -> None:
        self._parts, self._stays, self._counts = urlsplit(url), stays, ListenerCounts()
        self._socket: socket.socket | None = None

    @property
    def url(self) -> str:
        """The address."""
        port = self._parts.port if self._socket is None else self._socket.getsockname()[1]
        return f"chunks://{self._parts.hostname}:{port}"

    @property
    def counts(self) -> ListenerCounts:
        """The numbers."""
        return self._counts

    def listen(self) -> None:
        """Take the port."""
        self._socket = listen(str(self._parts.hostname), self._parts.port or 0)

    async def serve(self, streams: ServedStreams, stopping: asyncio.Event) -> None:
        """Serve until the end, and say goodbye to each peer."""
        tasks = set[asyncio.Task[None]]()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            name = (await reader.readline()).decode().strip()
            if name == "fail":
                failed.set_exception(OSError("the listener broke"))
            sending = asyncio.create_task(self._send(streams, name, writer))
            tasks.add(sending)
            await asyncio.wait([sending])

        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(answer, sock=self._socket)
        end = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([end, failed], return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            if self._stays:
                await asyncio.Event().wait()
        finally:
            server.close()
            end.cancel()
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, streams: ServedStreams, name: str, writer: asyncio.StreamWriter) -> None:
        self._counts.accepted += 1
        self._counts.connections += 1
        try:
            reader = await streams.open(name)
            async with aclosing(reader.follow_chunks(await reader.place_of(AtEdge.FIRST))) as chunks:
                async for chunk in chunks:
                    writer.write(len(chunk.raw).to_bytes(4, "big") + chunk.raw)
                    self._counts.delivered_bytes += len(chunk.raw)
                    await writer.drain()
        finally:
            self._counts.connections -= 1
            writer.write(bytes(4))
            writer.close()

    async def aclose(self) -> None:
        """Release the port."""
        if self._socket is not None:
            self._socket.close()


def install(site: Path) -> None:
    """Make a distribution in a folder that declares the listener, for a process with it in PYTHONPATH."""
    info = site / "chunk_listener-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chunk-listener\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[offload]\nchunks = {__name__}\n")
    (site / f"{__name__}.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
