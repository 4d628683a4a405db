"""Publishing a rescued queue to a broker: all messages in order, with their properties, at least once.

The properties are sent as the bytes that were stored. The messages go through a fanout exchange of our own,
to which only the queue is bound, because the default exchange would route a message with the header CC to
other queues again. So a message keeps its routing key, and its exchange is another one.

A batch is confirmed before the next one is sent, and the progress file has its end. A run that is killed
before it writes the file publishes one batch twice.

Invariant: if the queue is deleted meanwhile, the exchange goes with its last binding, and the next message is
refused. Nothing is confirmed and lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote, unquote, urlsplit

import aiormq
from pamqp.commands import Basic
from yarl import URL

from offload.ground.errors import Corrupt, Denied, Misuse, NotOffloaded, TryAgain
from offload.read.reader import StreamReader
from offload_rabbitmq.queues.messages import StoredMessage, read_message
from offload_rabbitmq.queues.records import decode_record
from offload_rabbitmq.stream_place import GUEST, PASSWORD, USER

BATCH_MESSAGES_MAX: Final = 1000
BATCH_SIZE_BYTES_MAX: Final = 8 * 2**20
CONNECT_SECONDS: Final = 30.0
EXAMPLE: Final = "amqp://host:5672/vhost"
_DENIED: Final = (
    aiormq.AuthenticationError,
    aiormq.ProbableAuthenticationError,
    aiormq.ConnectionNotAllowed,
    aiormq.ChannelAccessRefused,
    aiormq.ChannelPreconditionFailed,
)


@dataclass(slots=True, kw_only=True)
class ProgressFile:
    """The end of what is confirmed, in a file. One file is for one stream and one queue."""

    path: Path
    what: dict[str, str]
    """The stream, the tier, the broker and the queue."""
    next_offset: int | None = None
    """None if nothing was published yet."""

    def load(self) -> None:
        """Read the file, if it is there. Raises `Misuse` if it is of another stream or queue, or damaged."""
        if not self.path.exists():
            return
        try:
            found = json.loads(self.path.read_bytes())
            self.next_offset = int(found.pop("next_offset"))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise Misuse(f"{self.path} is no progress file: name another one by --progress") from error
        if found != self.what:
            raise Misuse(f"{self.path} is of another publish, {found}: name another one by --progress")

    def save(self, next_offset: int) -> None:
        """Replace the file."""
        self.next_offset = next_offset
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text(json.dumps({**self.what, "next_offset": next_offset}) + "\n")
        os.replace(temporary, self.path)


@dataclass(slots=True)
class Published:
    """What was published, and what could not be, by reason."""

    messages: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


class _StoredProperties(Basic.Properties):
    """Properties that are sent as the bytes that were stored."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(message_id="stored")  # so that no id is made up
        self.raw = raw

    def marshal(self) -> bytes:
        """Return the bytes."""
        return self.raw


def broker_url(url: str) -> URL:
    """Return the URL with the login of the environment. Raises `Misuse` if it is none, or has a login."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Misuse(f"this is no URL of a broker: use {EXAMPLE}") from error
    if "@" in parts.netloc:
        raise Misuse(f"the URL of a broker has no login: set {USER} and {PASSWORD} in the environment")
    vhost = unquote(parts.path.removeprefix("/")) or "/"
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname or parts.query or parts.fragment:
        raise Misuse(f"{url!r} is no URL of a broker: use {EXAMPLE}, or amqps://")
    return URL.build(
        scheme=parts.scheme,
        user=os.environ.get(USER, GUEST),
        password=os.environ.get(PASSWORD, GUEST),
        host=parts.hostname,
        port=port or (5671 if parts.scheme == "amqps" else 5672),
        path="/" + quote(vhost, safe=""),
        encoded=True,
    )


async def publish(
    reader: StreamReader,
    url: URL,
    queue: str,
    progress: ProgressFile,
    *,
    append: bool,
    show: Callable[[Published], None],
) -> Published:
    """Publish the records of a stream behind what `progress` has.

    Raises `Misuse` if the queue has messages, unless `append` is True or the file shows an earlier run.
    Raises `NotOffloaded` if there is no such queue, `Denied` for a refusal, and `TryAgain` if the broker
    goes away.
    """
    done = Published()
    where = f"queue {queue!r} of {url.with_user(None)}"
    with _explained(where):
        async with _channel(
            url, queue, where, must_be_empty=not append and progress.next_offset is None
        ) as opened:
            channel, exchange = opened
            begin = reader.manifest.first_offset if progress.next_offset is None else progress.next_offset
            async with aclosing(_batches(reader, begin, done)) as batches:
                async for messages, next_offset in batches:
                    sending = [_send(channel, exchange, each) for each in messages]
                    await asyncio.gather(*sending)
                    done.messages += len(messages)
                    await asyncio.to_thread(progress.save, next_offset)
                    show(done)
    return done


async def _send(channel: aiormq.Channel, exchange: str, message: StoredMessage) -> None:
    await channel.basic_publish(
        message.body,
        exchange=exchange,
        routing_key=message.keys[0].decode(),
        properties=_StoredProperties(message.properties),
        wait=False,
    )


async def _batches(
    reader: StreamReader, begin: int, done: Published
) -> AsyncGenerator[tuple[list[StoredMessage], int], None]:
    """Yield messages that are sent together, and the offset behind them."""
    batch, size_bytes, offset = list[StoredMessage](), 0, begin
    async with aclosing(reader.messages(begin)) as found:
        async for each in found:
            for offset, body in enumerate(each.bodies, each.offset + 1):
                if (message := _readable(body, done)) is not None:
                    batch.append(message)
                    size_bytes += len(body)
                if len(batch) >= BATCH_MESSAGES_MAX or size_bytes >= BATCH_SIZE_BYTES_MAX:
                    yield batch, offset
                    batch, size_bytes = [], 0
    yield batch, offset


def _readable(record: bytes, done: Published) -> StoredMessage | None:
    found = decode_record(record)
    try:
        if found is None:
            done.left_out["no record of a classic queue"] += 1
            return None
        message = read_message(found.term, where="record")
        message.keys[0].decode()
    except Corrupt as error:
        done.left_out[error.what] += 1
    except UnicodeDecodeError:
        done.left_out["a routing key that is not UTF-8"] += 1
    else:
        return message
    return None


@asynccontextmanager
async def _channel(
    url: URL, queue: str, where: str, *, must_be_empty: bool
) -> AsyncIterator[tuple[aiormq.Channel, str]]:
    """Yield a channel with confirms, and the name of an exchange to which the queue alone is bound."""
    with _explained(where, advice=": check the host and the port, and that the broker runs"):
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await aiormq.connect(url)
    try:
        # The abstract channel of its type cannot send without waiting.
        channel = cast("aiormq.Channel", await connection.channel(publisher_confirms=True))
        found = await channel.queue_declare(queue, passive=True)
        if must_be_empty and found.message_count:
            raise Misuse(
                f"queue {queue!r} has {found.message_count} messages: purge it, or add to it with --append"
            )
        exchange = f"offload.publish.{hashlib.sha256(queue.encode()).hexdigest()[:16]}"
        await channel.exchange_declare(exchange, exchange_type="fanout", auto_delete=True)
        await channel.queue_bind(queue, exchange)
        yield channel, exchange
        await channel.queue_unbind(queue, exchange)
    finally:
        await connection.close()


@contextmanager
def _explained(where: str, *, advice: str = "") -> Iterator[None]:
    """Raise the framework's errors for those of the client. `advice` is for a broker that does not answer."""
    try:
        yield
    except _DENIED as error:
        raise Denied(f"{where}: the broker refuses: {error}") from error
    except aiormq.ChannelNotFoundEntity as error:
        raise NotOffloaded(f"{where}: {error}: declare the queue first") from error
    except (aiormq.AMQPError, aiormq.ChannelInvalidStateError, OSError, TimeoutError) as error:
        raise TryAgain(f"{where}: {str(error) or type(error).__name__}{advice}") from error
