"""Errors of Azure and its client, translated to the errors of the port. One place, by code and not by type.

The code in the reply decides, then the HTTP status, then the kind of failure. A text says what is wrong
and which option, role or permission fixes it. It holds no secret, no query and no login.

The error says what is known of the request:

    refused by a reply           nothing was applied: `AlreadyExists`, `Denied`, `Throttled`, `TryAgain` ...
    a page with status 200       as if there were no reply
    never sent                   `TryAgain`, for a mutation too: no connection, a name does not resolve
    sent; no reply, or HTTP 5xx  `OutcomeUnknown` for a mutation, `TryAgain` for a read

The third row is sound because each request is sent once (`offload_cloud.exchange`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from azure.core.exceptions import AzureError, ClientAuthenticationError, DecodeError, HttpResponseError
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

FAILURES: Final = (AzureError, ExchangeError, OSError, ValueError)
"""Every type that the clients raise: error replies, their own errors, and those of their libraries."""

PERMISSIONS: Final = {"read": "r", "list": "l", "store": "c and w", "create": "c", "delete": "d"}
"""The letters that a shared access signature needs, by the first word of what was tried."""

EXISTS: Final = {"BlobAlreadyExists", "UnauthorizedBlobOverwrite", "ConditionNotMet", "TargetConditionNotMet"}
"""The replies to a create that lost. The second goes to credentials that may create and not overwrite.

To the read of a suffix, the last two mean that its version was replaced in between.
"""

LACKING: Final = {
    "AuthorizationPermissionMismatch",
    "InsufficientAccountPermissions",
    "AuthorizationResourceTypeMismatch",
    "AuthorizationServiceMismatch",
    "UnauthorizedBlobOverwrite",
    "403",
}
ENCRYPTED: Final = "it was written with another encryption key; give that one as `cpk_key`"
VAULT: Final = "the key vault does not release its key; ask the owner of the encryption scope"
STORE_DENIED: Final = {
    "AuthorizationProtocolMismatch": "the SAS token is for https:// only; change `endpoint_url`",
    "AuthorizationSourceIPMismatch": "the SAS token is for other addresses than this machine's",
    "InvalidAuthenticationInfo": "the credentials are malformed, or the sign-in is for another tenant",
    "NoAuthenticationInformation": "the container is not public; give credentials",
    "PublicAccessNotPermitted": "the account allows no public access; give credentials",
    "KeyBasedAuthenticationNotPermitted": "the account allows no keys; sign in, or use a user delegation SAS",
    "AccountIsDisabled": "the account is disabled; ask its owner",
    "ContainerNotFound": "the container does not exist; create it, or check its name and the account",
    "ContainerDisabled": "the container is disabled; ask its owner",
    "ContainerBeingDeleted": "the container is being deleted; wait, and create it again",
    "407": "the proxy wants a login; put it into the option `proxy`",
}
"""Codes of errors that hit every request: credentials, account, container."""

DENIED: Final = {
    "AuthorizationFailure": "it is not allowed: the account's network rules exclude this machine, or the "
    "credentials are wrong or lack the permission",
    "InvalidResourceName": "the container's name, or the key, breaks the rules of names",
    "BlobArchived": "the blob is archived; set its tier to Hot or Cool, and wait until that is done",
    "BlobBeingRehydrated": "the blob is being restored from the archive, which takes hours; wait for it",
    "BlobImmutableDueToPolicy": "an immutability policy keeps the blob as it is; wait until it ends",
    "LeaseIdMissing": "another program holds a lease on the blob; end that first",
    "BlobUsesCustomerSpecifiedEncryption": ENCRYPTED,
    "BlobCustomerSpecifiedEncryptionMismatch": ENCRYPTED,
    "BlobDoesNotUseCustomerSpecifiedEncryption": "it was written without a key; remove `cpk_key`",
    "KeyVaultEncryptionKeyNotFound": VAULT,
    "KeyVaultAccessTokenCannotBeAcquired": VAULT,
    "KeyVaultVaultNotFound": VAULT,
    "BlobAccessTierNotSupportedForAccountType": "the account has no tiers; remove `access_tier`",
    "InvalidBlobTier": "the account has no such tier; check `access_tier`",
    "InvalidBlobType": "another program's blob of another type has this name; delete it",
}
"""Codes of errors that hit one blob, or one kind of request."""

UNAVAILABLE: Final = 503
"""With `Retry-After` this status is throttling, whatever the code says."""

THROTTLED: Final = {"ServerBusy", "TooManyRequests", "429", "503"}
DAMAGED: Final = {"Md5Mismatch", "Crc64Mismatch", "InvalidMd5"}
"""The bytes that arrived differ from those that were sent. Nothing was stored; the next try may succeed."""

SUPERSEDED: Final = {"InvalidBlockList"}
"""Parts of this upload are gone: another write under its key was completed meanwhile, and dropped them."""

TRANSIENT: Final = {"InternalError", "OperationTimedOut", "408", "AccountBeingCreated"}
"""The service gave up in the middle of a request, and may have applied it: unknown, for a mutation."""

FULL: Final = {"507", "InsufficientStorage"}
NOT_FROM_AZURE: Final = (
    "the reply is not from a blob service; check `endpoint_url`, `account_host` and `proxy`"
)
"""The service answers a success by what the client reads from it: a status, a header or a root element.

A login page, a captive portal or a gateway under maintenance may answer 200 to any request.
"""

PLAIN_HTTP: Final = 400
"""The status that an HTTPS server answers to a request without TLS."""

WRONG: Final = {"RequestBodyTooLarge", "OutOfRangeInput", "InvalidUri", "BlockListTooLong", "InvalidInput"}


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

    The first word of `what` names the operation. A mutation without a reply may or may not have been
    applied: `OutcomeUnknown`.
    """
    said = f"{where}: cannot {what}"
    lost: Callable[[str], OffloadError] = OutcomeUnknown if mutation else TryAgain
    # A reply that cannot be decoded proves nothing about the request, so it counts as none.
    if isinstance(exc, DecodeError):
        return lost(f"{said}: {NOT_FROM_AZURE}")
    if isinstance(exc, HttpResponseError) and exc.response is not None:
        return _of_reply(exc, said, what, key, lost, now_ms)
    if isinstance(exc, ClientAuthenticationError):
        return StoreDenied(f"{said}: {_of_sign_in(exc)}")
    if isinstance(exc, ExchangeError):
        return meaning_of(exc, said, lost)
    if isinstance(exc, ValueError) and not isinstance(exc, OSError):
        return Misuse(f"{said}: {one_line(exc)}")
    # Such as an error of the credential's own HTTP library: the SDK wraps it.
    beneath = getattr(exc, "inner_exception", None) or exc
    return lost(f"{said}: {type(beneath).__name__}: {one_line(beneath)}")


def not_from_azure(what: str, *, where: str, mutation: bool = False) -> OffloadError:
    """Return the error of a success that the service did not send.

    A proxy may send a page for a moment only, so the request is tried again. The page does not prove that a
    mutation was not applied.
    """
    kind = OutcomeUnknown if mutation else TryAgain
    return kind(f"{where}: cannot {what}: {NOT_FROM_AZURE}")


def code_of(exc: BaseException | None) -> str:
    """Return the code of an error reply; its HTTP status if it has none; "" if `exc` is no reply."""
    if not isinstance(exc, HttpResponseError) or exc.response is None:
        return ""
    code = getattr(exc, "error_code", None) or _headers(exc).get("x-ms-error-code")
    return str(getattr(code, "value", code) or exc.status_code)


def one_line(exc: BaseException | str) -> str:
    """Return an error's text on one line of bounded length, without secrets, logins and queries of URLs."""
    text = " ".join(str(exc).split())
    text = re.sub(r"(https?://)[^\s/@\"']*@", r"\1", text)
    # A SAS token is in the query of each URL.
    text = re.sub(r"(https?://[^\s?\"']+)\?[^\s\"']*", r"\1", text)
    text = re.sub(r"(?i)\b(sig|AccountKey|SharedAccessSignature)=[^\s;&\"']+", r"\1=***", text)
    return text[:400] or type(exc).__name__


def _of_reply(
    exc: HttpResponseError,
    said: str,
    what: str,
    key: str,
    lost: Callable[[str], OffloadError],
    now_ms: Callable[[], int],
) -> OffloadError:
    code, status = code_of(exc), exc.status_code or 0
    text = f"{said}: {one_line(_message(exc))} ({code})"
    if status < 300:  # a success, and not that of this request
        return lost(f"{said}: {NOT_FROM_AZURE}")
    # First of all: some of these codes mean another thing for other requests.
    if what.startswith("create") and code in EXISTS:
        return AlreadyExists(key)
    # "ResourceNotFound" counts as an absent blob for a read, and as an absent container for other requests.
    if code == "BlobNotFound" or (code == "ResourceNotFound" and what.startswith("read")):
        return NotFound(key, store=said.partition(": cannot ")[0])
    if code in STORE_DENIED:
        return StoreDenied(f"{said}: {STORE_DENIED[code]} ({code})")
    if code in DENIED:
        return Denied(f"{said}: {DENIED[code]} ({code})")
    if code == "ResourceNotFound":
        return StoreDenied(f"{said}: {STORE_DENIED['ContainerNotFound']} ({code})")
    if code == "AuthenticationFailed":
        return StoreDenied(f"{said}: {_of_authentication(exc)} ({code})")
    if code in LACKING:
        letter = PERMISSIONS.get(what.partition(" ")[0], "")
        return Denied(
            f"{said}: the credentials lack the permission: a role like Storage Blob Data Contributor, or "
            f"{letter!r} in a SAS token ({code})"
        )
    # Before the check for 5xx: a full account (507) refused the request, and would count as unknown there.
    if code in FULL:
        return NoSpace(f"{said}: the account is full ({code})")
    pause_seconds = pause_of(_headers(exc).get("Retry-After", ""), now_ms=now_ms)
    # The service refused to begin, so a mutation may be repeated too: `Throttled` is a `TryAgain`.
    if code in THROTTLED or (status == UNAVAILABLE and pause_seconds is not None):
        return Throttled(text, pause_seconds=pause_seconds)
    if code in DAMAGED:
        return TryAgain(text)
    # This upload stored nothing, so the whole put may be repeated.
    if code in SUPERSEDED:
        return TryAgain(f"{said}: another write under this key dropped the parts ({code})")
    if code in EXISTS:  # a read on the condition that the version is the same
        return TryAgain(f"{said}: the object was replaced meanwhile ({code})")
    # The service began, and failed somewhere. It may have applied a mutation: `lost` says so.
    if code in TRANSIENT or status >= 500:
        return lost(text)
    if _names_the_version(exc):
        return StoreDenied(f"{said}: the server does not know this version; set `api_version` ({code})")
    if code in WRONG:
        return Misuse(text)
    # A status without a code and without a header of Azure's is the reply of another server.
    if not _speaks_azure(exc):
        return StoreDenied(f"{said}: {_of_another_server(exc, status)}")
    # An unknown code, and no 5xx. Nothing says that a repeat would help: a plain `OffloadError` is never
    # retried.
    return OffloadError(text)


def _of_another_server(exc: HttpResponseError, status: int) -> str:
    """Return why a server that is no blob service may have answered, and what to check."""
    if status == 401:
        return _of_sign_in(exc)
    if status == PLAIN_HTTP:
        wants = "the server wants https:// in `endpoint_url`, or is no blob service (HTTP 400)"
        return f"{wants}; check also `proxy`"
    other = f"the reply is not from a blob service (HTTP {status})"
    return f"{other}; check `endpoint_url`, `account_host` and `proxy`"


def _message(exc: HttpResponseError) -> str:
    """Return the service's message, without the lines that repeat it as numbers and codes."""
    return exc.message.partition("\nRequestId:")[0].partition("\nErrorCode:")[0]


def _of_authentication(exc: HttpResponseError) -> str:
    detail = str(exc).lower()
    if "date header" in detail:
        return "this machine's clock is more than 15 minutes off; set it"
    if "time frame" in detail:
        return "the SAS token has expired, or is not valid yet; get a new one"
    if "signature" in detail and ("sas" in detail or "did not match" in detail):
        return "the SAS token is not for this account and container; get a new one"
    return "the account key, the SAS token or the sign-in is not valid for this account"


def _of_sign_in(exc: BaseException) -> str:
    """Return what to do if no credentials were found, or if the sign-in was refused."""
    text = str(exc)
    if "shared key" in text:
        return "the account key is not valid base64; check `account_key`"
    code = re.search(r"AADSTS\d+", text)
    if code is not None:
        return f"the sign-in was refused ({code[0]}); check `tenant_id`, `client_id` and `client_secret`"
    return (
        "no credentials were found: sign in (`az login`), set AZURE_CLIENT_ID and its like, or give "
        "`account_key`, `sas_token` or `connection_string`"
    )


def _names_the_version(exc: HttpResponseError) -> bool:
    """Return True if the server refuses the version of the protocol that the client speaks."""
    return exc.status_code == 400 and "x-ms-version" in str(exc)


def _speaks_azure(exc: HttpResponseError) -> bool:
    return any(name.lower().startswith("x-ms-") for name in _headers(exc))


def _headers(exc: HttpResponseError) -> Mapping[str, str]:
    """Return the headers of the reply. The case of their names does not matter."""
    response: Any = exc.response
    headers: Mapping[str, str] = response.headers
    return headers
