"""Contexts of TLS, and the diagnosis of a failed handshake."""

from __future__ import annotations

import ssl

from offload.ground.errors import Misuse

__all__ = ["refusal_of", "trusting"]


def trusting(verify: bool | str, *, backend: str) -> ssl.SSLContext:
    """Return a context that trusts the system's authorities (True), those of a file, or any server (False).

    Raises `Misuse` if the file holds no readable certificates.
    """
    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except OSError as exc:
        raise Misuse(f"{backend}: option 'verify': {verify!r} holds no readable certificates") from exc
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


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
