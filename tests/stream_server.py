"""A server of RabbitMQ's streams over a tier, in a thread of its own, for tests that speak to its port."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from offload_rabbitmq.server.listener import StreamListener, open_listener

from offload import Session
from offload.contracts.listener import ListenerCounts
from offload.service.serving import ServedTier


@dataclass
class Served:
    """A server that runs. `tasks` returns how many tasks its loop has beside its own two."""

    port: int
    counts: ListenerCounts
    loop: asyncio.AbstractEventLoop
    session: Session
    left: set[str]
    """What still ran when it had ended, and errors that asyncio caught. Empty, or the test fails."""


@contextmanager
def served(
    tier: Path | str,
    options: str = "",
    *,
    source: str | None = None,
    cache_size_bytes: int | None = None,
    scheme: str = "rabbitmq-stream",
) -> Iterator[Served]:
    """Serve a tier on a free port of loopback until the end of the block. Nothing may be left behind it."""
    started: list[Served] = []
    ready, stop = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        async with Session(cache_size_bytes=cache_size_bytes) as session:
            listener = open_listener(f"{scheme}://127.0.0.1:0{options}", env=session.env)
            assert isinstance(listener, StreamListener)
            listener.listen()
            catalogue = session.catalogue(str(tier))
            await catalogue.open()
            beside = None if source is None else session.source(source)
            stopping = asyncio.Event()
            serving = asyncio.ensure_future(listener.serve(ServedTier(session, catalogue, beside), stopping))
            port = int(listener.url.rpartition(":")[2])
            loop = asyncio.get_running_loop()
            started.append(Served(port, listener.counts, loop, session, set()))
            loop.set_exception_handler(lambda _, context: started[0].left.add(f"an error: {context}"))
            ready.set()
            await asyncio.to_thread(stop.wait)
            stopping.set()
            try:
                async with asyncio.timeout(10):
                    await serving
            except TimeoutError:
                started[0].left.add("a connection")
            await listener.aclose()
            await catalogue.aclose()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        late = (await asyncio.wait(others, timeout=2))[1] if others else set()  # what was cancelled ends
        started[0].left.update(map(str, late))

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - the test shows it
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(30)
    try:
        if failed:
            raise failed[0]
        yield started[0]
    finally:
        stop.set()
        thread.join(30)
    if failed:
        raise failed[0]
    assert not started[0].left, started[0].left
