"""Master keys in the transit engine of HashiCorp Vault or OpenBao: `vault:https://HOST:8200/transit`.

The path is where the engine is mounted. The token is in `VAULT_TOKEN` or `BAO_TOKEN`, the authorities of the
server's certificate in `VAULT_CACERT` or `BAO_CACERT`, and a namespace in `VAULT_NAMESPACE` or
`BAO_NAMESPACE`. The label and the context are the associated data of AES-GCM.

Invariants: the token is read for each request and kept nowhere; no redirect is followed, because the token
would follow it; `wrap` never makes a key. A transit engine makes a missing key on encryption if the token may
create keys, so a read comes first.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp

from offload.ground.env import Env
from offload.ground.errors import Denied, Misuse, NoSuchKey
from offload.ground.outside import json_outside
from offload_keys.binding import bound
from offload_keys.remote import (
    DEADLINE_SECONDS,
    DOWN,
    LACKING,
    MISSING,
    OTHER,
    RemoteKeys,
    checked_address,
    parsed,
    statuses,
)

ANSWER_SIZE_BYTES_MAX: Final = 1024 * 1024
FOREIGN: Final = Denied, "the answer is not from a transit engine; check the address and the mount"

CAPABILITIES: Final = {"GET": "read", "POST": "update", "DELETE": "delete"}
"""The capability of a policy that a request needs."""

ABSENT: Final = ("encryption key not found", "no existing key named", "could not delete key; not found")
"""The words for a missing key. The status is 400, as for other wrong requests."""


class _Refused(Exception):
    """A reply that refuses, with its status and the words of its errors."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"HTTP {status}")  # the words may repeat the request
        self.status, self.words = status, words


class VaultKeys(RemoteKeys):
    """The key service of one mount of a transit engine."""

    __slots__ = ("_address", "_session")

    failures = (_Refused, aiohttp.ClientError, OSError, ValueError, LookupError, TypeError)
    packages = ("aiohttp",)
    meanings = {
        "missing": MISSING,
        "400": OTHER,
        "403": LACKING,
        "404": MISSING,
        "412": DOWN,  # a standby that lags behind
        "3xx": (Denied, "the server sends us elsewhere, perhaps to its active node; name that in the URL"),
        "4xx": FOREIGN,
        "LookupError": FOREIGN,
        "TypeError": FOREIGN,
    }

    def __init__(
        self, url: str, *, env: Env | None = None, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        place, _ = parsed(url)
        super().__init__(url, env=env, deadline_seconds=deadline_seconds)
        server, slashes, mount = checked_address(place, url).partition("://")
        host, _, mount = mount.partition("/")
        mount = mount.strip("/")
        if not mount or not all(part.strip(".") and part.isascii() for part in mount.split("/")):
            raise Misuse(f"{url!r}: name the mount of the engine, as in vault:https://HOST:8200/transit")
        self._address = f"{server}{slashes}{host}/v1/{mount}"

    async def _open(self) -> None:
        authorities = _setting("CACERT")
        trust = ssl.create_default_context(cafile=authorities) if authorities else True
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust))

    async def _close(self) -> None:
        await self._session.close()

    async def _wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        await self._send("GET", f"keys/{label}", label)
        data = {"plaintext": _text(key), "associated_data": _text(bound(label, context))}
        return (await self._send("POST", f"encrypt/{label}", label, data, "ciphertext")).encode()

    async def _unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        if not wrapped.isascii():
            raise Denied(f"{self.url}: this is no key that a transit engine has wrapped")
        data = {"ciphertext": wrapped.decode(), "associated_data": _text(bound(label, context))}
        text = await self._send("POST", f"decrypt/{label}", label, data, "plaintext")
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            return b""  # no key of a stream: `RemoteKeys` refuses it

    async def _create(self, label: str) -> None:
        await self._send("POST", f"keys/{label}", label, {"type": "aes256-gcm96"})  # leaves an existing key

    async def _destroy(self, label: str) -> float:
        with suppress(NoSuchKey):
            await self._send("GET", f"keys/{label}", label)
            await self._send("POST", f"keys/{label}/config", label, {"deletion_allowed": True})
            await self._send("DELETE", f"keys/{label}", label)
        return 0.0

    async def _send(
        self, method: str, path: str, label: str, data: Mapping[str, Any] | None = None, field: str = ""
    ) -> str:
        """Return a field of the answer to a request; nothing if `field` is empty."""

        async def call() -> str:
            url, headers = f"{self._address}/{path}", _headers(self.url)
            async with self._session.request(
                method, url, json=data, headers=headers, allow_redirects=False
            ) as reply:
                raw = await reply.content.read(ANSWER_SIZE_BYTES_MAX)
                while not reply.content.at_eof() and len(raw) < ANSWER_SIZE_BYTES_MAX:
                    raw += await reply.content.read(ANSWER_SIZE_BYTES_MAX)
            return _answer(reply.status, raw, field)

        return await self._ask(f"{CAPABILITIES[method]} on {path}", label, call)

    def _signs_of(self, exc: BaseException) -> Iterator[str]:
        if isinstance(exc, _Refused):
            if any(words in exc.words for words in ABSENT):
                yield "missing"
            yield from statuses(exc.status)


def _headers(url: str) -> dict[str, str]:
    if not (token := _setting("TOKEN")):
        raise Denied(f"{url}: there is no token; set VAULT_TOKEN or BAO_TOKEN")
    headers = {"X-Vault-Token": token, "X-Vault-Request": "true"}
    if namespace := _setting("NAMESPACE"):
        headers["X-Vault-Namespace"] = namespace
    return headers


def _answer(status: int, raw: bytes, field: str) -> str:
    try:
        found = json_outside(raw) if raw else {}
    except ValueError:
        found = {}
    if not 200 <= status < 300:
        words = found.get("errors") if isinstance(found, dict) else None
        raise _Refused(status, str(words))
    if not field:
        return ""
    value = found["data"][field]
    if not isinstance(value, str):
        raise TypeError(field)
    return value


def _setting(name: str) -> str:
    """Return the variable of Vault, or else that of OpenBao. Empty if neither is set."""
    return (os.environ.get(f"VAULT_{name}") or os.environ.get(f"BAO_{name}") or "").strip()


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
