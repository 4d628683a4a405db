"""Tests of the byte transport on S3: what goes by it, signed by the same session as all other requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cloud.calls import DIGITS, Call, create, get, put, upload
from cloud.s3 import NO_LOGIN, answers, error_of, of_store, refusal
from wire import Answer, Heard, Wire, wire

from offload import ObjectStore, OutcomeUnknown, StoreDenied, TryAgain

DIRECT = {"client": "direct"}
UNSIGNED = "UNSIGNED-PAYLOAD"


@pytest.fixture
def s3() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


def test_only_puts_and_parts_leave_their_payload_to_the_checksum(s3: Wire) -> None:
    """A create is small, and decides commits: the signature covers its bytes too."""
    for call in (put, upload, create):
        of_store(s3.url, call, **DIRECT)

    sent = [heard for heard in s3.heard if heard.method == "PUT"]
    assert [heard.headers["x-amz-content-sha256"] == UNSIGNED for heard in sent] == [True, True, False]
    for heard in sent:
        assert heard.headers["x-amz-checksum-crc32c"]
        assert "x-amz-checksum-crc32c" in heard.headers["authorization"]  # among the signed headers
        assert "content-md5" not in heard.headers


def test_the_profile_gives_the_credentials(s3: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile names a program here, as companies do."""
    said = '{"Version": 1, "AccessKeyId": "FROMPROGRAM", "SecretAccessKey": "HUSH", "SessionToken": "T"}'
    (tmp_path / "said").write_text(said)
    (tmp_path / "config").write_text(f"[profile company]\ncredential_process = cat {tmp_path}/said\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    of_store(s3.url, put, **DIRECT, **NO_LOGIN, profile="company")

    [heard] = s3.heard
    assert "FROMPROGRAM" in heard.headers["authorization"]


def test_missing_credentials_are_denied_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    error = error_of("http://127.0.0.1:1", get, **DIRECT, **NO_LOGIN)

    assert type(error) is StoreDenied
    assert "no credentials found" in str(error)


def test_a_request_for_another_region_is_repeated_there_once() -> None:
    def elsewhere(heard: Heard) -> Answer:
        if "/eu-west-3/" in heard.headers["authorization"]:
            return answers(heard)
        return refusal("AuthorizationHeaderMalformed", 400, "<Region>eu-west-3</Region>")

    async def put_and_read(store: ObjectStore) -> bytes:
        await put(store)
        return await get(store)

    with wire(elsewhere) as server:
        assert of_store(server.url, put_and_read, **DIRECT) == DIGITS

    assert [heard.method for heard in server.heard] == ["PUT", "PUT", "GET"]


@pytest.mark.parametrize("call", [put, get])
def test_a_web_page_is_no_object(call: Call) -> None:
    with wire(lambda heard: Answer(200, b"welcome")) as server:
        error = error_of(server.url, call, **DIRECT)

    assert type(error) is (TryAgain if call is get else OutcomeUnknown)
