"""What S3 and its client say went wrong, as the errors of the port. One place, by code and not by type.

S3's compatible servers answer with the same codes under other types, and the client library wraps
them; so the code in the reply's body decides, then the HTTP status, then the kind of failure.
"""

from __future__ import annotations

from typing import Any, Final

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from offload.errors import (
    AlreadyExists,
    Denied,
    Misuse,
    NoSpace,
    NotFound,
    OffloadError,
    OutcomeUnknown,
    Throttled,
    TryAgain,
)

FAILURES: Final = (ClientError, BotoCoreError, aiohttp.ClientError, TimeoutError, OSError)
"""Whatever the client raises: error replies, its own errors, and those of the HTTP library beneath it."""

LOST_CREATE: Final = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
ABSENT: Final = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
DENIED: Final = {
    "AccessDenied": "the credentials lack the permission for this",
    "403": "the credentials lack the permission for this",
    "InvalidAccessKeyId": "the access key is not known there",
    "SignatureDoesNotMatch": "the secret key does not fit the access key, or a proxy changed the request",
    "ExpiredToken": "the session token has expired; get a new one",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "this machine's clock is more than 15 minutes off; set it",
    "AccountProblem": "the account has a problem; ask its owner",
    "AllAccessDisabled": "access to this bucket is disabled",
}
PLACE: Final = {
    "NoSuchBucket": "the bucket does not exist",
    "PermanentRedirect": "the bucket is in another region; set the option `region`",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set the option `region`",
    "IllegalLocationConstraintException": "the bucket is in another region; set the option `region`",
    "InvalidBucketName": "the bucket's name breaks the rules of names",
}
FULL: Final = {"QuotaExceeded", "InsufficientStorage", "507", "XMinioStorageFull"}
THROTTLED: Final = {
    "SlowDown",
    "503",
    "429",
    "TooManyRequests",
    "RequestLimitExceeded",
    "ThrottlingException",
}
DAMAGED: Final = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
"""The bytes that arrived were not the bytes that were sent: nothing was stored, sending again helps."""
TRANSIENT: Final = {
    "InternalError",
    "500",
    "502",
    "504",
    "ServiceUnavailable",
    "RequestTimeout",
    "OperationAborted",
}


def explained(exc: BaseException, *, what: str, where: str, key: str = "", mutation: bool) -> OffloadError:
    """The port's error for `exc`, to be raised from it.

    Of a mutation whose reply never came, nobody knows whether it was applied: `OutcomeUnknown`.
    """
    said = f"{where}: cannot {what}"
    if isinstance(exc, ClientError):
        return _of_code(exc, said, key, mutation)
    if isinstance(exc, NoCredentialsError | PartialCredentialsError):
        return Denied(f"{said}: no credentials found; set them in the environment, a profile, or options")
    reason = f"{said}: {type(exc).__name__}: {exc}"
    return OutcomeUnknown(reason) if mutation else TryAgain(reason)


def code_of(exc: ClientError) -> str:
    """The code of an error reply; the HTTP status where the body had none (HEAD has no body)."""
    response: Any = exc.response
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return str(response.get("Error", {}).get("Code") or status)


def _of_code(exc: ClientError, said: str, key: str, mutation: bool) -> OffloadError:
    code = code_of(exc)
    message = exc.response.get("Error", {}).get("Message", "")
    if code in LOST_CREATE:
        return AlreadyExists(key)
    if code in ABSENT:
        return NotFound(key, store=said.partition(":")[0])
    if code in DENIED:
        return Denied(f"{said}: {DENIED[code]} ({code})")
    if code in PLACE:
        return Denied(f"{said}: {PLACE[code]} ({code})")
    if code in FULL:
        return NoSpace(f"{said}: the store is full or over its quota ({code})")
    if code in THROTTLED:
        return Throttled(f"{said}: {code}: {message}", pause_seconds=_pause_of(exc))
    if code in DAMAGED:
        return TryAgain(f"{said}: {code}: {message}")
    if code in TRANSIENT:
        reason = f"{said}: {code}: {message}"
        return OutcomeUnknown(reason) if mutation else TryAgain(reason)
    if code in {"EntityTooSmall", "EntityTooLarge", "InvalidPart", "InvalidPartOrder", "KeyTooLongError"}:
        return Misuse(f"{said}: {code}: {message}")
    return OffloadError(f"{said}: {code}: {message}")


def _pause_of(exc: ClientError) -> float | None:
    """What the header `Retry-After` says, where it is a number of seconds."""
    response: Any = exc.response
    said = str(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", ""))
    return float(said) if said.isascii() and said.isdigit() else None
