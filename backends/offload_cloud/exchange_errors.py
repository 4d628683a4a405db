"""Errors of an exchange by `offload_cloud.exchange`, and the port's error of each.

Each reason says what is known of the request, and one table has its meaning. Invariant: no text is parsed.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from enum import Enum
from typing import Final

from offload.ground.errors import OffloadError, StoreDenied, TryAgain
from offload_cloud.tls import refusal_of

__all__ = ["Cause", "ExchangeError", "meaning_of"]


class Cause(Enum):
    """The reason of an error. The value is its text, about the server `{place}`."""

    # Nothing was sent.
    UNRESOLVED = "the name of {place} does not resolve; check `endpoint_url`, `region` or `account_name`"
    UNREACHABLE = "nothing answers at {place}; check `endpoint_url`, and that the server runs"
    SLOW_CONNECT = "{place} accepts no connection within `connect_timeout_seconds`"
    TLS = "{detail}"
    NO_PROXY = "the proxy does not answer, or cannot reach the server; check `proxy`"
    PROXY_TLS = "a proxy that speaks TLS itself (https://) is not supported; use http:// in `proxy`"
    PROXY_REFUSES = "the proxy refuses ({detail}); check `proxy` and the login in it"
    # The request was sent, at least in part.
    STALLED = "{place} did not answer: no byte moved within `read_timeout_seconds`"
    SLOW = "{place} was too slow: {detail}"
    CLOSED = "{place} closed the connection without an answer"
    BROKEN = "the connection to {place} broke: {detail}"
    SHORT = "the reply of {place} ended early: {detail}"
    LONG = "the reply of {place} is longer than it may be: {detail}"
    ENDLESS = "the reply of {place} has no length, so its end cannot be checked"
    ENCODED = "{place} encoded the reply as {detail}, which nobody asked for; check `proxy`"
    CUT = "the request to {place} was cancelled"


UNSENT: Final = {
    Cause.UNRESOLVED: TryAgain,
    Cause.UNREACHABLE: TryAgain,
    Cause.SLOW_CONNECT: TryAgain,
    Cause.NO_PROXY: TryAgain,
    Cause.TLS: StoreDenied,
    Cause.PROXY_TLS: StoreDenied,
    Cause.PROXY_REFUSES: StoreDenied,
}
"""The errors before the first byte of a request. After any other error the request may have arrived."""


class ExchangeError(Exception):
    """The error if an exchange has no complete reply. Its cause, if there is one, is the socket's error."""

    def __init__(self, why: Cause, place: str, detail: str = "") -> None:
        super().__init__(why, place, detail)
        self.why: Final = why
        self.place: Final = place
        self.detail: Final = detail

    def __str__(self) -> str:
        detail = self.detail
        if self.why is Cause.TLS and isinstance(self.__cause__, ssl.SSLError):
            detail = refusal_of(self.__cause__, self.place)
        # It may quote the server, whose control characters could change what a terminal shows.
        shown = "".join(each if each.isprintable() else "?" for each in " ".join(detail.split()))
        said = self.why.value.format(place=self.place, detail=shown[:400])
        if self.why is Cause.CLOSED and self.place.startswith("http:"):
            said += "; does the server want https:// in `endpoint_url`?"
        return said


def meaning_of(exc: ExchangeError, said: str, lost: Callable[[str], OffloadError]) -> OffloadError:
    """Return the port's error. `lost` makes the error of a request that may have been applied."""
    return UNSENT.get(exc.why, lost)(f"{said}: {exc}")
