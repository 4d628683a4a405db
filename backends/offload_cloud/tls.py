"""Contexts of TLS, and the diagnosis of a failed handshake: a server that is stopping, or a wrong URL."""

from __future__ import annotations

import ssl

__all__ = ["hung_up", "refusal_of", "trusting"]


def trusting(verify: bool | str) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities (True), those of a file, or any server (False).

    Raises `OSError` if the file holds no readable certificates.
    """
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def hung_up(exc: object) -> bool:
    """Return True if the server closed the connection during the handshake, as a stopping server does.

    The next attempt may succeed. After a handshake that either side refused, it cannot.
    """
    return isinstance(getattr(exc, "os_error", None), ssl.SSLEOFError | ssl.SSLZeroReturnError)


def refusal_of(
    failure: BaseException | None, place: str, *, if_misnamed: str = "use that in `endpoint_url`"
) -> str:
    """Return what is wrong after a handshake that either side refused, and what to change.

    `if_misnamed` says what to change if the certificate is for another name.
    """
    text = getattr(failure, "verify_message", "") or getattr(failure, "reason", "") or ""
    match failure:
        case ssl.SSLCertVerificationError(verify_code=10):
            return f"the TLS certificate of {place} has expired; its owner must renew it"
        case ssl.SSLCertVerificationError(verify_code=9):
            return f"the TLS certificate of {place} is not valid yet; check this machine's clock"
        case ssl.SSLCertVerificationError(verify_code=62 | 64):
            return f"the TLS certificate of {place} is for another name; {if_misnamed}"
        case ssl.SSLCertVerificationError():
            return (
                f"the TLS certificate of {place} is not trusted ({text}); "
                "name the file of its authority by `verify`"
            )
    return f"{place} speaks no TLS that we understand ({text}); is it http:// in `endpoint_url`?"
