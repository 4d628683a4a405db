"""Master keys in Azure Key Vault or Managed HSM: `azurekeyvault:https://NAME.vault.azure.net`.

The label is the name of an RSA key. RSA-OAEP-256 has no associated data. So the vault's key wraps a random
key of 32 bytes, and that one seals the key of the stream, with the label and the context bound:

    wrapped key = version (1 byte, 1), version of the vault's key (16 bytes), size of the next part (2 bytes),
                  the random key wrapped by the vault, the key of the stream sealed by the random key

Wrapping needs the public half alone, so the client does it after it has read the key. Credentials are found
as Azure's tools find them (`DefaultAzureCredential`).

Invariant: a wrapped key names a version of a key, never a vault or a key. Those come from the configuration.
`destroy` deletes the key. A vault keeps deleted keys for 7 to 90 days, as it is set up. Until then a person
can recover them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from azure.core import exceptions as sdk
from azure.identity.aio import DefaultAzureCredential
from azure.keyvault.keys import KeyOperation
from azure.keyvault.keys.aio import KeyClient
from azure.keyvault.keys.crypto import KeyWrapAlgorithm

from offload.ground.env import Env
from offload.ground.errors import Denied, Misuse, NoSuchKey, TryAgain
from offload_keys.binding import KEY_SIZE_BYTES, SEALED_SIZE_BYTES, bound, opened, sealed
from offload_keys.remote import (
    DEADLINE_SECONDS,
    DOWN,
    LACKING,
    MISSING,
    OTHER,
    UNKNOWN,
    RemoteKeys,
    checked_address,
    parsed,
    statuses,
)

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential
    from azure.core.pipeline.transport import AsyncHttpTransport

FORMAT: Final = 1
HEAD: Final = struct.Struct(">B16sH")
RSA_SIZE_BITS: Final = 3072
OAEP: Final = KeyWrapAlgorithm.rsa_oaep_256
DELETING_DEADLINES: Final = 6
"""A deletion takes seconds, and the client waits for it."""

_VERSION: Final = re.compile(r"[0-9a-f]{32}")


class AzureKeys(RemoteKeys):
    """The key service of one vault."""

    __slots__ = ("_client", "_credential", "_given", "_transport", "_vault")

    failures = (sdk.AzureError, OSError, ValueError)
    packages = ("azure", "msal", "aiohttp", "urllib3")
    meanings = {
        "ObjectIsDeletedButRecoverable": MISSING,
        "400": OTHER,
        "401": UNKNOWN,
        "403": LACKING,
        "404": MISSING,
        "408": DOWN,
        "409": (TryAgain, "the key is being deleted or recovered"),
        "CredentialUnavailableError": (Denied, "no credentials were found; sign in with az login"),
        "ClientAuthenticationError": UNKNOWN,
        "ServiceRequestError": DOWN,
        "ServiceResponseError": DOWN,
        "AzureError": (Denied, "the service refuses"),
        "ValueError": (Denied, "the vault's answer or its address is not that of a key vault"),
    }

    def __init__(
        self,
        url: str,
        *,
        env: Env | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        credential: AsyncTokenCredential | None = None,
        transport: AsyncHttpTransport[Any, Any] | None = None,
    ) -> None:
        """`credential` and `transport` replace those that Azure's client finds and makes."""
        self._vault, _ = parsed(url)
        super().__init__(url, env=env, deadline_seconds=deadline_seconds)
        # http:// also to this machine is refused: the client sends no token over it.
        if not checked_address(self._vault, url).startswith("https://"):
            raise Misuse(f"{url!r}: a vault is reached by https://")
        self._given, self._transport = credential, transport

    async def _open(self) -> None:
        self._credential = self._given or DefaultAzureCredential()
        seconds, transport = self.deadline_seconds, {"transport": self._transport} if self._transport else {}
        self._client = KeyClient(
            self._vault,
            self._credential,
            retry_total=0,  # `RemoteKeys` retries
            permit_redirects=False,
            connection_timeout=seconds,
            read_timeout=seconds,
            **transport,
        )

    async def _close(self) -> None:
        await self._client.close()
        if self._given is None:
            await self._credential.close()

    async def _wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        own = self.env.secret(KEY_SIZE_BYTES)

        async def call() -> tuple[str, bytes]:
            crypto = self._client.get_cryptography_client(label)
            done = await crypto.wrap_key(OAEP, own)
            return (done.key_id or "").rpartition("/")[2], done.encrypted_key

        version, wrapped = await self._ask("keys/get and keys/wrapKey", label, call)
        if not _VERSION.fullmatch(version):
            raise Denied(f"{self.url}: the version of the master key {label!r} is unknown; grant keys/get")
        head = HEAD.pack(FORMAT, bytes.fromhex(version), len(wrapped))
        return head + wrapped + sealed(own, key, bound(label, context))

    async def _unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        version, own_wrapped, rest = self._parts(wrapped)

        async def call() -> bytes:
            crypto = self._client.get_cryptography_client(label, key_version=version)
            return bytes((await crypto.unwrap_key(OAEP, own_wrapped)).key)

        own = await self._ask("keys/unwrapKey", label, call)
        key = opened(own, rest, bound(label, context)) if len(own) == KEY_SIZE_BYTES else None
        if key is None:
            raise Denied(f"{self.url}: the master key {label!r} did not wrap this key")
        return key

    async def _create(self, label: str) -> None:
        # A create adds a version to an existing key, so a read comes first. A version too many does no harm.
        try:
            await self._ask("keys/get", label, lambda: self._client.get_key(label))
        except NoSuchKey:
            operations: list[str | KeyOperation] = [KeyOperation.wrap_key, KeyOperation.unwrap_key]
            await self._ask(
                "keys/create",
                label,
                lambda: self._client.create_rsa_key(label, size=RSA_SIZE_BITS, key_operations=operations),
            )

    async def _destroy(self, label: str) -> float:
        try:
            deleted = await self._ask(
                "keys/delete", label, lambda: self._client.delete_key(label), deadlines=DELETING_DEADLINES
            )
        except NoSuchKey:  # perhaps by an earlier request, whose reply was lost
            try:
                deleted = await self._ask("keys/get", label, lambda: self._client.get_deleted_key(label))
            except NoSuchKey:
                return 0.0
        until: datetime | None = deleted.scheduled_purge_date
        return until.timestamp() - self.env.now_ms() / 1000 if until else 0.0

    def _parts(self, wrapped: bytes) -> tuple[str, bytes, bytes]:
        """Return the version of the vault's key, the wrapped random key, and the sealed key."""
        found, version, size = HEAD.unpack(wrapped[: HEAD.size].ljust(HEAD.size, b"\0"))
        if found != FORMAT or len(wrapped) != HEAD.size + size + SEALED_SIZE_BYTES:
            raise Denied(f"{self.url}: this is no key that a key vault has wrapped; use another --keys")
        return version.hex(), wrapped[HEAD.size : HEAD.size + size], wrapped[HEAD.size + size :]

    def _signs_of(self, exc: BaseException) -> Iterator[str]:
        if isinstance(exc, sdk.HttpResponseError):
            inner = getattr(exc.error, "innererror", None) or {}
            yield str(inner.get("code"))
            yield from statuses(exc.status_code)
