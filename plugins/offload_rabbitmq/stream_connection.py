"""A connection to RabbitMQ's stream protocol: the login, requests with their responses, and what arrives.

One task reads all frames, in the order in which they arrive. A frame that answers no request goes to the
receiver that was set for its key. So if a request is answered, every frame that the broker sent before the
answer was received.

A lost connection is an error for every request that waits, for every later call, and for the one who waits
for `lost`. A request without an answer in time also loses the connection, because nobody knows what became of
it. Nothing is sent again here: the caller knows what may be repeated.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Self

from offload.ground.env import Env
from offload.ground.errors import Denied, OffloadError, TryAgain
from offload_rabbitmq.addresses import addresses_of
from offload_rabbitmq.stream_answers import refusal
from offload_rabbitmq.stream_frames import (
    FRAME_SIZE_BYTES_MIN,
    SIZE,
    Code,
    Frame,
    Key,
    Sender,
    decode,
    encode,
)
from offload_rabbitmq.stream_place import BrokerEndpoint

CLOSE_SECONDS: Final = 2.0
HEARTBEAT_SECONDS: Final = 60
"""The heartbeat if the broker states none, or a longer one."""

FRAME_BYTES_MAX: Final = 4 << 20
"""The largest frame that has no chunk. Another service's first bytes look like a frame of a gigabyte."""

CHUNK_FRAME_BYTES_MAX: Final = 2**31 - 1
READ_BUFFER_BYTES: Final = 1 << 20
PIECE_SIZE_BYTES: Final = 64 << 10
REASON_SIZE_MAX: Final = 200
DELIVER: Final = Key.DELIVER.to_bytes(2, "big")
PLAIN: Final = "PLAIN"


class StreamConnection:
    """An open connection. `connect` makes it. Belongs to one event loop."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        endpoint: BrokerEndpoint,
        env: Env,
        *,
        answer_seconds: float,
        chunk_bytes_max: int,
    ) -> None:
        self._reader, self._writer, self._env = reader, writer, env
        self._answer_seconds, self._chunk_bytes_max = answer_seconds, chunk_bytes_max
        self._login_ends: float | None = None
        """The moment of the loop's clock at which the login must be over. None: it is."""
        self.where: Final = endpoint.url
        self.receivers: Final[dict[Key, Callable[[Frame], None]]] = {}
        """The receiver of the frames of each key that answer no request."""
        self.lost: Final[asyncio.Future[OffloadError]] = asyncio.get_running_loop().create_future()
        """Gets the error that ended the connection."""
        self.server: Mapping[str, str] = {}
        self.advertised: Mapping[str, str] = {}
        self.frame_size_bytes_max = 0
        """The largest frame that the broker accepts. 0: any."""
        self._correlation = 0
        self._waiting: dict[tuple[Key, int], asyncio.Future[Frame]] = {}
        self._tuned: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._heard_at = env.monotonic()
        self.receivers[Key.TUNE] = self._take_limits
        self.receivers[Key.CLOSE] = self._closed_by_broker
        self._tasks = [asyncio.ensure_future(self._read())]

    @classmethod
    async def connect(
        cls,
        endpoint: BrokerEndpoint,
        env: Env,
        *,
        name: str,
        connect_seconds: float,
        answer_seconds: float,
        chunk_bytes_max: int = CHUNK_FRAME_BYTES_MAX,
    ) -> Self:
        """Connect and log in.

        The broker shows `name` to its operator. All of this may take `connect_seconds`, and each answer
        afterwards `answer_seconds`. The first `chunk_bytes_max` bytes of a delivered chunk are kept, and the
        others are read and dropped.

        Raises `TryAgain` if nobody answers, and `Denied` if the broker refuses the login.
        """
        login_ends = asyncio.get_running_loop().time() + connect_seconds
        try:
            async with asyncio.timeout_at(login_ends):
                reader, writer = await _opened(endpoint)
        except ssl.SSLCertVerificationError as exc:
            raise Denied(f"{endpoint.url}: its certificate is not trusted: {exc.verify_message}") from exc
        except (OSError, TimeoutError) as exc:
            why = getattr(exc, "strerror", None) or str(exc) or "no answer"
            raise TryAgain(f"{endpoint.url} cannot be reached: {why}") from exc
        connection = cls(
            reader, writer, endpoint, env, answer_seconds=answer_seconds, chunk_bytes_max=chunk_bytes_max
        )
        connection._login_ends = login_ends
        try:
            await connection._log_in(endpoint, name)
        except BaseException:
            connection._lose("the login was given up")  # a broker that does not answer gets no goodbye
            await connection.aclose()
            raise
        return connection

    async def ask(
        self, key: Key, *, doing: str, accept: tuple[Code, ...] = (Code.OK,), **fields: Any
    ) -> Frame:
        """Send a request, and return its response.

        Raises the error of its code if that is not in `accept`. The connection is sound then, if it is not
        `lost`.
        """
        self._refuse_if_lost()
        self._correlation = self._correlation % (2**32 - 1) + 1
        waits_for = key, self._correlation
        answer = self._waiting[waits_for] = asyncio.get_running_loop().create_future()
        try:
            async with self._in_time():
                await self.send(encode(key, correlation=self._correlation, **fields))
                frame: Frame = await answer
        except TimeoutError as exc:
            raise self._no_answer(doing) from exc
        finally:
            del self._waiting[waits_for]
        code = frame.fields.get("code", Code.OK)  # the response to `METADATA` has none
        if code not in accept:
            raise refusal(code, doing, self.where)
        return frame

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
        try:
            if not self.lost.done():
                with suppress(OffloadError, TimeoutError):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await self.ask(Key.CLOSE, reason_code=Code.OK, reason="OK", doing="say goodbye")
        finally:
            # A broker with an alarm reads nothing more, and what waits to be sent would be awaited for ever.
            self._lose("the connection was closed")
            self._writer.transport.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            with suppress(OSError):
                await self._writer.wait_closed()

    async def _log_in(self, at: BrokerEndpoint, name: str) -> None:
        hello = {"product": "ledger-offload", "version": "1.0", "connection_name": name}
        self.server = (await self.ask(Key.PEER_PROPERTIES, properties=hello, doing="begin"))["properties"]
        await self.ask(Key.SASL_HANDSHAKE, doing="begin a login")
        login = f"\0{at.user}\0{at.password}".encode(errors="surrogateescape")
        await self.ask(Key.SASL_AUTHENTICATE, mechanism=PLAIN, data=login, doing=f"log {at.user!r} in")
        # The broker sends its limits on its own, right behind the answer.
        try:
            async with self._in_time():
                limits = await self._tuned
        except TimeoutError as exc:
            raise self._no_answer("state its limits") from exc
        self.frame_size_bytes_max = limits["frame_size_bytes_max"]
        heartbeat_seconds = min(limits["heartbeat_seconds"] or HEARTBEAT_SECONDS, HEARTBEAT_SECONDS)
        await self.send(
            encode(
                Key.TUNE,
                frame_size_bytes_max=self.frame_size_bytes_max,
                heartbeat_seconds=heartbeat_seconds,
            )
        )
        doing = f"open the virtual host {at.virtual_host!r}"
        opened = await self.ask(Key.OPEN, virtual_host=at.virtual_host, doing=doing)
        self.advertised, self._login_ends = opened["properties"], None
        self._tasks.append(asyncio.ensure_future(self._beat(heartbeat_seconds)))

    async def _read(self) -> None:
        try:
            while not self.lost.done():  # frames behind a `CLOSE` count for nothing
                frame = decode(await self._content(), Sender.SERVER, where=self.where)
                self._heard_at = self._env.monotonic()
                if isinstance(frame, Frame):  # a newer broker may have commands of its own
                    self._receive(frame)
        except (OSError, EOFError) as exc:
            self._lose("the connection broke", exc)
        except OffloadError as error:
            self._lose(str(error), error)
        except Exception as exc:  # noqa: BLE001 - a receiver may raise anything, and somebody waits for frames
            self._lose(f"a frame could not be taken: {exc!r}", exc)

    async def _content(self) -> bytes:
        """Read the next frame without its size."""
        [size_bytes] = SIZE.unpack(await self._reader.readexactly(SIZE.size))
        # Before the rest is read: of another service it may never come.
        self._check_size(size_bytes, CHUNK_FRAME_BYTES_MAX if self._tuned.done() else FRAME_BYTES_MAX)
        head = await self._reader.readexactly(FRAME_SIZE_BYTES_MIN)
        is_chunk = head.startswith(DELIVER)
        self._check_size(size_bytes, CHUNK_FRAME_BYTES_MAX if is_chunk else FRAME_BYTES_MAX)
        left_bytes = size_bytes - len(head)
        kept_bytes = min(left_bytes, self._chunk_bytes_max) if is_chunk else left_bytes
        content = head + await self._reader.readexactly(kept_bytes)
        for begin in range(kept_bytes, left_bytes, PIECE_SIZE_BYTES):
            await self._reader.readexactly(min(PIECE_SIZE_BYTES, left_bytes - begin))
        return content

    def _check_size(self, size_bytes: int, size_bytes_max: int) -> None:
        if not FRAME_SIZE_BYTES_MIN <= size_bytes <= size_bytes_max:
            raise TryAgain(f"{self.where}: it sent a frame of {size_bytes} bytes: this is no stream listener")

    def _receive(self, frame: Frame) -> None:
        if frame.is_response:
            answer = self._waiting.get((frame.key, frame.fields.get("correlation", 0)))
            if answer is not None and not answer.done():
                answer.set_result(frame)
            # Nobody waits any more for an answer that comes late.
        elif frame.key in self.receivers:
            self.receivers[frame.key](frame)

    def _take_limits(self, frame: Frame) -> None:
        if not self._tuned.done():
            self._tuned.set_result(frame)

    def _closed_by_broker(self, frame: Frame) -> None:
        self._writer.write(encode(Key.CLOSE, response=True, correlation=frame["correlation"], code=Code.OK))
        doing = f"go on, and closed the connection ({frame['reason'][:REASON_SIZE_MAX]!r})"
        self._lose("", refusal(frame["reason_code"], doing, self.where), flushes=True)

    async def _beat(self, seconds: int) -> None:
        while True:
            await self._env.sleep(seconds / 2)
            if self._env.monotonic() - self._heard_at > 2 * seconds:
                self._lose(f"it sent nothing for {2 * seconds} s")
            if self.lost.done():
                return
            # Not awaited: a broker that reads nothing would stop this task, and hide its own silence.
            self._writer.write(encode(Key.HEARTBEAT))

    def _in_time(self) -> asyncio.Timeout:
        ends = asyncio.get_running_loop().time() + self._answer_seconds
        return asyncio.timeout_at(ends if self._login_ends is None else self._login_ends)

    def _no_answer(self, doing: str) -> OffloadError:
        self._lose(f"it did not answer in time: {doing}")
        return self.lost.result()

    def _lose(self, why: str, cause: BaseException | None = None, *, flushes: bool = False) -> None:
        """End the connection, unless it has ended. The first reason is the one that everybody gets."""
        if self.lost.done():
            return
        error = cause if isinstance(cause, OffloadError) else TryAgain(f"{self.where}: {why}")
        error.__cause__ = None if cause is error else cause
        self.lost.set_result(error)
        for waits in (self._tuned, *self._waiting.values()):
            if not waits.done():
                waits.set_exception(error)
                waits.exception()  # nobody may be waiting for it
        # Also ends a `send` that waits for the broker to read.
        if flushes:
            self._writer.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._writer.transport.abort)
        else:
            self._writer.transport.abort()

    def _refuse_if_lost(self) -> None:
        if self.lost.done():
            raise self.lost.result().with_traceback(None)


async def _opened(at: BrokerEndpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address of a host that accepts it. Raises the `OSError` of the last one."""
    error = OSError("it has no address")
    for address in await addresses_of(at.host, at.port):
        try:
            return await asyncio.open_connection(
                address,
                at.port,
                limit=READ_BUFFER_BYTES,
                ssl=at.tls,
                server_hostname=None if at.tls is None else at.host,
            )
        except ssl.SSLCertVerificationError:
            raise  # the other addresses are the same host
        except OSError as exc:
            error = exc
    raise error
