"""Conclude from a failed TLS handshake what is wrong with the server or the URL."""

from __future__ import annotations

import ssl

__all__ = ["hung_up"]


def hung_up(exc: object) -> bool:
    """Whether the server closed the connection during the handshake, as one does that is being stopped.

    The next attempt may succeed, unlike after a handshake that the server or we refused.
    """
    return isinstance(getattr(exc, "os_error", None), ssl.SSLEOFError | ssl.SSLZeroReturnError)
