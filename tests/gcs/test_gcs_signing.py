"""Signed reads of GCS: keys of service accounts sign them without a request, and nothing else signs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from offload_gcs.options import GcsOptions
from offload_gcs.store import GcsStore

from offload.contracts.signing import SignedReads
from offload.ground.errors import Misuse

WEEK = 7 * 24 * 3600


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test whose program opens a connection."""

    def connect(*arguments: object) -> None:
        raise AssertionError(f"a connection was opened: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture(scope="module")
def account() -> dict[str, str]:
    """Return the key of a service account, as Google's console gives it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": "reader@project.iam.gserviceaccount.com",
        "private_key": key.decode(),
        "token_uri": "https://oauth2.googleapis.com/token",
    }


def signed(keys: Sequence[str], *, seconds: int, **options: Any) -> SignedReads:
    """Return signed reads of a bucket with these options."""

    async def sign() -> SignedReads:
        store = GcsStore(bucket="bucket", options=GcsOptions(**options))
        try:
            return await store.signed_reads(keys, seconds=seconds)
        finally:
            await store.aclose()

    return asyncio.run(sign())


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:4443"])
def test_a_key_of_a_service_account_signs_each_read_at_the_endpoint(
    account: dict[str, str], endpoint: str | None
) -> None:
    keys = ["a b+ü~/50%.fragment", "offload.json"]

    reads = signed(keys, seconds=77, token=json.dumps(account), endpoint_url=endpoint)

    for url, key in zip(reads.urls, keys, strict=True):
        place, asked = url.partition("?")[0], parse_qs(urlsplit(url).query)
        assert place == f"{endpoint or 'https://storage.googleapis.com'}/bucket/{quote(key, safe='/~')}"
        assert asked["X-Goog-Algorithm"] == ["GOOG4-RSA-SHA256"]
        assert asked["X-Goog-Credential"][0].startswith(f"{account['client_email']}/")
        assert asked["X-Goog-SignedHeaders"] == ["host"]
        assert len(bytes.fromhex(asked["X-Goog-Signature"][0])) == 256


@pytest.mark.parametrize(("asked", "given"), [(77, 77), (WEEK + 1, WEEK)])
def test_no_read_ends_before_the_moment_that_is_told(account: dict[str, str], asked: int, given: int) -> None:
    reads = signed(["key"], seconds=asked, token=json.dumps(account))

    query = parse_qs(urlsplit(reads.urls[0]).query)
    begun = datetime.strptime(query["X-Goog-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert query["X-Goog-Expires"] == [str(given)]
    assert reads.seconds == given
    assert reads.expires_ms <= (begun.timestamp() + given) * 1000


def test_credentials_that_sign_by_a_request_are_not_used(
    account: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Impersonated credentials ask Google for each signature."""
    url = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/x@y.z:generateAccessToken"
    impersonated = {
        "type": "impersonated_service_account",
        "service_account_impersonation_url": url,
        "source_credentials": account,
    }
    (tmp_path / "key.json").write_text(json.dumps(impersonated))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))

    with pytest.raises(Misuse, match="because of credentials that are no key of a service account"):
        signed(["key"], seconds=60)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"token": "ya29.an-access-token"}, "credentials that are no key of a service account"),
        ({"anonymous": True, "proxy": "http://127.0.0.1:1"}, "a proxy"),
        ({"anonymous": True, "verify": False}, "option 'verify'"),
        ({"anonymous": True, "user_project": "other"}, "option 'user_project'"),
    ],
)
def test_what_a_plain_get_cannot_do_is_not_signed(options: dict[str, Any], why: str) -> None:
    with pytest.raises(Misuse, match=f"reads are not signed, because of {why}"):
        signed(["key"], seconds=60, **options)
