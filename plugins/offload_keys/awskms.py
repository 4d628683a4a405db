"""Master keys in AWS KMS: `awskms:?region=eu-west-1&endpoint=https://HOST&days=7`, each part optional.

The label `a` is the alias `alias/a`. The context and the label are KMS's encryption context. AWS writes it
to CloudTrail in the clear. What is not in the URL is found as AWS' tools find it: environment, profile, role.

`create` makes a key and then its alias, because KMS cannot do both at once. A create that dies between leaves
a key without an alias, whose description names the label. `destroy` schedules the deletion after the waiting
period, 7 to 30 days. Until then a person can cancel it, and nobody can use the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import botocore.exceptions as sdk
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore import xform_name
from botocore.parsers import ResponseParserError

from offload.ground.env import Env
from offload.ground.errors import AlreadyExists, Denied, Misuse, NoSuchKey, TryAgain
from offload.ground.outside import number_outside
from offload_keys.remote import (
    CERTIFICATE,
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
    statuses,
)

DAY_SECONDS: Final = 86_400.0
DAYS_MIN: Final = 7
DAYS_MAX: Final = 30
SIGHTINGS: Final = 8
"""How often `create` looks for its new alias: for some seven seconds."""

LABEL: Final = "label"
PENDING: Final = "PendingDeletion", "PendingReplicaDeletion"

SETTINGS: Final = Misuse, "the settings are wrong; check the region, the profile and the endpoint"
NO_LOGIN: Final = Denied, "no credentials were found; set them in the environment or a profile"


class _StraightSession(AIOHTTPSession):  # type: ignore[misc]  # its package ships no types
    """A session that follows no redirect, which would send a key elsewhere."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        return SimpleNamespace(request=partial(session.request, allow_redirects=False))


class AwsKeys(RemoteKeys):
    """The key service of an account and a region of AWS."""

    __slots__ = ("_client", "_days", "_endpoint", "_region", "_stack")

    failures = (
        sdk.ClientError,
        sdk.BotoCoreError,
        ResponseParserError,
        aiohttp.ClientError,
        OSError,
        ValueError,
    )
    packages = ("botocore", "aiobotocore")
    meanings = {
        "AlreadyExistsException": (AlreadyExists, "the alias exists"),
        "NotFoundException": MISSING,
        "PendingDeletion": MISSING,
        "KMSInvalidStateException": (Denied, "the key cannot be used in its present state"),
        "DisabledException": (Denied, "the key is disabled; enable it"),
        "InvalidCiphertextException": OTHER,
        "IncorrectKeyException": OTHER,
        "InvalidKeyUsageException": OTHER,
        "AccessDeniedException": LACKING,
        "AccessDenied": LACKING,
        "UnrecognizedClientException": UNKNOWN,
        "InvalidClientTokenId": UNKNOWN,
        "InvalidSignatureException": UNKNOWN,
        "IncompleteSignature": UNKNOWN,
        "MissingAuthenticationTokenException": UNKNOWN,
        "ExpiredTokenException": (Denied, "the session token has expired; get a new one"),
        "ThrottlingException": SLOWER,
        "RequestLimitExceeded": SLOWER,
        "TooManyRequestsException": SLOWER,
        "LimitExceededException": (Denied, "the account has as many keys as AWS allows it; ask for more"),
        "DependencyTimeoutException": DOWN,
        "KeyUnavailableException": DOWN,
        "KMSInternalException": DOWN,
        "NoCredentialsError": NO_LOGIN,
        "PartialCredentialsError": NO_LOGIN,
        "SSOError": UNKNOWN,
        "LoginError": UNKNOWN,
        "TokenRetrievalError": UNKNOWN,
        "CredentialRetrievalError": (TryAgain, "the credentials could not be fetched"),
        "MetadataRetrievalError": (TryAgain, "the credentials could not be fetched"),
        "SSLError": CERTIFICATE,
        "HTTPClientError": DOWN,
        "ResponseParserError": (Denied, "the reply is not from KMS; check the endpoint"),
        "ClientError": (Denied, "the service refuses"),
        "BotoCoreError": SETTINGS,
        "ValueError": SETTINGS,
    }

    def __init__(
        self, url: str, *, env: Env | None = None, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        place, query = parsed(url, "region", "endpoint", "days")
        if place:
            raise Misuse(f"{url!r}: begin the rest with a question mark, as in awskms:?region=eu-west-1")
        super().__init__(url, env=env, deadline_seconds=deadline_seconds)
        self._region, self._endpoint = query.get("region"), query.get("endpoint")
        if self._endpoint is not None:
            checked_address(self._endpoint, url)
        days = number_outside(query.get("days", str(DAYS_MIN)))
        if days is None or not DAYS_MIN <= days <= DAYS_MAX:
            raise Misuse(f"{url!r}: days, the waiting period of KMS, is {DAYS_MIN} to {DAYS_MAX}")
        self._days = days

    async def _open(self) -> None:
        config = AioConfig(
            http_session_cls=_StraightSession,
            retries={"total_max_attempts": 1},  # `RemoteKeys` retries
            connect_timeout=self.deadline_seconds,
            read_timeout=self.deadline_seconds,
        )
        made = AioSession().create_client(
            "kms", region_name=self._region, endpoint_url=self._endpoint, config=config
        )
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(made)
            checked_address(self._client.meta.endpoint_url, self.url)  # a variable or a profile may name it
            self._stack = stack.pop_all()

    async def _close(self) -> None:
        await self._stack.aclose()

    async def _wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        about = {"KeyId": _alias(label), "EncryptionContext": _pairs(label, context)}
        return bytes((await self._call("Encrypt", label, Plaintext=key, **about))["CiphertextBlob"])

    async def _unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        about = {"KeyId": _alias(label), "EncryptionContext": _pairs(label, context)}
        return bytes((await self._call("Decrypt", label, CiphertextBlob=wrapped, **about))["Plaintext"])

    async def _create(self, label: str) -> None:
        if (found := await self._find(label)) is not None:
            if found["KeyState"] in PENDING:
                raise NoSuchKey(f"{self.url}: the master key {label!r} is about to be destroyed")
            return
        reply = await self._call("CreateKey", label, Description=f"ledger-offload master key {label}")
        made = reply["KeyMetadata"]["KeyId"]
        with suppress(AlreadyExists):  # by another process, or by our own request whose reply was lost
            await self._call("CreateAlias", label, AliasName=_alias(label), TargetKeyId=made)
        found = await self._seen(label)
        if found["KeyId"] != made:
            await self._call("ScheduleKeyDeletion", label, KeyId=made, PendingWindowInDays=DAYS_MIN)

    async def _destroy(self, label: str) -> float:
        if (found := await self._find(label)) is None:
            return 0.0
        if found["KeyState"] not in PENDING:
            about = {"KeyId": found["KeyId"], "PendingWindowInDays": self._days}
            # A repeat after a lost reply is refused, because the deletion is scheduled already.
            with suppress(NoSuchKey):
                await self._call("ScheduleKeyDeletion", label, **about)
            return self._days * DAY_SECONDS
        until = found.get("DeletionDate")  # none while the key waits for its replicas
        return until.timestamp() - self.env.now_ms() / 1000 if until else DAYS_MAX * DAY_SECONDS

    async def _find(self, label: str) -> Mapping[str, Any] | None:
        """Return what KMS says about a key. None if it has no such key."""
        try:
            reply = await self._call("DescribeKey", label, KeyId=_alias(label))
        except NoSuchKey:
            return None
        return dict(reply["KeyMetadata"])

    async def _seen(self, label: str) -> Mapping[str, Any]:
        """Return what KMS says about a key that has just been made: a new alias is not visible at once."""
        for tried in range(SIGHTINGS):
            if (found := await self._find(label)) is not None:
                return found
            await self.env.sleep(self.env.backoff_seconds(tried, base_seconds=0.1))
        raise TryAgain(f"{self.url}: the new master key {label!r} is not visible yet")

    async def _call(self, operation: str, label: str, **parameters: Any) -> Mapping[str, Any]:
        async def call() -> Mapping[str, Any]:
            return dict(await getattr(self._client, xform_name(operation))(**parameters))

        return await self._ask(f"kms:{operation}", label, call)

    def _signs_of(self, exc: BaseException) -> Iterator[str]:
        if isinstance(exc, sdk.ClientError):
            response: Any = exc.response
            code = str(response.get("Error", {}).get("Code"))
            # One code for several states. Of them this one alone is final.
            if "pending deletion" in str(response.get("Error", {}).get("Message")):
                yield "PendingDeletion"
            yield code
            yield from statuses(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))


def _alias(label: str) -> str:
    return f"alias/{label}"


def _pairs(label: str, context: Mapping[str, str]) -> dict[str, str]:
    """Return the encryption context: two aliases may name one key, so the label is a part of it."""
    if LABEL in context:
        raise Misuse(f"a context has no {LABEL!r}: that is the name of the label in KMS")
    return {**context, LABEL: label}
