"""Pre-signed reads of a bucket: URLs that the SDK signs with the store's credentials (SigV4).

No request is needed for it, except to renew credentials.

Invariant: a URL is valid no longer than the credentials that signed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from aiobotocore.session import AioSession
from offload_cloud.options import shown
from offload_cloud.proxies import proxy_for

from offload.contracts.signing import SignedReads
from offload.ground.errors import Denied, Misuse

if TYPE_CHECKING:
    from offload_s3.store import S3Store

__all__ = ["refuse_to_sign", "signed_by"]

SECONDS_MAX: Final = 7 * 24 * 3600
"""The longest life of a signed request on S3."""


def refuse_to_sign(store: S3Store) -> None:
    """Raise `Misuse` if a plain GET of a URL cannot do what the options say."""
    options = store.options
    address = options.endpoint_url or "https://s3.amazonaws.com"
    reasons = {
        "option 'anonymous'": options.anonymous,
        "a proxy": proxy_for(address, shown(options.proxy), backend="s3") is not None,
        "option 'verify'": options.verify is not True,
        "option 'sse_c_key'": options.sse_c_key is not None,
        "option 'requester_pays'": options.requester_pays,
    }
    for reason in (name for name, holds in reasons.items() if holds):
        raise Misuse(f"{store.url}: reads are not signed, because of {reason}")


async def signed_by(
    client: Any,
    session: AioSession | None,
    objects: Sequence[Mapping[str, str]],
    *,
    seconds: int,
    stall_seconds: float,
    now_ms: Callable[[], int],
) -> SignedReads:
    """Return signed reads of these objects. `session` is None if an option gives the credentials.

    Raises `Denied` if the credentials have ended, and the SDK's errors.
    """
    # By default the SDK signs URLs by version 2, which AWS accepts in few regions.
    client.meta.events.register_first("choose-signer.s3", _version_4, unique_id="offload-sign")
    seconds = min(seconds, SECONDS_MAX)
    if session is not None and (left := await _seconds_left(session, now_ms)) is not None:
        seconds = min(seconds, left)
    if seconds < 1:
        raise Denied("the credentials have ended, so no read can be signed: renew them")
    begun_ms = now_ms()
    urls = [
        await client.generate_presigned_url("get_object", Params={**each}, ExpiresIn=seconds)
        for each in objects
    ]
    expires_ms = begun_ms + seconds * 1000
    return SignedReads(urls=urls, seconds=seconds, expires_ms=expires_ms, stall_seconds=stall_seconds)


async def _seconds_left(session: AioSession, now_ms: Callable[[], int]) -> int | None:
    """Return for how long the credentials are valid; None if they do not expire, or if nobody knows when.

    The SDK renews credentials that it found itself, and then knows when they expire.
    """
    credentials = await session.get_credentials()
    if credentials is None:
        return None
    try:
        await credentials.get_frozen_credentials()  # renews them if they end soon
    except RuntimeError:  # those that the SDK got instead have ended too
        return 0
    expires = getattr(credentials, "_expiry_time", None)
    return None if expires is None else int(expires.timestamp() - now_ms() / 1000)


def _version_4(signature_version: Any, **_event: Any) -> str | None:
    """Return the signature of URLs; None for requests that are sent, and for those of several regions."""
    is_of_url = isinstance(signature_version, str) and signature_version.endswith("-query")
    return "s3v4-query" if is_of_url and not signature_version.startswith("v4a") else None
