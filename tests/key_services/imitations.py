"""Imitations of key services for the tests: fakes with real cryptography, and a way to break each.

None of them is the service itself. They were written from its documentation and its client, so a mistake in
our reading may be in both. They keep keys in memory, and encrypt by AES-GCM or RSA with the associated data
that a request has. So what another context, label or key does not open there, it does not open at all.

An imitation records its requests. `fault` breaks each following answer.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, Self

import google_crc32c
import grpc
from azure.core.credentials import AccessToken
from azure.core.pipeline.transport import AioHttpTransport
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.cloud import kms_v1
from google.protobuf import timestamp_pb2
from wire import Answer, Heard

TOKEN: Final = "hvs.HUSH-a-token-that-nobody-may-see"
Fault = Literal["throttled", "unavailable", "dropped", "silent", "denied", "short", "huge"]
DAY_SECONDS: Final = 86_400


@dataclass
class Imitation:
    """The state that all imitations have."""

    fault: Fault | None = None
    names: list[str] = field(default_factory=list)
    """The names of the requests so far, as the service calls them."""

    def answer(self, heard: Heard) -> Answer:
        """Answer a request over HTTP, or break the answer."""
        self.names.append(self.name_of(heard))
        match self.fault:
            case "dropped":
                return Answer(drop=True)
            case "silent":
                self.stay_silent()
                return Answer(drop=True)
            case "throttled" | "unavailable" | "denied":
                return self.refusal(self.fault)
        return self.reply(heard)

    def stay_silent(self) -> None:
        """Keep the thread of a request as long as the fault lasts."""
        while self.fault == "silent":
            time.sleep(0.01)

    def name_of(self, heard: Heard) -> str:
        return f"{heard.method} {heard.path}"

    def refusal(self, fault: str) -> Answer:
        raise NotImplementedError

    def reply(self, heard: Heard) -> Answer:
        raise NotImplementedError


class Transit(Imitation):
    """The transit engine of Vault and OpenBao. It makes a missing key on encryption, as that does."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, bytes] = {}
        self.deletable: set[str] = set()

    def refusal(self, fault: str) -> Answer:
        status = {"throttled": 429, "unavailable": 503, "denied": 403}[fault]
        return _json({"errors": [f"no: {TOKEN}"]}, status)

    def reply(self, heard: Heard) -> Answer:
        if heard.headers.get("x-vault-token") != TOKEN:
            return _json({"errors": ["permission denied"]}, 403)
        data = json.loads(heard.body or b"{}")
        parts = heard.path.removeprefix("/v1/transit/").split("/")
        return getattr(self, f"_{heard.method.lower()}_{parts[0]}")(parts[1], data, parts[2:])

    def _get_keys(self, label: str, data: Any, rest: list[str]) -> Answer:
        return _json({"data": {"name": label}}) if label in self.keys else _json({"errors": []}, 404)

    def _post_keys(self, label: str, data: Any, rest: list[str]) -> Answer:
        if rest == ["config"]:
            if label not in self.keys:
                return _json({"errors": [f"no existing key named {label} could be found"]}, 400)
            self.deletable |= {label} if data["deletion_allowed"] else set()
        elif label not in self.keys:
            assert data["type"] == "aes256-gcm96"
            self.keys[label] = os.urandom(32)
        return Answer(204)

    def _delete_keys(self, label: str, data: Any, rest: list[str]) -> Answer:
        if label not in self.deletable:
            return _json({"errors": ["deletion is not allowed for this key"]}, 400)
        self.deletable.remove(label)
        del self.keys[label]
        return Answer(204)

    def _post_encrypt(self, label: str, data: Any, rest: list[str]) -> Answer:
        key = self.keys.setdefault(label, os.urandom(32))
        raw = seal(key, base64.b64decode(data["plaintext"]), base64.b64decode(data["associated_data"]))
        text = f"vault:v1:{base64.b64encode(raw).decode()}"
        return _json({"data": {"ciphertext": {"short": "", "huge": text * 90}.get(self.fault or "", text)}})

    def _post_decrypt(self, label: str, data: Any, rest: list[str]) -> Answer:
        if label not in self.keys:
            return _json({"errors": ["encryption key not found"]}, 400)
        try:
            raw = base64.b64decode(data["ciphertext"].removeprefix("vault:v1:"), validate=True)
        except binascii.Error:
            return _json({"errors": ["invalid ciphertext: could not decode base64"]}, 400)
        key = unseal(self.keys[label], raw, base64.b64decode(data["associated_data"]))
        if key is None:
            return _json({"errors": ["cipher: message authentication failed"]}, 400)
        return _json({"data": {"plaintext": base64.b64encode(self.cut(key)).decode()}})

    def cut(self, key: bytes) -> bytes:
        return {"short": key[:31], "huge": key * 99}.get(self.fault or "", key)


class KeyVault(Imitation):
    """Azure Key Vault, as its client speaks to it over `Plain`. Deleted keys are kept for 90 days."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, list[str]] = {}
        self.deleted: dict[str, int] = {}

    def refusal(self, fault: str) -> Answer:
        status = {"throttled": 429, "unavailable": 503, "denied": 403}[fault]
        return _json({"error": {"code": "Refused", "message": TOKEN}}, status)

    def reply(self, heard: Heard) -> Answer:
        if heard.headers.get("authorization") != f"Bearer {TOKEN}":
            challenge = (
                'Bearer authorization="https://login.example/tenant", resource="https://vault.azure.net"'
            )
            return Answer(401, headers={"WWW-Authenticate": challenge})
        kind, label, *rest = heard.path.strip("/").split("/")
        data = json.loads(heard.body or b"{}")
        if kind == "deletedkeys":
            return self._deleted(label) if label in self.deleted else _absent()
        if rest == ["create"]:
            if label in self.deleted:
                inner = {"code": "ObjectIsDeletedButRecoverable"}
                return _json({"error": {"code": "Conflict", "message": "", "innererror": inner}}, 409)
            assert (data["kty"], sorted(data["key_ops"])) == ("RSA", ["unwrapKey", "wrapKey"])
            self.keys.setdefault(label, []).append(os.urandom(16).hex())
            return self._shown(label, self.keys[label][-1])
        if label not in self.keys:
            return _absent()
        if heard.method == "DELETE":
            del self.keys[label]
            self.deleted[label] = int(time.time()) + 90 * DAY_SECONDS
            return self._deleted(label)
        version = rest[0] if rest and rest[0] else self.keys[label][-1]
        if version not in self.keys[label]:
            return _absent()
        if heard.method == "GET":
            return self._shown(label, version)
        assert (rest[1:], data["alg"]) == (["unwrapkey"], "RSA-OAEP-256"), rest
        try:
            value = rsa_key(version).decrypt(_unurl(data["value"]), OAEP)
        except ValueError:
            return _json({"error": {"code": "BadParameter", "message": ""}}, 400)
        value = {"short": value[:31], "huge": value * 99}.get(self.fault or "", value)
        return _json({"kid": self._id(label, version), "value": _url(value)})

    def _id(self, label: str, version: str) -> str:
        return f"https://fake.vault.azure.net/keys/{label}/{version}"

    def _shown(self, label: str, version: str) -> Answer:
        numbers = rsa_key(version).public_key().public_numbers()
        n = numbers.n.to_bytes(256, "big")
        key = {"kid": self._id(label, version), "kty": "RSA", "n": _url(n), "e": _url(b"\x01\x00\x01")}
        return _json({"key": key | {"key_ops": ["wrapKey", "unwrapKey"]}, "attributes": {"enabled": True}})

    def _deleted(self, label: str) -> Answer:
        until = self.deleted[label]
        recovery = f"https://fake.vault.azure.net/deletedkeys/{label}"
        about = {"recoveryId": recovery, "deletedDate": until - 90 * DAY_SECONDS, "scheduledPurgeDate": until}
        return _json({"key": {"kid": self._id(label, "0" * 32)}, "attributes": {}} | about)


class Plain(AioHttpTransport):
    """A transport that takes the requests for a vault to a server on this machine, without TLS."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server

    async def send(self, request: Any, **options: Any) -> Any:
        sent = copy.copy(request)  # the client looks at the URL of its own request again
        sent.url = request.url.replace("https://fake.vault.azure.net", self._server)
        return await super().send(sent, **options)


class StaticToken:
    """A credential of Azure."""

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(TOKEN, int(time.time()) + 3600)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass


class KmsBefore(Imitation):
    """What stands before moto: it records, and refuses keys that wait for their deletion. moto uses those."""

    def __init__(self, moto: str) -> None:
        super().__init__()
        self.moto = moto
        self.account = f"{random.randrange(10**12):012}"
        """moto keeps the keys of each account apart, so each test has a new one."""

    def name_of(self, heard: Heard) -> str:
        return heard.headers["x-amz-target"].removeprefix("TrentService.")

    def refusal(self, fault: str) -> Answer:
        code, status = {
            "throttled": ("ThrottlingException", 400),
            "unavailable": ("KMSInternalException", 500),
            "denied": ("AccessDeniedException", 400),
        }[fault]
        return _json({"__type": code, "message": "HUSH"}, status)

    def reply(self, heard: Heard) -> Answer:
        data = json.loads(heard.body)
        if self.name_of(heard) in {"Encrypt", "Decrypt", "ScheduleKeyDeletion"}:
            about = json.dumps({"KeyId": data["KeyId"]}).encode()
            status, raw = self._moto(heard.headers | {"x-amz-target": "TrentService.DescribeKey"}, about)
            if status == 200 and json.loads(raw)["KeyMetadata"]["KeyState"] == "PendingDeletion":
                text = f"{data['KeyId']} is pending deletion."
                return _json({"__type": "KMSInvalidStateException", "message": text}, 400)
        status, raw = self._moto(heard.headers, heard.body)
        key = {"Encrypt": "CiphertextBlob", "Decrypt": "Plaintext"}.get(self.name_of(heard))
        if status == 200 and key and self.fault in {"short", "huge"}:
            value = json.loads(raw)[key]
            cut = base64.b64decode(value)[:31] if key == "Plaintext" else b""
            raw = json.dumps(
                {key: base64.b64encode({"short": cut, "huge": b"x" * 5000}[self.fault]).decode()}
            )
            return Answer(200, raw.encode())
        return Answer(status, raw)

    def _moto(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        kept = {name: headers[name] for name in ("x-amz-target", "content-type", "authorization")}
        kept["x-moto-account-id"] = self.account
        request = urllib.request.Request(self.moto, data=body, headers=kept, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read()


class GoogleKms(Imitation):
    """Google Cloud KMS by gRPC. Destroyed versions are kept for 30 days."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: dict[str, list[kms_v1.CryptoKeyVersion]] = {}
        self.secrets: dict[str, bytes] = {}
        self.damaged = 0
        """How many of the next replies to encrypt and decrypt have a flipped bit."""
        self.unverified = 0
        """How many of the next requests to encrypt arrive with another plaintext than their CRC is of."""

    def encrypt(self, asked: Any, context: Any) -> Any:
        version = self._usable(asked.name, context)
        is_whole, self.unverified = not self.unverified, max(0, self.unverified - 1)
        raw = seal(self.secrets[version.name], asked.plaintext, asked.additional_authenticated_data)
        raw = {"short": b"", "huge": raw * 99}.get(self.fault or "", raw)
        return kms_v1.EncryptResponse(
            name=version.name,
            ciphertext=self._flipped(raw),
            ciphertext_crc32c=crc(raw),
            verified_plaintext_crc32c=is_whole and asked.plaintext_crc32c == crc(asked.plaintext),
            verified_additional_authenticated_data_crc32c=asked.additional_authenticated_data_crc32c
            == crc(asked.additional_authenticated_data),
        )

    def decrypt(self, asked: Any, context: Any) -> Any:
        assert asked.ciphertext_crc32c == crc(asked.ciphertext)
        assert asked.additional_authenticated_data_crc32c == crc(asked.additional_authenticated_data)
        version = self._usable(asked.name, context)
        raw = unseal(self.secrets[version.name], asked.ciphertext, asked.additional_authenticated_data)
        if raw is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Decryption failed: the ciphertext is invalid.")
        raw = {"short": raw[:31], "huge": raw * 99}.get(self.fault or "", raw)
        return kms_v1.DecryptResponse(plaintext=self._flipped(raw), plaintext_crc32c=crc(raw))

    def create_crypto_key(self, asked: Any, context: Any) -> Any:
        name = f"{asked.parent}/cryptoKeys/{asked.crypto_key_id}"
        if name in self.keys:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "CryptoKey already exists.")
        state = kms_v1.CryptoKeyVersion.CryptoKeyVersionState.ENABLED
        version = kms_v1.CryptoKeyVersion(name=f"{name}/cryptoKeyVersions/1", state=state)
        self.keys[name], self.secrets[version.name] = [version], os.urandom(32)
        return kms_v1.CryptoKey(name=name)

    def list_crypto_key_versions(self, asked: Any, context: Any) -> Any:
        self._usable_or_not(asked.parent, context)
        return kms_v1.ListCryptoKeyVersionsResponse(crypto_key_versions=self.keys[asked.parent])

    def destroy_crypto_key_version(self, asked: Any, context: Any) -> Any:
        [version] = [
            each for each in self.keys[asked.name.partition("/cryptoKeyV")[0]] if each.name == asked.name
        ]
        version.state = version.CryptoKeyVersionState.DESTROY_SCHEDULED
        version.destroy_time = timestamp_pb2.Timestamp(seconds=int(time.time()) + 30 * DAY_SECONDS)
        return version

    def _usable_or_not(self, name: str, context: Any) -> Any:
        if name not in self.keys:
            context.abort(grpc.StatusCode.NOT_FOUND, f"CryptoKey {name} not found.")
        return self.keys[name][0]

    def _usable(self, name: str, context: Any) -> Any:
        version = self._usable_or_not(name, context)
        if version.state != version.CryptoKeyVersionState.ENABLED:
            text = f"{version.name} is not enabled, current state is: {version.state.name}."
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        return version

    def _flipped(self, raw: bytes) -> bytes:
        if not self.damaged:
            return raw
        self.damaged -= 1
        return bytes([raw[0] ^ 1]) + raw[1:]

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on loopback, and yield the address."""
        server = grpc.server(ThreadPoolExecutor(4))
        methods = (
            ("Encrypt", self.encrypt, kms_v1.EncryptRequest),
            ("Decrypt", self.decrypt, kms_v1.DecryptRequest),
            ("CreateCryptoKey", self.create_crypto_key, kms_v1.CreateCryptoKeyRequest),
            ("ListCryptoKeyVersions", self.list_crypto_key_versions, kms_v1.ListCryptoKeyVersionsRequest),
            (
                "DestroyCryptoKeyVersion",
                self.destroy_crypto_key_version,
                kms_v1.DestroyCryptoKeyVersionRequest,
            ),
        )
        handlers = {each[0]: self._handler(*each) for each in methods}
        service = "google.cloud.kms.v1.KeyManagementService"
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()

    def _handler(self, name: str, method: Callable[[Any, Any], Any], kind: Any) -> Any:
        codes = {
            "throttled": grpc.StatusCode.RESOURCE_EXHAUSTED,
            "unavailable": grpc.StatusCode.UNAVAILABLE,
            "dropped": grpc.StatusCode.UNAVAILABLE,
            "denied": grpc.StatusCode.PERMISSION_DENIED,
        }

        def run(asked: Any, context: Any) -> Any:
            self.names.append(name)
            if self.fault in codes:
                context.abort(codes[self.fault], f"no: {TOKEN}")
            if self.fault == "silent":
                self.stay_silent()
            return method(asked, context)

        return grpc.unary_unary_rpc_method_handler(
            run,
            request_deserializer=kind.deserialize,
            response_serializer=lambda reply: type(reply).serialize(reply),
        )


OAEP: Final = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)


@cache
def rsa_key(version: str) -> rsa.RSAPrivateKey:
    """Return the key of a version. Smaller than a real one, because it is made in each run."""
    return rsa.generate_private_key(65537, 2048)


def seal(key: bytes, plain: bytes, associated: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, plain, associated)


def unseal(key: bytes, raw: bytes, associated: bytes) -> bytes | None:
    try:
        return AESGCM(key).decrypt(raw[:12], raw[12:], associated)
    except (InvalidTag, ValueError):
        return None


def crc(raw: bytes) -> int:
    return int(google_crc32c.value(raw))


def _json(body: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _absent() -> Answer:
    return _json({"error": {"code": "KeyNotFound", "message": ""}}, 404)


def _url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _unurl(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
