"""What GCS, and the clients beneath us, say went wrong, as the errors of the port. One place.

An error reply is told apart by its HTTP status and then by the `reason` in its body; emulators and proxies
send bodies of other kinds, so a body that is no JSON is only read by people. A text says what is wrong and
which option or permission mends it. Invariant: no text holds a token, a login or the name of an upload's
session, which is as good as a key.

What was never sent is `TryAgain` also for a mutation: a refused connection, a name that does not
resolve, credentials that could not be renewed. That is sound because the client sends each request
once (`client`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError, TransportError
from offload_cloud.pauses import pause_of
from offload_cloud.tls import hung_up

from offload.errors import (
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

SAID_CHARACTERS_MAX: Final = 300
_SECRET: Final = re.compile(r"(?i)\bbearer\s+\S+|\bya29\.\S+|upload_id=[^&\s'\"]+|//[^/@\s]+@")
_NO_BUCKET: Final = re.compile(r"(?i)(the specified |no such |the )?bucket\b")
"""How a 404 begins that speaks of the bucket; one that speaks of an object names both, in this order: `No
such object: bucket/key`."""

_XML: Final = re.compile(r"<Code>(?P<reason>.*?)</Code>.*?<Message>(?P<message>.*?)</Message>", re.DOTALL)
_PERMISSION: Final = re.compile(
    r"\b(?:storage\.(?:objects|buckets|folders|managedFolders)|serviceusage\.services|cloudkms\.\w+)\.\w+"
)

LOGIN: Final = (
    "log in with `gcloud auth application-default login`, name a key file in "
    "GOOGLE_APPLICATION_CREDENTIALS or in the option `token`, or set anonymous=true for a public bucket"
)

STORE_DENIED: Final = {
    "accountDisabled": "the account of the bucket's project is disabled; its owner must look after billing",
    "billingNotEnabled": "billing is not enabled for the project; its owner must enable it",
    "userProjectAccountProblem": "the project that pays has no good billing account; check `user_project`",
    "userProjectInvalid": "there is no such project to pay; check the option `user_project`",
    "userProjectMissing": "the bucket lets the requester pay; set the option `user_project`",
    "countryBlocked": "the service is not offered from here",
    "sslRequired": "the service wants https:// in the option `endpoint_url`",
    "SERVICE_DISABLED": "the storage API is disabled in the project; its owner must enable it",
    "accessNotConfigured": "the storage API is disabled in the project; its owner must enable it",
}
"""Reasons that stand against every request, and what a person does about each."""

DENIED: Final = {
    "insufficientPermissions": "the credentials' scope does not cover storage; use other credentials",
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": "the credentials' scope does not cover storage; use other credentials",
    "retentionPolicyNotMet": "the bucket's retention policy protects this object; ask the bucket's owner",
    "objectUnderActiveHold": "a hold protects this object; ask the bucket's owner to release it",
    "orgPolicyConstraintFailed": "a policy of the organisation forbids this; ask its administrator",
}
"""Reasons that stand against one object, or one kind of request."""

_MENDS: Final = {
    reason.lower(): (kind, mends)  # XML's codes differ in case
    for kind, table in ((StoreDenied, STORE_DENIED), (Denied, DENIED))
    for reason, mends in table.items()
}

FULL: Final = {"quotaExceeded", "storageQuotaExceeded", "insufficientStorage", "dailyLimitExceeded"}
THROTTLED: Final = {"rateLimitExceeded", "userRateLimitExceeded"}
LOST: Final = {408, 500, 502, 503, 504}
"""The service gave up in the middle: of a mutation nobody knows whether it was applied."""


class Unusable(Exception):
    """Credentials that are not there, or cannot be used; the text says why. Never seen but as a cause."""


class Refused(Exception):
    """A reply that is no success: its status, and what its body says. Never seen but as a cause."""

    def __init__(self, status: int, body: bytes, *, retry_after: str = "") -> None:
        self.status = status
        self.reason, self.message = _understood(body)
        self.pause_seconds = pause_of(retry_after)
        """The pause in seconds that the header `Retry-After` asks for."""

        super().__init__(" ".join(filter(None, (str(status), self.reason, self.message))))


FAILURES: Final = (Refused, Unusable, GoogleAuthError, aiohttp.ClientError, TimeoutError, OSError)
"""Whatever the client raises: error replies, trouble with credentials, and the HTTP library's errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked of the service, as far as an error's meaning depends on it."""

    what: str
    """For messages, behind "cannot"."""

    permission: str
    key: str = ""
    mutation: bool = False
    creates: bool = False
    """A lost precondition means that the object exists."""

    of_object: bool = False
    """A 404 speaks of the object, unless it says that it speaks of the bucket."""


def explained(exc: BaseException, asked: Asked, *, where: str) -> OffloadError:
    """The port's error for `exc`, to be raised from it.

    Of a mutation whose reply never came, nobody knows whether it was applied: `OutcomeUnknown`.
    """
    said = f"{where}: cannot {asked.what}"
    lost: Callable[[str], OffloadError] = OutcomeUnknown if asked.mutation else TryAgain
    match exc:
        case Refused():
            return _of_reply(exc, asked, said, lost, where)
        case GoogleAuthError() | Unusable():
            return _of_credentials(exc, said)
        case aiohttp.ClientConnectorCertificateError():
            reason = without_secrets(exc.certificate_error)
            return StoreDenied(
                f"{said}: the server's certificate is not trusted ({reason}); "
                "name the file of its authorities in the option `verify`"
            )
        case aiohttp.ClientConnectorSSLError() if not hung_up(exc):
            return StoreDenied(
                f"{said}: the server speaks no TLS that we understand; is it http:// in `endpoint_url`? "
                f"({without_secrets(exc)})"
            )
        case aiohttp.ClientHttpProxyError(status=407):
            return StoreDenied(f"{said}: the proxy wants a login; put it into the option `proxy`")
        case aiohttp.ClientHttpProxyError():
            return TryAgain(f"{said}: the proxy answers {exc.status}; check the option `proxy`")
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return TryAgain(f"{said}: cannot connect: {without_secrets(exc)}")
        case TimeoutError():
            return lost(f"{said}: the server did not answer: no byte moved within `read_timeout_seconds`")
    return lost(f"{said}: {type(exc).__name__}: {without_secrets(exc)}")


def without_secrets(said: object) -> str:
    """A stranger's words on one line and not too many, fit for a message."""
    return _SECRET.sub("…", " ".join(str(said).split())[:SAID_CHARACTERS_MAX])


def _of_reply(
    exc: Refused, asked: Asked, said: str, lost: Callable[[str], OffloadError], where: str
) -> OffloadError:
    reason = f"{said}: {exc}"
    if known := _MENDS.get(exc.reason.lower()):
        kind, mends = known
        return kind(f"{said}: {mends} ({exc})")
    if exc.reason in FULL or exc.status == 507:
        return NoSpace(f"{said}: the store is full or over its quota ({exc})")
    if exc.status == 429 or exc.reason in THROTTLED or (exc.status == 503 and exc.pause_seconds is not None):
        return Throttled(reason, pause_seconds=exc.pause_seconds)
    if exc.status in LOST:
        return lost(reason)
    match exc.status:
        case 412 if asked.creates:
            return AlreadyExists(asked.key)
        case 404 if asked.of_object and not _NO_BUCKET.match(exc.message):
            return NotFound(asked.key, store=where)
        case 404:
            return StoreDenied(f"{said}: the bucket does not exist; create it, or check its name ({exc})")
        case 400:
            return _of_bad_request(exc, said)
        case 401:
            return StoreDenied(f"{said}: the credentials are not valid, or there are none ({exc}); {LOGIN}")
        case 403:
            return _forbidden(exc, asked, said)
        case 407:
            return StoreDenied(f"{said}: the proxy wants a login; put it into the option `proxy`")
        case 409:
            return TryAgain(reason)
        case 413:
            return Misuse(f"{said}: the object is too large for the service ({exc})")
        case 301 | 302 | 303 | 307 | 308:
            return StoreDenied(f"{said}: the server sends us elsewhere ({exc.status}); check `endpoint_url`")
    return OffloadError(reason)


def _of_bad_request(exc: Refused, said: str) -> OffloadError:
    message = exc.message.lower()
    if not exc.reason and "https" in message:  # as servers of HTTPS answer to plain HTTP
        return StoreDenied(f"{said}: the server wants https:// in the option `endpoint_url` ({exc})")
    if "crc32c" in message and "match" in message:
        return TryAgain(f"{said}: the bytes were damaged on the way, and not stored ({exc})")
    if "requester pays" in message:
        return StoreDenied(f"{said}: {STORE_DENIED['userProjectMissing']} ({exc})")
    if exc.reason.startswith("cloudKms") or "cloudkms" in message or "kms key" in message:
        return Denied(f"{said}: the key cannot be used; check the option `kms_key_name` ({exc})")
    if "storage class" in message or "storageclass" in message:
        return Denied(f"{said}: there is no such storage class; check the option `storage_class` ({exc})")
    return OffloadError(f"{said}: {exc}")


def _forbidden(exc: Refused, asked: Asked, said: str) -> OffloadError:
    named = _PERMISSION.search(exc.message)
    permission = named[0] if named else asked.permission
    return Denied(f"{said}: the credentials lack the permission {permission} ({exc})")


def _of_credentials(exc: BaseException, said: str) -> OffloadError:
    reason = without_secrets(exc.args[0] if exc.args else type(exc).__name__)
    if isinstance(exc, DefaultCredentialsError):
        reason = reason.partition(" To set up Application Default")[0]  # we say it in our own words
        return StoreDenied(f"{said}: no credentials found ({reason}); {LOGIN}")
    if isinstance(exc, TransportError) or getattr(exc, "retryable", False):
        return TryAgain(
            f"{said}: the server of tokens cannot be reached ({reason}); check the network and proxies, or "
            "set anonymous=true for a public bucket"
        )
    if isinstance(exc, RefreshError):
        return StoreDenied(f"{said}: the credentials could not be renewed ({reason}); {LOGIN}")
    return StoreDenied(f"{said}: the credentials cannot be used: {reason}; {LOGIN}")


def _understood(body: bytes) -> tuple[str, str]:
    """The reason and the message of an error's body, which is JSON, XML, or a word."""
    text = body.decode("utf-8", errors="replace")
    try:
        error: Any = json.loads(text)["error"]
        details = error.get("errors") or [{}]
        reason = next((each["reason"] for each in error.get("details", ()) if "reason" in each), "")
        return details[0].get("reason") or reason, without_secrets(error.get("message", ""))
    except (ValueError, LookupError, TypeError, AttributeError):
        found = _XML.search(text)
        reason, message = (found["reason"], found["message"]) if found else ("", text)
        return reason, without_secrets(message)
