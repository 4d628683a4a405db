"""Objects as strings of a Redis server, with a sorted set of their keys beside them.

The server runs one script at a time, so a string and its row in the set change together, and whoever
creates second is told so. All scores are zero: then the set is in the order of the keys' bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, OutOfMemoryError, RedisError

from offload import Body, Capabilities, Listed, ObjectStore, Span, Suffix, Upload, errors
from offload.contracts.store import check_key
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
    """The store behind `redis://HOST:PORT/DATABASE/NAME`. Raises `Misuse` where a part is missing."""
    server, _, name = url.rpartition("/")
    if not name or not server.rpartition("/")[2].isdigit():
        raise errors.Misuse("a store in Redis is redis://HOST:PORT/DATABASE/NAME")
    return RedisStore(server, name)


class RedisStore(ObjectStore):
    """The objects under one name on one server. What stands before it retries; the client does not."""

    def __init__(self, server: str, name: str) -> None:
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
        clip(span, 0)  # refuses what is negative
        match span:
            case None:
                start, length = 0, 1 << 40
            case Span(start, length):
                pass
            case Suffix(length):
                start = -1
        data: bytes | None = await self._run(GET, raw, start, length, broken=errors.TryAgain)
        if data is None:
            raise errors.NotFound(key, store=self._url)
        return data

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        first, last = prefix.encode(), after.encode()
        begin = b"[" + first if first > last else b"(" + last
        while rows := await self._run(PAGE, b"", begin, broken=errors.TryAgain):
            for raw, size in rows:
                if not raw.startswith(first):
                    return
                yield Listed(raw.decode(), size)
            begin = b"(" + rows[-1][0]

    async def delete(self, keys: Sequence[str]) -> None:
        for raw in [check_key(key).encode() for key in keys]:
            await self._run(DELETE, raw, raw)

    async def start_upload(self, key: str) -> Upload:
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
        """Run a script, and turn the client's errors into the framework's: here and nowhere else."""
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
"""What to raise for which error; for any other, what the call's own kind suggests."""
