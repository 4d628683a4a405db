"""Errors of GCS and its clients, translated to the errors of the port. The only place that translates.

The `reason` in the body of an error reply decides, if it is known, then the HTTP status. Emulators and
proxies send other bodies; a body that is neither JSON nor XML is only quoted. A text says what is wrong and
which option or permission fixes it. Invariant: no text holds a token, a login or the name of an upload's
session, which would let its reader write the object.

The error says what is known of the request:

    refused by a reply              nothing was applied: `AlreadyExists`, `Denied`, `Throttled`, `TryAgain` ..
    never sent                      `TryAgain`, for a mutation too: no connection, no renewed credentials
    sent; no reply, or one of LOST  `OutcomeUnknown` for a mutation, `TryAgain` for a read

The second row is sound because the client sends each request once (`client`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError, TransportError
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
from offload.ground.outside import json_outside

SAID_CHARACTERS_MAX: Final = 300
_SECRET: Final = re.compile(r"(?i)\bbearer\s+\S+|\bya29\.\S+|upload_id=[^&\s'\"]+|//[^/@\s]+@")
_NO_BUCKET: Final = re.compile(r"(?i)(the specified |no such |the )?bucket\b")
"""The beginning of a 404's message about the bucket. One about an object names both: `No such object:
bucket/key`."""

_XML: Final = re.compile(r"<Code>(?P<reason>.*?)</Code>.*?<Message>(?P<message>.*?)</Message>", re.DOTALL)
_PERMISSION: Final = re.compile(
    r"\b(?:storage\.(?:objects|buckets|folders|managedFolders)|serviceusage\.services|cloudkms\.\w+)\.\w+"
)

LOGIN: Final = (
    "log in with `gcloud auth application-default login`, name a key file in "
    "GOOGLE_APPLICATION_CREDENTIALS or in the option `token`, or set anonymous=true for a public bucket"
)

STORE_DENIED: Final = {
    "accountDisabled": "the account of the bucket's project is disabled; its owner must check billing",
    "billingNotEnabled": "billing is not enabled for the project; its owner must enable it",
    "userProjectAccountProblem": "the paying project has no valid billing account; check `user_project`",
    "userProjectInvalid": "the paying project does not exist; check the option `user_project`",
    "userProjectMissing": "the requester pays for this bucket; set the option `user_project`",
    "countryBlocked": "the service is not available from this country",
    "sslRequired": "the service wants https:// in the option `endpoint_url`",
    "SERVICE_DISABLED": "the storage API is disabled in the project; its owner must enable it",
    "accessNotConfigured": "the storage API is disabled in the project; its owner must enable it",
}
"""Reasons that refuse every request, and what a person does about each."""

DENIED: Final = {
    "insufficientPermissions": "the credentials' scope does not cover storage; use other credentials",
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": "the credentials' scope does not cover storage; use other credentials",
    "retentionPolicyNotMet": "the bucket's retention policy protects this object; ask the bucket's owner",
    "objectUnderActiveHold": "a hold protects this object; ask the bucket's owner to release it",
    "orgPolicyConstraintFailed": "a policy of the organisation forbids this; ask its administrator",
}
"""Reasons that refuse a request for one object, or one kind of request."""

_MENDS: Final = {
    reason.lower(): (kind, mends)  # XML's codes differ in case
    for kind, table in ((StoreDenied, STORE_DENIED), (Denied, DENIED))
    for reason, mends in table.items()
}

FULL: Final = {"quotaExceeded", "storageQuotaExceeded", "insufficientStorage", "dailyLimitExceeded"}
THROTTLED: Final = {"rateLimitExceeded", "userRateLimitExceeded"}
BEYOND_THE_END: Final = 416
LOST: Final = {408, 500, 502, 503, 504}
"""Statuses of a service that gave up in the middle. A mutation may or may not have been applied."""


NOT_FROM_GCS: Final = "the reply is not from Google Cloud Storage; check `endpoint_url` and `proxy`"


class Unusable(Exception):
    """Credentials are missing or cannot be used; the text says why. Raised to callers only as a cause."""


class Refused(Exception):
    """An error reply: its status, reason and message. Raised to callers only as a cause."""

    def __init__(self, status: int, body: bytes, *, retry_after: str = "") -> None:
        self.status = status
        self.reason, self.message = _understood(body)
        self.retry_after = retry_after
        """The header `Retry-After`; empty if the reply has none."""

        super().__init__(" ".join(filter(None, (str(status), self.reason, self.message))))


FAILURES: Final = (
    Refused,
    Unusable,
    GoogleAuthError,
    ExchangeError,
    OSError,
    ValueError,
)
"""Every type that the clients raise: error replies, errors of credentials and of the transport."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, as far as the meaning of an error depends on it."""

    what: str
    """The words behind "cannot" in a message."""

    permission: str
    key: str = ""
    mutation: bool = False
    creates: bool = False
    """True: a failed precondition (412) means that the object exists."""

    of_object: bool = False
    """True: a 404 means that the object is absent, unless its message is about the bucket."""


def explained(
    exc: BaseException, asked: Asked, *, where: str, now_ms: Callable[[], int] = REAL_ENV.now_ms
) -> OffloadError:
    """Return the port's error for `exc`. The caller raises it from `exc`.

    A mutation without a reply may or may not have been applied: `OutcomeUnknown`.
    """
    said = f"{where}: cannot {asked.what}"
    lost: Callable[[str], OffloadError] = OutcomeUnknown if asked.mutation else TryAgain
    match exc:
        case Refused():
            return _of_reply(exc, asked, said, lost, where, now_ms)
        # Credentials are fetched before the request is sent, so nothing is in doubt, not even for a
        # mutation.
        case GoogleAuthError() | Unusable():
            return _of_credentials(exc, said)
        case ExchangeError():
            return meaning_of(exc, said, lost)
        case ValueError():
            return Misuse(f"{said}: {without_secrets(exc)}")
    return lost(f"{said}: {type(exc).__name__}: {without_secrets(exc)}")


def not_from_gcs(asked: Asked, *, where: str) -> OffloadError:
    """Return the error of a success that GCS did not send.

    A proxy may send a page for a moment only, so the request is tried again. The page does not prove that a
    mutation was not applied.
    """
    kind = OutcomeUnknown if asked.mutation else TryAgain
    return kind(f"{where}: cannot {asked.what}: {NOT_FROM_GCS}")


def without_secrets(said: object) -> str:
    """Return a text of another program for a message: one line of bounded length, without secrets."""
    return _SECRET.sub("…", " ".join(str(said).split())[:SAID_CHARACTERS_MAX])


def _of_reply(
    exc: Refused,
    asked: Asked,
    said: str,
    lost: Callable[[str], OffloadError],
    where: str,
    now_ms: Callable[[], int],
) -> OffloadError:
    reason = f"{said}: {exc}"
    # By reason first: several of them share a status, and they say more.
    if known := _MENDS.get(exc.reason.lower()):
        kind, mends = known
        return kind(f"{said}: {mends} ({exc})")
    if exc.reason in FULL or exc.status == 507:
        return NoSpace(f"{said}: the store is full or over its quota ({exc})")
    # The service refused to begin, so a mutation may be repeated too: `Throttled` is a `TryAgain`.
    pause_seconds = pause_of(exc.retry_after, now_ms=now_ms)
    if exc.status == 429 or exc.reason in THROTTLED or (exc.status == 503 and pause_seconds is not None):
        return Throttled(reason, pause_seconds=pause_seconds)
    # The service began, and failed somewhere. It may have applied a mutation: `lost` says so.
    if exc.status in LOST:
        return lost(reason)
    match exc.status:
        case 412 if asked.creates:
            # Perhaps our own object, if the reply to an earlier try was lost. The caller reads back.
            return AlreadyExists(asked.key)
        # A missing bucket must not look like an absent object: a stream would seem to have no roots.
        # The service answers in JSON or in plain text. A page proves nothing about an object.
        case 404 if exc.message.startswith("<"):
            return StoreDenied(f"{said}: {NOT_FROM_GCS} (HTTP 404)")
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
        case 409:  # a conflicting request was under way: this one was not applied
            return TryAgain(reason)
        case 413:
            return Misuse(f"{said}: the object is too large for the service ({exc})")
        case 301 | 302 | 303 | 307 | 308:
            return StoreDenied(
                f"{said}: the server answers with a redirect ({exc.status}); check `endpoint_url`"
            )
    # An unknown status. Nothing says that a repeat would help: a plain `OffloadError` is never retried.
    return OffloadError(reason)


def _of_bad_request(exc: Refused, said: str) -> OffloadError:
    message = exc.message.lower()
    # The service has no reasons for these, only messages.
    if not exc.reason and "https" in message:  # HTTPS servers answer this to plain HTTP
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
    # The missing permission may be another than the request's: replacing an object needs `delete` as well.
    permission = named[0] if named else asked.permission
    return Denied(f"{said}: the credentials lack the permission {permission} ({exc})")


def _of_credentials(exc: BaseException, said: str) -> OffloadError:
    reason = without_secrets(exc.args[0] if exc.args else type(exc).__name__)
    if isinstance(exc, DefaultCredentialsError):
        reason = reason.partition(" To set up Application Default")[0]  # `LOGIN` says what to do instead
        return StoreDenied(f"{said}: no credentials found ({reason}); {LOGIN}")
    # google.auth marks the refusals that another try may cure, such as that of a busy token server.
    if isinstance(exc, TransportError) or getattr(exc, "retryable", False):
        return TryAgain(
            f"{said}: the token server cannot be reached ({reason}); check the network and proxies, or "
            "set anonymous=true for a public bucket"
        )
    if isinstance(exc, RefreshError):
        return StoreDenied(f"{said}: the credentials could not be renewed ({reason}); {LOGIN}")
    return StoreDenied(f"{said}: the credentials cannot be used: {reason}; {LOGIN}")


def _understood(body: bytes) -> tuple[str, str]:
    """Return the reason and the message of an error's body, which is JSON, XML or plain text."""
    text = body.decode("utf-8", errors="replace")
    try:
        error = json_outside(text)["error"]
        details = error.get("errors") or [{}]
        reason = next((each["reason"] for each in error.get("details", ()) if "reason" in each), "")
        return details[0].get("reason") or reason, without_secrets(error.get("message", ""))
    except (ValueError, LookupError, TypeError, AttributeError):
        # JSON of another shape gets here too, such as a list or `null`.
        found = _XML.search(text)
        reason, message = (found["reason"], found["message"]) if found else ("", text)
        return reason, without_secrets(message)
