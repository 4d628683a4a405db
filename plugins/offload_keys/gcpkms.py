"""Master keys in Google Cloud KMS: `gcpkms:projects/P/locations/L/keyRings/R`, by gRPC.

The label is the id of a crypto key in the ring, at most 63 characters. The label and the context are the
additional authenticated data. Credentials are found as Google's tools find them (application default
credentials). `?endpoint=https://HOST` names another address, and `?endpoint=http://127.0.0.1:PORT` a server
on this machine, which gets no credentials.

Invariant: no bytes are used whose CRC-32C is not the one that the other side computed. `destroy` schedules
the destruction of every version, after the time for which the key was made, 30 days by default.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import google.auth
import google.auth.exceptions
import google.cloud.kms_v1 as kms_v1  # this form names a missing package
import grpc
from google.api_core import exceptions as sdk
from google.api_core.client_options import ClientOptions
from google.cloud.kms_v1.services.key_management_service.transports import (
    KeyManagementServiceGrpcAsyncIOTransport as Transport,
)

from offload.formats.checksums import crc32c
from offload.ground.env import Env
from offload.ground.errors import AlreadyExists, Denied, Misuse, NoSuchKey, TryAgain
from offload_keys.binding import bound
from offload_keys.remote import (
    DEADLINE_SECONDS,
    DOWN,
    LACKING,
    MISSING,
    OTHER,
    SLOWER,
    UNKNOWN,
    RemoteKeys,
    checked_address,
    parsed,
)

SCOPE: Final = "https://www.googleapis.com/auth/cloudkms"
LABEL_LENGTH_MAX: Final = 63
_State: Final = kms_v1.CryptoKeyVersion.CryptoKeyVersionState
USABLE: Final = _State.ENABLED, _State.DISABLED
_RING: Final = re.compile(r"projects/[a-z0-9:.-]+/locations/[a-z0-9-]+/keyRings/[A-Za-z0-9_-]{1,63}")


class GoogleKeys(RemoteKeys):
    """The key service of one key ring of Google Cloud."""

    __slots__ = ("_client", "_endpoint", "_ring")

    failures = (sdk.GoogleAPIError, google.auth.exceptions.GoogleAuthError, OSError, ValueError)
    packages = ("google", "grpc", "urllib3")
    meanings = {
        "AlreadyExists": (AlreadyExists, "the key exists"),
        "NotFound": MISSING,
        "destroyed": MISSING,
        "FailedPrecondition": (Denied, "the key cannot be used in its present state"),
        "InvalidArgument": OTHER,
        "Unauthenticated": UNKNOWN,
        "Forbidden": LACKING,
        "TooManyRequests": SLOWER,
        "Aborted": DOWN,
        "Cancelled": DOWN,
        "ServerError": DOWN,
        "TransportError": DOWN,
        "DefaultCredentialsError": (Denied, "no credentials were found; run gcloud auth or name a file"),
        "GoogleAuthError": UNKNOWN,
        "ValueError": (Misuse, "the settings are wrong"),
    }

    def __init__(
        self, url: str, *, env: Env | None = None, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        self._ring, query = parsed(url, "endpoint")
        if not _RING.fullmatch(self._ring):
            raise Misuse(f"{url!r}: name a key ring, as in gcpkms:projects/P/locations/L/keyRings/R")
        super().__init__(url, env=env, deadline_seconds=deadline_seconds)
        self._endpoint = query.get("endpoint")
        if self._endpoint is not None:
            checked_address(self._endpoint, url)

    async def _open(self) -> None:
        where = urlsplit(self._endpoint or "")
        if where.scheme == "http":
            transport = Transport(channel=grpc.aio.insecure_channel(where.netloc))
            self._client = kms_v1.KeyManagementServiceAsyncClient(transport=transport)
            return
        # In a thread, because it reads files and may ask the metadata server.
        credentials, _ = await asyncio.to_thread(google.auth.default, scopes=[SCOPE])
        options = ClientOptions(api_endpoint=where.netloc or None)
        self._client = kms_v1.KeyManagementServiceAsyncClient(credentials=credentials, client_options=options)

    async def _close(self) -> None:
        transport: Any = self._client.transport  # its `close` has no types
        await transport.close()

    async def _wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        request = {"plaintext": key, "plaintext_crc32c": crc32c(key)} | self._bound(label, context)
        reply = await self._call("cryptoKeyVersions.useToEncrypt", label, "encrypt", request, _encrypted)
        return bytes(reply.ciphertext)

    async def _unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        request = {"ciphertext": wrapped, "ciphertext_crc32c": crc32c(wrapped)} | self._bound(label, context)
        reply = await self._call("cryptoKeyVersions.useToDecrypt", label, "decrypt", request, _decrypted)
        return bytes(reply.plaintext)

    async def _create(self, label: str) -> None:
        self._name(label)
        key = {"purpose": kms_v1.CryptoKey.CryptoKeyPurpose.ENCRYPT_DECRYPT}
        request = {"parent": self._ring, "crypto_key_id": label, "crypto_key": key}
        with suppress(AlreadyExists):
            await self._call("cryptoKeys.create", label, "create_crypto_key", request)

    async def _destroy(self, label: str) -> float:
        try:
            for version in await self._versions(label):
                if version.state in USABLE:
                    with suppress(NoSuchKey):  # an earlier request did it, and its reply was lost
                        which = {"name": version.name}
                        permission = "cryptoKeyVersions.destroy"
                        await self._call(permission, label, "destroy_crypto_key_version", which)
            found = await self._versions(label)
        except NoSuchKey:
            return 0.0
        until = [each.destroy_time.timestamp() for each in found if each.state == _State.DESTROY_SCHEDULED]
        return max(until) - self.env.now_ms() / 1000 if until else 0.0

    async def _versions(self, label: str) -> list[kms_v1.CryptoKeyVersion]:
        request = {"parent": self._name(label)}
        pages = await self._call("cryptoKeyVersions.list", label, "list_crypto_key_versions", request)
        return [version async for version in pages]

    async def _call(
        self,
        permission: str,
        label: str,
        method: str,
        request: Mapping[str, Any],
        is_whole: Callable[[Any, Mapping[str, Any]], bool] = lambda reply, request: True,
    ) -> Any:
        async def call() -> Any:
            ask = getattr(self._client, method)
            reply = await ask(request=request, retry=None, timeout=self.deadline_seconds)
            if not is_whole(reply, request):
                raise TryAgain(f"{self.url}: a request or its reply was damaged on the way")
            return reply

        return await self._ask(f"cloudkms.{permission}", label, call)

    def _bound(self, label: str, context: Mapping[str, str]) -> dict[str, Any]:
        data = bound(label, context)
        return {
            "name": self._name(label),
            "additional_authenticated_data": data,
            "additional_authenticated_data_crc32c": crc32c(data),
        }

    def _name(self, label: str) -> str:
        if len(label) > LABEL_LENGTH_MAX:
            raise Misuse(f"{self.url}: a label has at most {LABEL_LENGTH_MAX} characters there: {label!r}")
        return f"{self._ring}/cryptoKeys/{label}"

    def _signs_of(self, exc: BaseException) -> Iterator[str]:
        # A version that is destroyed, or will be, is refused like a disabled one, except for this word.
        if isinstance(exc, sdk.FailedPrecondition) and "DESTROY" in str(exc):
            yield "destroyed"


def _encrypted(reply: Any, request: Mapping[str, Any]) -> bool:
    """Return True if the service got the request unchanged, used this key, and its reply is unchanged."""
    return bool(
        reply.verified_plaintext_crc32c
        and reply.verified_additional_authenticated_data_crc32c
        and reply.name.startswith(f"{request['name']}/cryptoKeyVersions/")
        and reply.ciphertext_crc32c == crc32c(reply.ciphertext)
    )


def _decrypted(reply: Any, request: Mapping[str, Any]) -> bool:
    # The service checks the CRCs of a request to decrypt by itself, and refuses the request.
    return bool(reply.plaintext_crc32c == crc32c(reply.plaintext))
