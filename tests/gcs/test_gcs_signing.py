"""Signed reads of GCS are those that Google's own library signs, and need a service account's key."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.cloud.storage._signing import generate_signed_url_v4
from google.oauth2.service_account import Credentials
from offload_gcs.options import GcsOptions
from offload_gcs.signing import signed_url
from offload_gcs.store import GcsStore

from offload.errors import Misuse

ENDPOINT = "https://storage.googleapis.com"


def test_a_signed_read_is_that_of_googles_library() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = Credentials.from_service_account_info(
        {
            "client_email": "reader@project.iam.gserviceaccount.com",
            "private_key": key.decode(),
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )
    now, name = datetime.now(UTC), "bucket/a b+ü~/50%.fragment"

    assert signed_url(
        ENDPOINT, name, email=account.signer_email, sign=account.sign_bytes, seconds=77, now=now
    ) == generate_signed_url_v4(
        account,
        resource="/" + quote(name, safe="/~"),
        expiration=timedelta(seconds=77),
        api_access_endpoint=ENDPOINT,
        _request_timestamp=now.strftime("%Y%m%dT%H%M%SZ"),
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"token": "ya29.an-access-token"}, "credentials that are no key of a service account"),
        ({"anonymous": True, "proxy": "http://127.0.0.1:1"}, "a proxy"),
        ({"anonymous": True, "verify": False}, "option 'verify'"),
        ({"anonymous": True, "user_project": "other"}, "option 'user_project'"),
    ],
)
def test_what_a_plain_get_cannot_do_is_not_signed(options: dict[str, object], why: str) -> None:
    async def sign() -> None:
        store = GcsStore(bucket="bucket", options=GcsOptions(**options))  # type: ignore[arg-type]  # any options
        try:
            await store.signed_reads(["key"], seconds=60)
        finally:
            await store.aclose()

    with pytest.raises(Misuse, match=f"reads are not signed, because of {why}"):
        asyncio.run(sign())
