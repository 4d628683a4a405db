"""A reverse proxy for HTTP/1.1 that breaks requests on purpose, or only delays them.

    plan = Plan(rules=[Rule(Fault.CUT_AFTER, "PUT", "*/root.*", nth=1)])
    with proxied("http://127.0.0.1:9000", plan) as proxy:
        ...                         # a client of proxy.url
    proxy.counts["cut_after"]       # 1

    PYTHONPATH=tests python -m servers.proxy http://127.0.0.1:9000 --delay-ms 20   # in a process of its own

`proxy_plan` decides which fault a request gets, and `proxy_exchange` does it, on connections of `proxy_wire`
with messages of `proxy_messages`. The head of a request goes to the server unchanged, `Host` included, so
signatures stay valid. In a reply, a `Location` on the server itself is changed to the proxy. Clients use TLS
if `proxied` is given a certificate (`proxy_tls`); the server never does.

Invariant: when `proxied` ends, no connection and no task of the proxy is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from servers.processes import free_port
from servers.proxy_exchange import Exchange
from servers.proxy_messages import Request, reply_framing, status_of
from servers.proxy_plan import Fault, HandshakeFault, Plan, Rule
from servers.proxy_tls import Tls
from servers.proxy_wire import Ended, Wire, reply_head

__all__ = ["Fault", "HandshakeFault", "Plan", "Proxy", "Request", "Rule", "delayed", "proxied"]

STOP_SECONDS: Final = 60.0


class Proxy:
    """A proxy, made by `proxied`. Public attributes and methods may be used from any thread."""

    def __init__(self, upstream: str, plan: Plan, tls: Tls | None = None) -> None:
        parts = urllib.parse.urlsplit(upstream)
        assert parts.scheme == "http", upstream
        assert parts.hostname
        self.plan = plan
        self.tls = tls
        self.counts: Counter[str] = Counter()
        """The numbers of `connections`, `ended` connections, `requests`, `creates`, and faults by their names
        in lower case, those of handshakes with `handshake_` before it. `refused`: handshakes that the client
        ended. `gone`: connections that the server ended in the middle of a request."""

        self.log: deque[str] = deque(maxlen=500)
        """The last requests, one line each, for debugging."""

        self.watch: Callable[[Request, str], None] = lambda request, moment: None
        """A function called in the proxy's thread with each request, `before` the server gets it and `after`
        it has answered. If it blocks, the whole proxy waits."""

        self.mistakes: list[BaseException] = []
        """The errors of the proxy itself. `proxied` raises the first of them."""

        self._address = parts.hostname, parts.port or 80
        self._authority = parts.netloc
        self._port: int = free_port()  # of those that no client gets while the proxy is gone
        self._listener = _listening(self._port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._late = 0
        self._landed = threading.Condition()

    @property
    def url(self) -> str:
        """Return the URL of the proxy."""
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self._port}"

    def before(self, text: str) -> str:
        """Return `text`, an option or a URL, with the proxy's address instead of the server's."""
        return text.replace(f"http://{self._authority}", self.url)

    def options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options of a place, so that they lead to the proxy and name the authority of its TLS."""
        found = {name: self.before(value) for name, value in given.items()}
        return found if self.tls is None else found | {"verify": str(self.tls.trusted)}

    def settle(self) -> None:
        """Wait until every late request has landed."""
        with self._landed:
            assert self._landed.wait_for(lambda: not self._late, STOP_SECONDS), "a late request never landed"

    def leave(self) -> None:
        """Disappear like a killed server: end all connections, and refuse new ones."""
        self._on_loop(self._leave())

    def come_back(self) -> None:
        """Accept connections again, at the same address."""
        self._on_loop(self._come_back())

    def _on_loop(self, work: Coroutine[None, None, None]) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_SECONDS)

    async def _leave(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()  # not before: the task that accepts still watches it

    async def _come_back(self) -> None:
        self._listener = _listening(self._port)
        self._begin(self._accept())

    async def serve(self) -> None:
        """Serve until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._begin(self._accept())
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self.counts["connections"] += 1
            self._begin(self._serve(Wire(connection, self.tls)))

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (mistake := task.exception()) is not None:
            self.mistakes.append(mistake)

    async def _serve(self, client: Wire) -> None:
        exchange = Exchange(self, client)
        try:
            await self._shake(client)
            while (head := await client.head()) is not None:
                self.counts["requests"] += 1
                request = Request(head, self.counts["requests"])
                if not await exchange.run(request):
                    return
        except (OSError, Ended):
            pass  # one side has ended, so end the other too
        finally:
            exchange.close()
            self.counts["ended"] += 1

    async def _shake(self, client: Wire) -> None:
        """Begin TLS, if there is TLS. Raises `ConnectionError` if that fails, on purpose or not."""
        if client.line is None:
            return
        fault = self.plan.decide_handshake()
        if fault is not None:
            self.counts[f"handshake_{fault.name.lower()}"] += 1
        if fault is HandshakeFault.SILENT:
            await client.abandoned()
            raise Ended
        try:
            await client.line.shake(is_cut=fault is HandshakeFault.CUT)
        except ConnectionError:
            self.counts["refused"] += fault is None
            raise

    async def connect(self) -> Wire:
        """Open a new connection to the server."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        wire = Wire(connection)
        try:
            await asyncio.get_running_loop().sock_connect(connection, self._address)
        except BaseException:
            wire.close()
            raise
        return wire

    def count(self, fault: Fault) -> None:
        """Count a fault that happened."""
        self.counts[fault.name.lower()] += 1

    def send_late(self, request: Request, body: bytes) -> None:
        """Deliver a request whose client has been cut off."""
        with self._landed:
            self._late += 1
        self._begin(self._land(request, body))

    async def _land(self, request: Request, body: bytes) -> None:
        try:
            await asyncio.sleep(self.plan.late_seconds)
            server = await self.connect()
            try:
                await server.send(request.raw + body)
                reply = await reply_head(server)
                await server.drain(reply_framing(request, reply))
                self.log.append(f"{request.number} landed late: {status_of(reply)}")
            finally:
                server.close()
        except (OSError, Ended) as exc:
            self.log.append(f"{request.number} never landed: {exc!r}")
        finally:
            with self._landed:
                self._late -= 1
                self._landed.notify_all()

    def relocated(self, reply: bytes, request: Request) -> bytes:
        """Return a reply's head whose `Location` leads to the proxy."""
        place = f"{urllib.parse.urlsplit(self.url).scheme}://{request.headers.get('host', '')}"
        server = re.escape(self._authority.encode())
        pattern = rb"(?i)(\r\nlocation: *)https?://" + server + rb"(?=[/?\r])"
        return re.sub(pattern, rb"\g<1>" + place.encode("latin-1"), reply)


def _listening(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    listener.setblocking(False)
    return listener


@contextmanager
def proxied(upstream: str, plan: Plan | None = None, tls: Tls | None = None) -> Iterator[Proxy]:
    """Run a proxy in front of `upstream`, in a separate thread. If `tls` is given, clients use TLS."""
    proxy = Proxy(upstream, plan or Plan(), tls)
    loop = asyncio.new_event_loop()
    serving = loop.create_task(proxy.serve())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=run, name="proxy")
    thread.start()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(STOP_SECONDS)
        loop.close()
        proxy.close()
    if proxy.mistakes:
        raise proxy.mistakes[0]


@contextmanager
def delayed(upstream: str, *, delay_ms: float) -> Iterator[str]:
    """Run a proxy in a separate process that only delays every request, and return its URL."""
    argv = [sys.executable, "-m", "servers.proxy", upstream, "--delay-ms", str(delay_ms)]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env)
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.stdout.read()


async def _main(upstream: str, delay_seconds: float) -> None:
    proxy = Proxy(upstream, Plan(delay_seconds=delay_seconds))
    serving = asyncio.ensure_future(proxy.serve())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    print(proxy.url, flush=True)
    with suppress(asyncio.CancelledError):
        await serving
    proxy.close()
    print(json.dumps(proxy.counts), flush=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Holds up every request on its way to a server.")
    arguments.add_argument("upstream", help="the server's URL")
    arguments.add_argument("--delay-ms", type=float, default=0.0)
    given = arguments.parse_args()
    asyncio.run(_main(given.upstream, given.delay_ms / 1000))
