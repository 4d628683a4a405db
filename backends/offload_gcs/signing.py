"""Signed reads of a bucket: URLs that Google's library signs (V4) with the key of a service account.

It needs a client for them, which is anonymous here and sends no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from google.cloud.storage import Client
from google.oauth2.service_account import Credentials

__all__ = ["SECONDS_MAX", "signed_urls", "signs_alone"]

SECONDS_MAX: Final = 7 * 24 * 3600
"""The longest life of a signed request."""


def signs_alone(credentials: object) -> bool:
    """Return whether these credentials sign without a request, as only the key of a service account does.

    Impersonated credentials sign too, but each signature is a request to Google.
    """
    return isinstance(credentials, Credentials)


def signed_urls(
    bucket: str, keys: Sequence[str], *, credentials: Credentials, endpoint: str, seconds: int
) -> list[str]:
    """Return a URL for each key that reads this object of `bucket`, valid for `seconds` from now."""
    place = Client.create_anonymous_client().bucket(bucket)
    return [
        place.blob(key).generate_signed_url(
            version="v4",
            expiration=timedelta(seconds=seconds),
            credentials=credentials,
            api_access_endpoint=endpoint,
        )
        for key in keys
    ]
