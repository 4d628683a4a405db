"""Objects as strings of a Redis server, with a sorted set of their keys beside them.

The server runs one script at a time. So a string and its row in the set change together, and the second of
two creates fails. All scores are zero, which keeps the set in the order of the keys' bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError, RedisError

from offload import Body, Capabilities, Listed, ObjectStore, Span, Suffix, Upload
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import check_key
from offload.ground import errors
from offload.store.spans import clip
from offload_redis.plugin import CAPABILITIES

CONNECTIONS: Final = 16
PUT: Final = "redis.call('SET', KEYS[1], ARGV[2]) redis.call('ZADD', KEYS[2], 0, ARGV[1])"
CREATE: Final = """
if not redis.call('SET', KEYS[1], ARGV[2], 'NX') then return 0 end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
return 1
"""
DELETE: Final = "redis.call('DEL', KEYS[1]) redis.call('ZREM', KEYS[2], ARGV[1])"
GET: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
local size, start, length = redis.call('STRLEN', KEYS[1]), tonumber(ARGV[1]), tonumber(ARGV[2])
if start < 0 then start = math.max(0, size - length) end
if length == 0 or start >= size then return '' end
return redis.call('GETRANGE', KEYS[1], start, math.min(start + length, size) - 1)
"""
PAGE: Final = """
local rows = {}
for _, key in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, 500)) do
    table.insert(rows, {key, redis.call('STRLEN', KEYS[1] .. key)})
end
return rows
"""


def open_url(url: str) -> RedisStore:
    """Return the store behind `redis://HOST:PORT/DATABASE/NAME`. Raises `Misuse` if a part is missing."""
    server, _, name = url.rpartition("/")
    if not name or not server.rpartition("/")[2].isdigit():
        raise errors.Misuse("a store in Redis is redis://HOST:PORT/DATABASE/NAME")
    return RedisStore(server, name)


class RedisStore(ObjectStore):
    """The objects under one name on one server. The framework retries requests; the client does not."""

    def __init__(self, server: str, name: str) -> None:
        # No retry in the client: only the framework knows that a create must not be sent twice blindly.
        pool = BlockingConnectionPool.from_url(
            server, max_connections=CONNECTIONS, timeout=None, retry=Retry(NoBackoff(), 0)
        )
        self._redis: Redis = Redis.from_pool(pool)
        scheme, _, place = server.rpartition("://")
        self._url = f"{scheme}://{place.rpartition('@')[2]}/{name}"  # without user and password
        self._objects, self._index = f"{name}:object:".encode(), f"{name}:index"

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def put(self, key: str, body: Body) -> None:
        raw, data = check_key(key).encode(), bytearray()
        check_metadata(body.metadata, CAPABILITIES)
        async for window in body.windows():
            data += window
        if len(data) != body.size_bytes:
            raise errors.Misuse(f"the body of {key!r} is not of the {body.size_bytes} bytes announced")
        await self._run(PUT, raw, raw, bytes(data))

    async def create(self, key: str, data: bytes) -> None:
        raw = check_key(key).encode()
        if not await self._run(CREATE, raw, raw, data):
            raise errors.AlreadyExists(key)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        raw = check_key(key).encode()
        clip(span, 0)  # raises for a negative span; the size does not matter for that
        match span:
            case None:
                start, length = 0, 1 << 40  # more than any string: the script cuts at the end
            case Span(start, length):
                pass
            case Suffix(length):
                start = -1  # tells the script to count from the end
        data: bytes | None = await self._run(GET, raw, start, length, broken=errors.TryAgain)
        if data is None:
            raise errors.NotFound(key, store=self._url)
        return data

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        first, last = prefix.encode(), after.encode()
        begin = b"[" + first if first > last else b"(" + last  # "[" includes the key, "(" excludes it
        while rows := await self._run(PAGE, b"", begin, broken=errors.TryAgain):
            for raw, size in rows:
                if not raw.startswith(first):
                    return
                yield Listed(raw.decode(), size)
            begin = b"(" + rows[-1][0]

    async def delete(self, keys: Sequence[str]) -> None:
        for raw in [check_key(key).encode() for key in keys]:
            await self._run(DELETE, raw, raw)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_key(key)
        raise errors.Misuse("redis:// has no multipart uploads")

    async def aclose(self) -> None:
        await self._redis.aclose()

    async def _run(
        self,
        script: str,
        raw: bytes,
        *arguments: Any,
        broken: type[errors.OffloadError] = errors.OutcomeUnknown,
    ) -> Any:
        """Run a script, and translate the client's errors into the framework's. Only this method does that.

        `broken` is the error for a lost connection: a write may have happened, so its outcome is unknown. A
        read changes nothing, so it may be tried again.
        """
        try:
            return await self._redis.eval(script, 2, self._objects + raw, self._index, *arguments)
        except RedisError as exc:
            kind = next((kind for theirs, kind in NEXT.items() if isinstance(exc, theirs)), broken)
            raise kind(f"{self._url}: {exc}") from exc


NEXT: Final = {
    OutOfMemoryError: errors.NoSpace,
    AuthenticationError: errors.Denied,
    NoPermissionError: errors.Denied,
}
"""The framework's error for each error of the client. Any other error becomes `broken` of `_run`."""
