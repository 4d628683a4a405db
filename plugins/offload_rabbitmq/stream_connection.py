"""A connection to RabbitMQ's stream protocol: the login, requests with their responses, and what arrives.

One task reads all frames, in the order in which they arrive. A frame that answers no request goes to the
receiver that was set for its key. So if a request is answered, every frame that the broker sent before the
answer was received.

A lost connection is an error for every request that waits, for every later call, and for the one who waits
for `lost`. Nothing is sent again here: the caller knows what may be repeated.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Self

from offload.ground.env import Env
from offload.ground.errors import Denied, OffloadError, TryAgain
from offload_rabbitmq.stream_frames import (
    OK,
    RESPONSE,
    SIZE,
    SIZE_BYTES_MAX,
    Fields,
    Key,
    frame,
    long_bytes,
    refusal,
    string,
    string_map,
)
from offload_rabbitmq.stream_place import StreamPlace

ANSWER_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 2.0
LOGIN_FRAME_BYTES_MAX: Final = 1 << 20
"""The largest frame before the login. Another service's first bytes look like a frame of a gigabyte."""

READ_BUFFER_BYTES: Final = 1 << 20
PLAIN: Final = "PLAIN"


class StreamConnection:
    """An open connection. `connect` makes it. Belongs to one event loop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: StreamPlace, env: Env
    ) -> None:
        self._reader, self._writer, self._place, self._env = reader, writer, place, env
        self.where: Final = place.where
        self.receivers: Final[dict[int, Callable[[bytes], None]]] = {}
        """The receiver of the frames of each key that answer no request."""
        self.lost: Final[asyncio.Future[OffloadError]] = asyncio.get_running_loop().create_future()
        """Gets the error that ended the connection."""
        self.server: Mapping[str, str] = {}
        self.advertised: Mapping[str, str] = {}
        self.frame_size_bytes_max = 0
        self._heartbeat_seconds = 0
        self._correlation = 0
        self._waiting: dict[tuple[int, int], asyncio.Future[bytes]] = {}
        self._tuned: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._heard_at = env.monotonic()
        self.receivers[Key.HEARTBEAT] = self.receivers[Key.METADATA_UPDATE] = lambda content: None
        self.receivers[Key.TUNE] = self._take_limits
        self.receivers[Key.CLOSE] = self._closed_by_broker
        self._tasks = [asyncio.ensure_future(self._read())]

    @classmethod
    async def connect(cls, place: StreamPlace, env: Env) -> Self:
        """Connect and log in.

        Raises `TryAgain` if nobody answers, and `Denied` if the broker refuses the login.
        """
        tls = ssl.create_default_context() if place.tls else None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection(
                    place.host, place.port, ssl=tls, limit=READ_BUFFER_BYTES
                )
        except ssl.SSLCertVerificationError as exc:
            raise Denied(f"{place.where}: its certificate is not trusted: {exc.verify_message}") from exc
        except (OSError, TimeoutError) as exc:
            why = getattr(exc, "strerror", None) or str(exc) or "no answer"
            raise TryAgain(f"{place.where} cannot be reached: {why}") from exc
        connection = cls(reader, writer, place, env)
        try:
            await connection._log_in()
        except BaseException:
            await connection.aclose()
            raise
        return connection

    async def ask(self, key: Key, content: bytes, *, doing: str, accept: tuple[int, ...] = (OK,)) -> Fields:
        """Send a request, and return the content of its response from the code on.

        Raises the error of the code if it is not in `accept`.
        """
        self._refuse_if_lost()
        self._correlation += 1
        # The broker of 3.10 answers some requests under the key of the request. None of them is used here.
        waits_for = (key | RESPONSE, self._correlation)
        answer = self._waiting[waits_for] = asyncio.get_running_loop().create_future()
        try:
            await self.send(frame(key, self._correlation.to_bytes(4, "big") + content))
            async with asyncio.timeout(ANSWER_SECONDS):
                fields = Fields(await answer, self.where)
        except TimeoutError as exc:
            raise self._no_answer(doing) from exc
        finally:
            del self._waiting[waits_for]
        if key is Key.METADATA:  # its response has no code
            return fields
        code = Fields(fields.content, self.where).number(2)
        if code not in accept:
            raise refusal(code, doing, self.where)
        return fields

    async def send(self, data: bytes) -> None:
        """Send whole frames, and wait while the broker takes them more slowly than they come."""
        self._refuse_if_lost()
        self._writer.write(data)
        try:
            await self._writer.drain()
        except OSError as exc:
            self._lose(f"the connection broke: {exc.strerror or exc}", exc)
            self._refuse_if_lost()

    async def aclose(self) -> None:
        """Say goodbye, and close. Idempotent. Frames that wait to be sent are sent before."""
        if not self.lost.done():
            with suppress(OffloadError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    goodbye = OK.to_bytes(2, "big") + string("OK")
                    await self.ask(Key.CLOSE, goodbye, doing="close the connection")
            self._lose("the connection was closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        # A broker with an alarm reads nothing more, and what waits to be sent would be awaited for ever.
        self._writer.transport.abort()

    async def _log_in(self) -> None:
        hello = {"product": "ledger-offload", "version": "1.0", "connection_name": "offload restore"}
        answer = await self.ask(Key.PEER_PROPERTIES, string_map(hello), doing="begin")
        answer.take(2)
        self.server = answer.string_map()
        await self.ask(Key.SASL_HANDSHAKE, b"", doing="begin a login")
        login = f"\0{self._place.user}\0{self._place.password}".encode()
        await self.ask(
            Key.SASL_AUTHENTICATE, string(PLAIN) + long_bytes(login), doing=f"log {self._place.user!r} in"
        )
        # The broker sends its limits on its own, right behind the answer.
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                limits = Fields(await self._tuned, self.where)
        except TimeoutError as exc:
            raise self._no_answer("state its limits") from exc
        self.frame_size_bytes_max, self._heartbeat_seconds = limits.number(4), limits.number(4)
        await self.send(frame(Key.TUNE, limits.content))
        opened = await self.ask(
            Key.OPEN, string(self._place.vhost), doing=f"open the virtual host {self._place.vhost!r}"
        )
        opened.take(2)
        self.advertised = opened.string_map()
        if self._heartbeat_seconds:
            self._tasks.append(asyncio.ensure_future(self._beat(self._heartbeat_seconds)))

    async def _read(self) -> None:
        try:
            while True:
                size_bytes = int.from_bytes(await self._reader.readexactly(SIZE.size), "big")
                if not 4 <= size_bytes <= (SIZE_BYTES_MAX if self._tuned.done() else LOGIN_FRAME_BYTES_MAX):
                    return self._lose(f"it sent a frame of {size_bytes} bytes: this is no stream listener")
                self._receive(await self._reader.readexactly(size_bytes))
        except (OSError, EOFError) as exc:
            self._lose("the connection broke", exc)
        except OffloadError as error:
            self._lose(str(error), error)
        except Exception as exc:  # noqa: BLE001 - a receiver may raise anything, and somebody waits for frames
            self._lose(f"a frame could not be taken: {exc!r}", exc)

    def _receive(self, raw: bytes) -> None:
        self._heard_at = self._env.monotonic()
        key, content = int.from_bytes(raw[:2], "big"), raw[4:]
        answer = self._waiting.get((key, int.from_bytes(content[:4], "big")))
        if answer is not None:
            if not answer.done():
                answer.set_result(content[4:])
        elif key in self.receivers:
            self.receivers[key](content)
        # Anything else is an answer that nobody waits for any more.

    def _take_limits(self, content: bytes) -> None:
        if not self._tuned.done():
            self._tuned.set_result(content)

    def _closed_by_broker(self, content: bytes) -> None:
        fields = Fields(content, self.where)
        correlation, code, reason = fields.take(4), fields.number(2), fields.string()
        self._writer.write(frame(Key.CLOSE | RESPONSE, correlation + OK.to_bytes(2, "big")))
        error = refusal(code, f"go on, and closed the connection ({reason})", self.where)
        self._lose(str(error), error)

    async def _beat(self, seconds: int) -> None:
        while True:
            await self._env.sleep(seconds / 2)
            if self._env.monotonic() - self._heard_at > 2 * seconds:
                self._lose(f"it sent nothing for {2 * seconds} s")
                self._writer.transport.abort()  # ends a `send` that waits for the broker to read
            if self.lost.done():
                return
            # Not awaited: a broker that reads nothing would stop this task, and hide its own silence.
            self._writer.write(frame(Key.HEARTBEAT, b""))

    def _no_answer(self, doing: str) -> TryAgain:
        return TryAgain(f"{self.where} did not answer for {ANSWER_SECONDS:.0f} s: {doing}")

    def _lose(self, why: str, cause: BaseException | None = None) -> None:
        if self.lost.done():
            return
        error = cause if isinstance(cause, OffloadError) else TryAgain(f"{self.where}: {why}")
        error.__cause__ = None if cause is error else cause
        self.lost.set_result(error)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        if not self._tuned.done():
            self._tuned.set_exception(error)
            self._tuned.exception()  # nobody may be waiting for it

    def _refuse_if_lost(self) -> None:
        if self.lost.done():
            raise self.lost.result()
