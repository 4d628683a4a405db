"""Errors of S3 and its client, translated to the errors of the port. One place, by code and not by type.

Compatible servers send the codes of S3, but the client library raises them as various types. So the code
in the reply's body decides, then the HTTP status, then the kind of failure. A text says what is wrong and
which option or permission fixes it. It holds no secret, no query and no login.

The error says what is known of the request:

    refused by a reply           nothing was applied: `AlreadyExists`, `Denied`, `Throttled`, `TryAgain` ...
    a reply that is not S3's     as if there were none (`proofs`)
    never sent                   `TryAgain`, for a mutation too: no connection, a name does not resolve
    sent; no reply, or HTTP 5xx  `OutcomeUnknown` for a mutation, `TryAgain` for a read

The third row is sound because the client sends each request once (`client`): an error of connecting cannot
belong to a second try of a request whose first try arrived.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import botocore.exceptions as sdk
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from offload_cloud.exchange_errors import ExchangeError, meaning_of
from offload_cloud.pauses import pause_of

from offload.ground.env import REAL_ENV
from offload.ground.errors import (
    AlreadyExists,
    Denied,
    Misuse,
    NoSpace,
    NotFound,
    OffloadError,
    OutcomeUnknown,
    StoreDenied,
    Throttled,
    TryAgain,
)
from offload.ground.outside import number_outside

FAILURES: Final = (
    ClientError,
    BotoCoreError,
    ResponseParserError,
    ExchangeError,
    OSError,
    ValueError,
)
"""Every type that the client raises: error replies, its own errors, and those of the transport."""

LOST_CREATE: Final = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
"""The replies to a create that lost: the object exists (412), or a conflicting request was under way (409).

After 409 the object may not exist. It counts as `AlreadyExists` all the same, because that decides nothing by
itself: every caller of a create reads back, and may create again.
"""

ABSENT: Final = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
"""Servers answer a HEAD without a body, and then the status is the code."""

ACTIONS: Final = {
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "GetObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "DeleteObjects": "s3:DeleteObject",
    "AssumeRole": "sts:AssumeRole",
    "AssumeRoleWithWebIdentity": "sts:AssumeRoleWithWebIdentity",
}
"""The permission that an operation needs, in the words of IAM."""

FORBIDDEN: Final = {"AccessDenied", "403", "AllAccessDisabled", "AccessForbidden", "UnauthorizedAccess"}
KEYS: Final = "the access key is not known there; check the option `key`, the profile or AWS_ACCESS_KEY_ID"
LAPSED: Final = "the session token has expired; get a new one"
ELSEWHERE: Final = {
    "PermanentRedirect",
    "301",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "TemporaryRedirect",
    "302",
    "307",
    "308",
}
"""The bucket is in another region, which the reply may name. The client follows no redirect to it."""

STORE_DENIED: Final = {
    "InvalidAccessKeyId": KEYS,
    "InvalidClientTokenId": KEYS,
    "SignatureDoesNotMatch": "the secret key does not match the access key, or a proxy changed the request",
    "ExpiredToken": LAPSED,
    "ExpiredTokenException": LAPSED,
    "TokenRefreshRequired": LAPSED,
    "InvalidToken": "the session token is not valid, or belongs to another access key",
    "InvalidTokenId": "the session token is not valid there, or belongs to another access key",
    "RequestTimeTooSkewed": "this machine's clock is more than 15 minutes off; set it",
    "RequestExpired": "this machine's clock is off, or the request took too long; set the clock",
    "AccountProblem": "the account has a problem; ask its owner",
    "NotSignedUp": "the account has not signed up for S3; ask its owner",
    "NoSuchBucket": "the bucket does not exist; create it, or check its name and `endpoint_url`",
    "InvalidBucketName": "the bucket's name breaks the rules of names",
    "407": "the proxy wants a login; put it into the option `proxy`",
}
"""Codes of errors that hit every request: credentials, clock, account, bucket."""

DENIED: Final = {
    "InvalidObjectState": "the object is archived; restore it first, and wait until that is done",
    "MethodNotAllowed": "the server does not allow this; is `endpoint_url` that of an S3 server?",
    "NotImplemented": "the server does not implement this; an option may need what it cannot do",
    "InvalidStorageClass": "the server has no such storage class; check the option `storage_class`",
    "InvalidTag": "the server refuses these tags; check the option `tags`",
    "KMS.NotFoundException": "the KMS key does not exist; check the option `sse_kms_key_id`",
    "KMS.DisabledException": "the KMS key is disabled; enable it, or name another by `sse_kms_key_id`",
    "KMS.InvalidStateException": "the KMS key cannot be used in its present state; ask its owner",
    "KMS.KMSInvalidStateException": "the KMS key cannot be used in its present state; ask its owner",
    "KMS.InvalidKeyUsageException": "the KMS key is not for encryption; name another by `sse_kms_key_id`",
    "KMS.AccessDeniedException": "the credentials lack kms:GenerateDataKey or kms:Decrypt on the KMS key",
}
"""Codes of errors that hit one object, or one kind of request."""

FULL: Final = {
    "QuotaExceeded",
    "InsufficientStorage",
    "507",
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
}
UNAVAILABLE: Final = 503
"""With `Retry-After` this status is throttling, whatever the code says."""

THROTTLED: Final = {
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "503",
    "429",
    "TooManyRequests",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "KMS.ThrottlingException",
}
DAMAGED: Final = {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
"""The bytes that arrived differ from those that were sent. Nothing was stored; the next try may succeed."""

# `ServiceUnavailable` comes with 503, as `SlowDown` does. But it does not say that the server refused to
# begin, unless the reply also names a pause (`UNAVAILABLE`).
TRANSIENT: Final = {"InternalError", "ServiceUnavailable", "RequestTimeout", "408", "OperationAborted"}
"""The server gave up in the middle of a request, and may have applied it: unknown, for a mutation."""

WRONG: Final = {"EntityTooSmall", "EntityTooLarge", "InvalidPart", "InvalidPartOrder", "KeyTooLongError"}

SIGN_IN: Final = (
    sdk.SSOError,
    sdk.LoginError,
    sdk.TokenRetrievalError,
    sdk.NoAuthTokenError,
    sdk.RefreshWithMFAUnsupportedError,
)
MACHINE: Final = (sdk.CredentialRetrievalError, sdk.MetadataRetrievalError, sdk.HTTPClientError)
"""The errors of fetching credentials. The SDK's own HTTP library fetches them, and sends nothing else."""

SETTINGS: Final = (
    sdk.ProfileNotFound,
    sdk.ConfigNotFound,
    sdk.ConfigParseError,
    sdk.InvalidConfigError,
    sdk.InvalidRegionError,
    sdk.InvalidProxiesConfigError,
    sdk.InvalidRetryConfigurationError,
    sdk.InvalidDNSNameError,
    sdk.InvalidEndpointConfigurationError,
    sdk.EndpointProviderError,
    sdk.NoRegionError,
    sdk.ParamValidationError,
    sdk.UnsupportedS3ConfigurationError,
    sdk.MissingDependencyException,
)


def explained(
    exc: BaseException,
    *,
    what: str,
    where: str,
    key: str = "",
    mutation: bool,
    now_ms: Callable[[], int] = REAL_ENV.now_ms,
) -> OffloadError:
    """Return the port's error for `exc`. The caller raises it from `exc`.

    A mutation without a reply may or may not have been applied: `OutcomeUnknown`.
    """
    said = f"{where}: cannot {what}"
    lost: Callable[[str], OffloadError] = OutcomeUnknown if mutation else TryAgain
    match exc:
        case ClientError():
            return _of_code(exc, said, key, lost, now_ms)
        case ExchangeError():
            return meaning_of(exc, said, lost)
        case ResponseParserError():  # no XML
            return not_from_s3(what, where=where, mutation=mutation)
        case sdk.NoCredentialsError():
            return StoreDenied(
                f"{said}: no credentials found; set them in the environment, a profile, or options"
            )
        case sdk.PartialCredentialsError():
            return StoreDenied(f"{said}: only a part of the credentials was found: {one_line(exc)}")
        case _ if isinstance(exc, SIGN_IN):
            # No repeat cures this: a person must sign in again.
            return StoreDenied(f"{said}: the sign-in has expired: {one_line(exc)}")
        case _ if isinstance(exc, MACHINE):  # a service provides them, and may answer the next time
            return TryAgain(f"{said}: the credentials could not be fetched: {one_line(exc)}")
        case sdk.FlexibleChecksumError():
            return TryAgain(f"{said}: the bytes were damaged on the way: {one_line(exc)}")
        case _ if isinstance(exc, SETTINGS) or _is_plain_value_error(exc):
            return Misuse(f"{said}: {one_line(exc).partition(': Bucket name must')[0]}")
    for failure in (getattr(exc, "kwargs", {}).get("error"), exc):  # the SDK wraps some errors
        if isinstance(failure, FileNotFoundError | PermissionError | NotADirectoryError):
            return Misuse(f"{said}: a file that the settings name cannot be used: {one_line(failure)}")
    # Not proved to have been sent, nor not to have been.
    return lost(f"{said}: {type(exc).__name__}: {one_line(exc)}")


def not_from_s3(what: str, *, where: str, mutation: bool) -> OffloadError:
    """Return the error of a success that S3 did not send.

    A proxy may send a page for a moment only, so the request is tried again. The page does not prove that a
    mutation was not applied.
    """
    kind = OutcomeUnknown if mutation else TryAgain
    return kind(
        f"{where}: cannot {what}: the reply is not from an S3 server; check `endpoint_url` and `proxy`"
    )


def code_of(exc: ClientError) -> str:
    """Return the code of an error reply; the HTTP status if it has no body (a HEAD never has one)."""
    response: Any = exc.response
    return str(response.get("Error", {}).get("Code") or status_of(exc))


def status_of(exc: ClientError) -> int:
    """Return the HTTP status of an error reply; 0 if the error was part of a reply that succeeded."""
    response: Any = exc.response
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)


def one_line(exc: BaseException) -> str:
    """Return an error's text on one line of bounded length, its URLs without login and query."""
    text = " ".join(str(exc).split())
    text = re.sub(r"(https?://)[^\s/@\"']*@", r"\1", text)
    return re.sub(r"(https?://[^\s?\"']+)\?[^\s\"']*", r"\1", text)[:400] or type(exc).__name__


def _is_plain_value_error(exc: BaseException) -> bool:
    """Return True for a setting that the client cannot use."""
    return isinstance(exc, ValueError) and not isinstance(exc, BotoCoreError | OSError)


def _of_code(
    exc: ClientError, said: str, key: str, lost: Callable[[str], OffloadError], now_ms: Callable[[], int]
) -> OffloadError:
    code, status = code_of(exc), status_of(exc)
    message = " ".join(str(exc.response.get("Error", {}).get("Message", "")).split())[:400]
    # The order matters, because one status can have several meanings: exact codes first, bare statuses later.
    if code in LOST_CREATE:
        return AlreadyExists(key)
    pause_seconds = pause_of(_headers_of(exc).get("retry-after", ""), now_ms=now_ms)
    # The server refused to begin, so a mutation may be repeated too: `Throttled` is a `TryAgain`.
    if code in THROTTLED or (status == UNAVAILABLE and pause_seconds is not None):
        return Throttled(f"{said}: {code}: {message}", pause_seconds=pause_seconds)
    # Refusals by code come before the check for 5xx: a full store (507) and `NotImplemented` (501) applied
    # nothing, and would count as unknown there.
    if code in FULL:
        return NoSpace(f"{said}: the store is full or over its quota ({code})")
    if code in STORE_DENIED:
        return StoreDenied(f"{said}: {STORE_DENIED[code]} ({code})")
    if code in DENIED:
        return Denied(f"{said}: {DENIED[code]} ({code})")
    if code in ELSEWHERE:
        return StoreDenied(f"{said}: the bucket is in another region; {_right_region(exc)} ({code})")
    # A status without a code proves little: a web server or a proxy answers 404 to every request, and every
    # object would look absent. So such a reply counts only with a header of S3's own.
    if code == "400" and not _speaks_s3(exc):  # HTTPS servers answer this to plain HTTP
        return StoreDenied(
            f"{said}: the server wants https:// in `endpoint_url`, or is not an S3 server (HTTP 400); "
            "check also `proxy`"
        )
    # 408 is left for below: whoever sent it, the request may have been applied.
    if code.isdigit() and 400 <= status < 500 and code not in TRANSIENT and not _speaks_s3(exc):
        return StoreDenied(
            f"{said}: the reply is not from an S3 server (HTTP {code}); check `endpoint_url` and `proxy`"
        )
    if code in ABSENT:
        return NotFound(key, store=said.partition(": ")[0])
    if code in FORBIDDEN:
        return Denied(f"{said}: {_missing_permission(exc, message)} ({code})")
    if code in DAMAGED:
        return TryAgain(f"{said}: {code}: {message}")
    # The server began, and failed somewhere. It may have applied a mutation: `lost` says so.
    if code in TRANSIENT or status >= 500 or (number_outside(code) or 0) >= 500:
        # A 502 from a proxy is unknown too: the server behind it may have applied the request.
        strange = code.isdigit() and not _speaks_s3(exc)
        hint = "; the reply is not from an S3 server; check `endpoint_url` and `proxy`" if strange else ""
        return lost(f"{said}: {code}: {message}{hint}")
    if code in WRONG:
        return Misuse(f"{said}: {code}: {message}")
    # The codes of KMS that a pause or a known remedy cures were matched above.
    if code.startswith("KMS."):
        return Denied(f"{said}: KMS refuses the key: {message} ({code})")
    # An unknown code, and no 5xx. Nothing says that a repeat would help: a plain `OffloadError` is never
    # retried.
    return OffloadError(f"{said}: {code}: {message}")


def _headers_of(exc: ClientError) -> dict[str, str]:
    """Return the headers of an error reply, with lower-case names."""
    response: Any = exc.response
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return {name.lower(): str(value) for name, value in headers.items()}


def _right_region(exc: ClientError) -> str:
    response: Any = exc.response
    region = _headers_of(exc).get("x-amz-bucket-region") or response.get("Error", {}).get("Region")
    return f"set region={region}" if region else "set the option `region` to the bucket's own"


def _speaks_s3(exc: ClientError) -> bool:
    return any(name.startswith("x-amz-") for name in _headers_of(exc))


def _missing_permission(exc: ClientError, message: str) -> str:
    if kms := re.search(r"kms:\w+", message):
        return f"the credentials may not use the KMS key; grant {kms[0]}"
    action = ACTIONS.get(exc.operation_name, exc.operation_name)
    # Without s3:ListBucket, S3 answers 403 instead of 404, so as not to reveal which objects exist.
    unsaid = " or s3:ListBucket, without which an absent object looks forbidden" if "Get" in action else ""
    more = f": {message}" if "authorized" in message else ""  # AWS names the identity, action and policy
    return f"the credentials lack {action}{unsaid}{more}"
