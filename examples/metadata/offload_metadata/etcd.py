"""Records in etcd, by its JSON gateway, which every etcd since 3.4 has on its client port.

A record is two keys of etcd, which change in one transaction:

    NAME/value/KEY    the value
    NAME/size/KEY     its size, so that a listing reads no values: etcd does not tell the size of a value
"""

from __future__ import annotations

import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final

import aiohttp

from offload import Record, RecordLimits, RecordService, RecordStore
from offload.ground import errors
from offload_metadata.place import place_of, timeout_of
from offload_metadata.plugin import ETCD

CONNECTIONS: Final = 16


def open_url(url: str, *, options: Mapping[str, str]) -> RecordStore:
    """Return the store behind `etcd://HOST:PORT/NAME`, or `etcds://` for TLS.

    Several hosts are separated by commas.
    """
    return RecordStore(EtcdRecords(url, options))


class EtcdRecords(RecordService):
    """The records of one name. Requests go to one member, and after an error to the next one."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        scheme = "etcds" if url.startswith("etcds:") else "etcd"
        place = place_of(url, f"{scheme}://HOST:PORT/NAME")
        self._url, self._options = url, dict(options)
        self._seconds = timeout_of(options)
        http = "https" if place.scheme == "etcds" else "http"
        self._members = [f"{http}://{host}/v3" for host in place.hosts.split(",")]
        self._values, self._sizes = f"{place.name}/value/".encode(), f"{place.name}/size/".encode()
        self._session: aiohttp.ClientSession | None = None
        self._token: str | None = None

    @property
    def url(self) -> str:
        return self._url

    @property
    def limits(self) -> RecordLimits:
        return ETCD

    async def create(self, key: bytes, value: bytes) -> bool:
        absent = {"target": "CREATE", "key": _text(self._values + key), "create_revision": "0"}
        reply = await self._ask("kv/txn", {"compare": [absent], "success": self._puts(key, value)})
        return bool(reply.get("succeeded"))

    async def put(self, key: bytes, value: bytes) -> None:
        await self._ask("kv/txn", {"success": self._puts(key, value)})

    async def get(self, key: bytes) -> bytes | None:
        rows = (await self._read({"key": _text(self._values + key)})).get("kvs")
        return b64decode(rows[0].get("value", "")) if rows else None

    async def list(self, first: bytes, end: bytes, *, limit: int) -> Sequence[Record]:
        span = {"key": _text(self._sizes + first), "range_end": _text(self._sizes + end), "limit": limit}
        page = await self._read(span)
        rows = ((b64decode(row["key"]), b64decode(row["value"])) for row in page.get("kvs", ()))
        return [Record(key.removeprefix(self._sizes), int(size)) for key, size in rows]

    async def delete(self, keys: Sequence[bytes]) -> None:
        gone = [_text(side + key) for key in keys for side in (self._values, self._sizes)]
        await self._ask("kv/txn", {"success": [{"request_delete_range": {"key": key}} for key in gone]})

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _puts(self, key: bytes, value: bytes) -> Sequence[object]:
        sides = ((self._values, value), (self._sizes, b"%d" % len(value)))
        return [{"request_put": {"key": _text(side + key), "value": _text(data)}} for side, data in sides]

    async def _read(self, body: object) -> dict[str, Any]:
        """Send a read, which is linearizable by default. A read that failed in any way may be repeated."""
        return await self._ask("kv/range", body, broken=errors.TryAgain)

    async def _ask(
        self, path: str, body: object, *, broken: type[errors.OffloadError] = errors.OutcomeUnknown
    ) -> dict[str, Any]:
        """Send one request. `broken` is the error if it was sent and etcd did not say what became of it."""
        if self._token is None and "user" in self._options:
            login = {"name": self._options["user"], "password": self._options.get("password", "")}
            reply = await self._send("auth/authenticate", login, broken=errors.TryAgain)
            self._token = reply["token"]
        return await self._send(path, body, broken=broken)

    async def _send(self, path: str, body: object, *, broken: type[errors.OffloadError]) -> dict[str, Any]:
        if self._session is None:
            limit = aiohttp.ClientTimeout(total=self._seconds, sock_connect=self._seconds / 2)
            connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=self._tls())
            self._session = aiohttp.ClientSession(timeout=limit, connector=connector)
        member = self._members[0]
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = self._token
        data = BytesIO(json.dumps(body).encode())  # aiohttp sends it piece by piece, and bytes at once
        try:
            async with self._session.post(f"{member}/{path}", data=data, headers=headers) as response:
                reply: dict[str, Any] = await response.json(content_type=None)
                if response.status == 200:
                    return reply
                message = str(reply["message"])
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as exc:  # nothing was sent
            self._members.append(self._members.pop(0))
            raise errors.TryAgain(f"{self._url}: {member} does not answer: {exc}") from exc
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as exc:
            self._members.append(self._members.pop(0))
            raise broken(f"{self._url}: {member} sent no whole reply: {exc!r}") from exc
        # etcd says `request timed out`, `leader changed` and more of a proposal that may yet be applied.
        kind = next((kind for text, kind in NEXT.items() if text in message), broken)
        if kind is errors.TryAgain:
            self._token = None
        raise kind(f"{self._url}: {message}")

    def _tls(self) -> ssl.SSLContext | bool:
        if not self._url.startswith("etcds:"):
            return True
        context = ssl.create_default_context(cafile=self._options.get("cacert"))
        if "cert" in self._options:
            context.load_cert_chain(self._options["cert"], self._options.get("key"))
        return context


NEXT: Final[dict[str, type[errors.OffloadError]]] = {
    "database space exceeded": errors.NoSpace,
    "too many requests": errors.Throttled,
    "request is too large": errors.Misuse,
    "permission denied": errors.StoreDenied,
    "authentication failed": errors.StoreDenied,
    "authentication is not enabled": errors.StoreDenied,
    "user name is empty": errors.StoreDenied,
    "invalid auth token": errors.TryAgain,  # it has expired: the next request signs in again
    "revision of auth store is old": errors.TryAgain,
}
"""The framework's error for parts of etcd's messages. etcd has changed nothing then."""


def _text(raw: bytes) -> str:
    return b64encode(raw).decode()
