"""Signed reads of a bucket: signed by version 4, and valid no longer than temporary credentials."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiobotocore.credentials import AioRefreshableCredentials
from aiobotocore.session import AioSession
from offload_s3.options import S3Options
from offload_s3.store import S3Store

from offload.contracts.signing import SignedReads
from offload.ground.errors import Denied, Misuse


def signed(options: dict[str, Any], *, seconds: int = 3600) -> SignedReads:
    async def sign() -> SignedReads:
        store = S3Store(bucket="bucket", options=S3Options(**options))
        try:
            return await store.signed_reads(["orders/a b"], seconds=seconds)
        finally:
            await store.aclose()

    return asyncio.run(sign())


def role(monkeypatch: pytest.MonkeyPatch, *, ends_in: int) -> None:
    """Let the SDK find the credentials of a role, which end in so many seconds."""
    metadata = {
        "access_key": "key",
        "secret_key": "secret",
        "token": "token",
        "expiry_time": (datetime.now(UTC) + timedelta(seconds=ends_in)).isoformat(),
    }

    async def renew() -> dict[str, str]:
        return metadata

    async def get_credentials(_: AioSession) -> AioRefreshableCredentials:
        return AioRefreshableCredentials.create_from_metadata(metadata, renew, "role")

    monkeypatch.setattr(AioSession, "get_credentials", get_credentials)


def test_a_read_is_signed_by_version_4_for_the_time_that_was_asked_for() -> None:
    found = signed({"key": "key", "secret": "secret", "region": "eu-west-1"})

    [url] = found.urls
    query = parse_qs(urlsplit(url).query)
    assert urlsplit(url).path.endswith("/orders/a%20b")
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert query["X-Amz-Credential"][0].split("/")[2:] == ["eu-west-1", "s3", "aws4_request"]
    assert query["X-Amz-SignedHeaders"] == ["host"]
    assert query["X-Amz-Expires"] == ["3600"]


def test_a_read_is_valid_for_seven_days_at_most() -> None:
    assert signed({"key": "key", "secret": "secret"}, seconds=10**7).seconds == 7 * 24 * 3600


def test_a_read_is_valid_no_longer_than_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    role(monkeypatch, ends_in=3000)

    found = signed({}, seconds=3600)

    assert 2000 < found.seconds <= 3000
    assert parse_qs(urlsplit(found.urls[0]).query)["X-Amz-Security-Token"] == ["token"]
    assert abs(found.expires_ms / 1000 - datetime.now(UTC).timestamp() - found.seconds) < 1000


def test_credentials_that_have_ended_sign_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    role(monkeypatch, ends_in=-5)

    with pytest.raises(Denied, match="the credentials have ended"):
        signed({})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"anonymous": True}, "anonymous"),
        ({"proxy": "http://127.0.0.1:1"}, "a proxy"),
        ({"verify": False}, "verify"),
        ({"requester_pays": True}, "requester_pays"),
        ({"sse_c_key": "A" * 43 + "="}, "sse_c_key"),
    ],
)
def test_what_a_plain_get_cannot_do_is_not_signed(options: dict[str, Any], why: str) -> None:
    given = {} if options.get("anonymous") else {"key": "one", "secret": "other"}

    with pytest.raises(Misuse, match=f"reads are not signed, because of .*{why}"):
        signed(options | given)
