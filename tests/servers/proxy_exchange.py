"""A connection of a client at the fault proxy (`servers.proxy`), and what each fault does to a request on it.

Invariants: a fault is counted when it happens, not when it is planned; one connection of a client is one
connection to the server, as long as both keep it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from servers.proxy_messages import (
    END_OF_HEAD,
    UNTIL_END,
    Request,
    closes,
    page,
    refusal,
    reply_framing,
    status_of,
)
from servers.proxy_plan import Fault
from servers.proxy_wire import Ended, Wire

if TYPE_CHECKING:  # the proxy makes exchanges
    from servers.proxy import Proxy


class Exchange:
    """A client's connection, which serves one request at a time, and its connection to the server."""

    def __init__(self, proxy: Proxy, client: Wire) -> None:
        self._proxy, self._client = proxy, client
        self._server: Wire | None = None

    async def run(self, request: Request) -> bool:
        """Serve one request. Return True if the client's connection stays open."""
        proxy, plan = self._proxy, self._proxy.plan
        proxy.counts["creates"] += request.creates
        if plan.delay_seconds:
            await asyncio.sleep(plan.delay_seconds)
        fault = plan.decide(request)
        proxy.log.append(
            f"{request.number} {request.method} {request.target}{f'  <- {fault.name}' if fault else ''}"
        )
        proxy.watch(request, "before")
        match fault:
            case Fault.REFUSE:
                return await self._refuse(request)
            case Fault.PAGE | Fault.EMPTY:
                body = b"<html><body>Please log in</body></html>" if fault is Fault.PAGE else b""
                return await self._answer(request, page(request, body, end=request.expects), fault)
            case Fault.RESET:
                return await self._reset(request)
            case Fault.LATE:
                return await self._late(request)
            case Fault.DEAF:
                proxy.count(fault)
                await self._client.abandoned()
                return False
            case Fault.IGNORE_PRECONDITION:
                proxy.count(fault)
                return await self._pass(request, request.without_precondition(), None)
            case _:
                return await self._pass(request, request.raw, fault)

    def close(self) -> None:
        """End both connections."""
        self._client.close()
        if self._server is not None:
            self._server.close()

    async def _refuse(self, request: Request) -> bool:
        plan = self._proxy.plan
        headers = []
        if plan.retry_after_seconds_max is not None:
            bounds = plan.retry_after_seconds_min, plan.retry_after_seconds_max
            headers = [f"Retry-After: {plan.draw(request).randint(*bounds)}"]
        reply = refusal(request, 503, *headers, end=request.expects)
        return await self._answer(request, reply, Fault.REFUSE)

    async def _answer(self, request: Request, reply: bytes, fault: Fault) -> bool:
        """Answer in the server's place."""
        if not request.expects:
            await self._client.drain(request.body)
        self._proxy.count(fault)
        await self._client.send(reply)
        return not request.expects

    async def _reset(self, request: Request) -> bool:
        if request.body:
            server = await self._connected()
            await server.send(request.raw)
            if request.expects:
                await self._client.send(b"HTTP/1.1 100 Continue" + END_OF_HEAD)
            if isinstance(request.body, int):
                await self._client.copy(request.body // 2, server.send)
            else:
                body = await self._client.take(request.body)
                await server.send(body[: len(body) // 2])
            server.reset()
        self._proxy.count(Fault.RESET)
        self._client.reset()
        return False

    async def _late(self, request: Request) -> bool:
        if request.expects:
            await self._client.send(b"HTTP/1.1 100 Continue" + END_OF_HEAD)
        body = await self._client.take(request.body)
        self._proxy.count(Fault.LATE)
        self._proxy.send_late(request, body)
        return False

    async def _pass(self, request: Request, head: bytes, fault: Fault | None) -> bool:
        """Pass the request to the server, and the reply back, as `fault` changes them."""
        server, client = await self._connected(), self._client
        sending = None
        if isinstance(request.body, int) and not request.expects and request.body <= len(client.read):
            await server.send(head + client.taken(request.body))
        else:
            await server.send(head)
            sending = asyncio.ensure_future(client.forward(request.body, server.send))
        try:
            reply, permitted = await self._replied(request, server, sending)
            self._proxy.watch(request, "after")
            unsent = sending is not None and not sending.done() and request.expects and not permitted
            kept = await self._deliver(request, reply, server, fault, end=unsent)
            if unsent or not kept:
                return False
            if sending is not None:
                await sending
            return True
        except Ended:
            self._proxy.counts["gone"] += not client.at_end
            raise
        finally:
            if sending is not None:
                sending.cancel()
                with suppress(asyncio.CancelledError, OSError, Ended):
                    await sending

    async def _replied(
        self, request: Request, server: Wire, sending: asyncio.Task[None] | None
    ) -> tuple[bytes, bool]:
        """Return the head of the final reply, and True if the client was told to send its body."""
        permitted = False
        reading = asyncio.ensure_future(server.head())
        try:
            while True:
                waited = {reading} if sending is None else {reading, sending}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done() and sending is not None:
                    failure = sending.exception()
                    if isinstance(failure, Ended):  # the client disconnected in the middle of its body
                        raise failure
                    sending = None  # sent, or refused by the server, whose reply gives the reason
                    continue
                head = reading.result()
                if head is None:
                    raise Ended
                if status_of(head) // 100 != 1:
                    return head, permitted
                permitted = True
                await self._client.send(head)
                reading = asyncio.ensure_future(server.head())
        finally:
            if not reading.done():
                reading.cancel()
                with suppress(asyncio.CancelledError, OSError, Ended):
                    await reading

    async def _deliver(
        self, request: Request, reply: bytes, server: Wire, fault: Fault | None, *, end: bool
    ) -> bool:
        proxy, client = self._proxy, self._client
        framing = reply_framing(request, reply)
        kept = not (closes(reply) or closes(request.raw) or framing is UNTIL_END or end)
        if fault is Fault.CUT_AFTER or fault is Fault.ERROR_AFTER:
            await server.drain(framing)
            proxy.count(fault)
            if fault is Fault.CUT_AFTER:
                return False
            await client.send(refusal(request, 500, end=not kept))
            return kept
        if fault is Fault.STALL:
            body = await server.take(framing)
            proxy.count(fault)
            if proxy.plan.stall_after_bytes:
                await client.send(proxy.relocated(reply, request) + body[: proxy.plan.stall_after_bytes])
            await client.abandoned()
            return False
        head = proxy.relocated(reply, request)
        if end:
            head = head[:-2] + b"Connection: close" + END_OF_HEAD
        if fault in (None, Fault.HANG_UP) or not framing:
            await client.send(head)
            await server.forward(framing, client.send)
            if fault is Fault.HANG_UP:
                proxy.count(fault)
                return False
            if not kept and client.line is not None:
                await client.line.notify()
            return kept
        body = await server.take(framing)
        if len(body) < 2:
            await client.send(head + body)
            return kept
        proxy.count(fault)
        if fault is Fault.TRUNCATE:
            await client.send(head + body[: len(body) // 2])
            return False
        if fault is Fault.CUT_RECORD:
            assert client.line is not None, "there are no records without TLS"
            await client.send(head)
            await client.line.send_cut(body)
            return False
        if fault is Fault.FLIP:
            middle = len(body) // 2
            await client.send(head + body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :])
            return kept
        await client.send(head)
        for piece in _pieces(body):
            await asyncio.sleep(proxy.plan.pause_seconds)
            await client.send(piece)
        return kept

    async def _connected(self) -> Wire:
        """Return the connection to the server: the existing one, unless the server has ended it since."""
        if self._server is not None and not self._server.is_quiet:
            self._server.close()
            self._server = None
        if self._server is None:
            self._server = await self._proxy.connect()
        return self._server


def _pieces(body: bytes) -> Iterator[bytes]:
    size_bytes = max(1, len(body) // 8)
    for start in range(0, len(body), size_bytes):
        yield body[start : start + size_bytes]
