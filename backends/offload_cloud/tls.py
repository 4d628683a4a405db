"""What a failed TLS handshake says about the server."""

from __future__ import annotations

import ssl


def hung_up(exc: object) -> bool:
    """Whether the server closed the connection during the handshake, as one does that is being stopped.

    The next attempt may succeed, unlike after a handshake that the server or we refused.
    """
    return isinstance(getattr(exc, "os_error", None), ssl.SSLEOFError | ssl.SSLZeroReturnError)
