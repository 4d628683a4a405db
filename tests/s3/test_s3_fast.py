"""Tests of fragments by obstore: which calls and options it takes, and which the client behind it takes."""

from __future__ import annotations

import asyncio
import base64
import pickle
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import RefreshableCredentials
from certificates import certificate, served
from cloud.calls import DIGITS, Call, create, get, put, upload
from cloud.s3 import LOGIN, answers, error_of, of_store, refusal
from offload_cloud.fast import FastStore
from offload_s3 import S3Options, S3Store
from offload_s3.fast import _credentials, why_not_fast
from offload_s3.url import open_bucket
from wire import ANSWER_SECONDS_MAX, Answer, Heard, Wire, wire

from offload import (
    Body,
    Misuse,
    ObjectStore,
    OffloadError,
    OutcomeUnknown,
    StoreDenied,
    Throttled,
    TryAgain,
)
from offload.extras import install_command

FAST = {"client": "obstore"}
KEY_OF_32_BYTES = base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def s3() -> Iterator[Wire]:
    with wire(answers) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)


def by_obstore(heard: Heard) -> bool:
    return heard.headers["user-agent"].startswith("object_store/")


def open_fast(**options: Any) -> ObjectStore:
    return open_bucket(
        "bucket", S3Options.of(FAST | LOGIN | {"endpoint_url": "http://127.0.0.1:1"} | options)
    )


# Which client sends a call


def test_only_whole_puts_and_reads_go_by_obstore(s3: Wire) -> None:
    for call in (put, get, create, upload):
        of_store(s3.url, call, **FAST)
    of_store(s3.url, lambda store: store.delete(["a"]), **FAST)

    assert [by_obstore(heard) for heard in s3.heard] == [True, True, *[False] * 5]


def test_the_client_behind_stores_a_large_object_in_parts(s3: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload_cloud.fast.PUT_SIZE_BYTES_MAX", len(DIGITS) - 1)

    of_store(s3.url, put, **FAST)

    assert [by_obstore(heard) for heard in s3.heard] == [False]


def test_auto_chooses_obstore(s3: Wire) -> None:
    for client in ("auto", "obstore", "fsspec"):
        of_store(s3.url, put, client=client)

    assert [by_obstore(heard) for heard in s3.heard] == [True, True, False]


@pytest.mark.parametrize("name", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
@pytest.mark.parametrize("elsewhere", ["http://127.0.0.1:1", ""])
def test_obstore_prefers_the_endpoint_of_the_option(
    s3: Wire, monkeypatch: pytest.MonkeyPatch, name: str, elsewhere: str
) -> None:
    monkeypatch.setenv(name, elsewhere)

    for call in (put, get):
        of_store(s3.url, call, **FAST)

    assert [by_obstore(heard) for heard in s3.heard] == [True, True]


def test_authorities_from_a_file_keep_obstore_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Obstore would trust the system's authorities too."""
    made = certificate(tmp_path)

    with wire(answers, tls=served(made)) as server:
        of_store(server.url, put, client="auto", verify=str(made.path))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(made.path))
        of_store(server.url, put, client="auto")

        assert "authorities" in str(error_of(server.url, put, **FAST))

    assert [by_obstore(heard) for heard in server.heard] == [False, False]
    with pytest.raises(Misuse, match="verify"):
        open_fast(verify=str(made.path))


CAN: dict[str, Any] = {
    "client": "auto",
    "endpoint_url": "https://host",
    "region": "r",
    "profile": "p",
    "key": "k",
    "secret": "s",
    "token": "t",
    "anonymous": True,
    "addressing": "virtual",
    "requester_pays": True,
    "verify": False,
    "proxy": "http://u:p@h",
    "connect_timeout_seconds": 1,
    "read_timeout_seconds": 1,
    "connections_max": 1,
    "sse": "aws:kms",
    "sse_kms_key_id": "k",
    "sse_bucket_key": True,
    "sse_c_key": KEY_OF_32_BYTES,
    "storage_class": "STANDARD_IA",
    "tags": "a=b",
    "metadata": "a=b",
    "part_size_bytes": 5 * 2**20,
}
WITH: dict[str, dict[str, Any]] = {
    "key": {"secret": "s"},
    "secret": {"key": "k"},
    "token": {"key": "k", "secret": "s"},
    "sse_kms_key_id": {"sse": "aws:kms"},
    "sse_bucket_key": {"sse": "aws:kms"},
}


@pytest.mark.parametrize("name", S3Options.model_fields)
def test_every_option_is_known_to_work_with_obstore_or_not(name: str) -> None:
    """A new option fails here until it is in this table. Add it after a test of its header."""
    assert why_not_fast(S3Options.of({name: CAN[name]} | WITH.get(name, {}))) is None


def test_a_store_works_without_obstore_installed(s3: Wire, tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
sys.modules["obstore"] = None
from offload import Body, Misuse
from offload_s3.url import open_url
options = {LOGIN | {"endpoint_url": s3.url}!r}
async def main():
    store = open_url("s3://bucket", options=options)
    await store.put("a/key", Body.of(b"x"))
    print(await store.get("a/key"))
    await store.aclose()
asyncio.run(main())
try:
    open_url("s3://bucket", options=options | {{"client": "obstore"}})
except Misuse as error:
    print(error)
"""

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)

    assert ran.stdout.splitlines()[0] == repr(DIGITS), ran.stderr
    assert install_command("ledger-offload[fast]") in ran.stdout
    assert not any(by_obstore(heard) for heard in s3.heard)


# Options on the wire


def test_reads_carry_the_callers_key_and_agree_to_pay(s3: Wire) -> None:
    of_store(s3.url, get, **FAST, sse_c_key=KEY_OF_32_BYTES, requester_pays=True)

    [heard] = s3.heard
    assert heard.headers["x-amz-server-side-encryption-customer-key"] == KEY_OF_32_BYTES
    assert heard.headers["x-amz-request-payer"] == "requester"


def test_the_payload_is_signed_unless_tls_protects_it(s3: Wire, tmp_path: Path) -> None:
    of_store(s3.url, put, **FAST)
    with wire(answers, tls=served(certificate(tmp_path))) as server:
        of_store(server.url, put, **FAST, verify=False)

    [plain], [secure] = s3.heard, server.heard
    assert len(plain.headers["x-amz-content-sha256"]) == 64
    assert secure.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert by_obstore(plain)
    assert by_obstore(secure)


# Credentials


def test_the_profile_gives_the_credentials(s3: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile names a program here, as companies do."""
    said = '{"Version": 1, "AccessKeyId": "FROMPROGRAM", "SecretAccessKey": "HUSH", "SessionToken": "T"}'
    (tmp_path / "said").write_text(said)
    (tmp_path / "config").write_text(f"[profile company]\ncredential_process = cat {tmp_path}/said\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    of_store(s3.url, put, **FAST, key=None, secret=None, token=None, profile="company")

    assert [by_obstore(heard) and "FROMPROGRAM" in heard.headers["authorization"] for heard in s3.heard] == [
        True
    ]


def test_temporary_credentials_have_an_expiry() -> None:
    class _Frozen:
        access_key, secret_key, token = "A", "HUSH", "T"

    class Renewed(RefreshableCredentials):
        def __init__(self) -> None:
            """Skip the first fetch."""

        async def get_frozen_credentials(self) -> Any:
            return _Frozen()

    class Session:
        async def get_credentials(self) -> Any:
            return found

    found = Renewed()
    given = asyncio.run(_credentials(S3Options(), Session())())

    assert given["expires_at"] is not None
    assert timedelta(minutes=9) < given["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)


def test_missing_credentials_are_denied_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    error = error_of("http://127.0.0.1:1", get, **FAST, key=None, secret=None, token=None)

    assert type(error) is StoreDenied
    assert "no credentials found" in str(error)


def test_secrets_are_in_no_text_and_in_no_pickle() -> None:
    store = open_fast(proxy="http://user:HUSH@127.0.0.1:1")

    async def main() -> BaseException:
        try:
            with pytest.raises(OffloadError) as caught:
                await store.get("key")
        finally:
            await store.aclose()
        return caught.value

    error = asyncio.run(main())
    assert "HUSH" not in repr(store) + "".join(traceback.format_exception(error))
    assert b"HUSH" not in pickle.dumps(error)
    with pytest.raises(TypeError):
        pickle.dumps(store)


# One call is one request, and errors are the same


def test_the_client_behind_repeats_a_put_that_needs_a_checksum() -> None:
    """S3 refuses puts without one in buckets with an object lock. Its code has other meanings too."""
    wanted = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests"

    def locked(heard: Heard) -> Answer:
        if "x-amz-checksum-crc32c" in heard.headers:
            return answers(heard)
        return refusal("InvalidRequest", 400, f"<Message>{wanted}</Message>")

    with wire(locked) as server:
        of_store(server.url, put, **FAST)

    assert [by_obstore(heard) for heard in server.heard] == [True, False]


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_an_error_without_a_body_is_classified_by_its_status(status: int) -> None:
    with wire(lambda heard: Answer(status)) as server:
        error = error_of(server.url, put, **FAST)

    assert type(error) is (OutcomeUnknown if status in {500, 502} else Throttled)
    assert len(server.heard) == 1


def test_the_client_behind_reports_an_untrusted_certificate(tmp_path: Path) -> None:
    with wire(answers, tls=served(certificate(tmp_path))) as server:
        error = error_of(server.url, put, **FAST)

    assert type(error) is StoreDenied
    assert "not trusted" in str(error)


def test_the_client_behind_finds_a_bucket_of_another_region() -> None:
    def elsewhere(heard: Heard) -> Answer:
        if "/eu-west-3/" in heard.headers["authorization"]:
            return answers(heard)
        return refusal("AuthorizationHeaderMalformed", 400, "<Region>eu-west-3</Region>")

    async def twice(store: ObjectStore) -> None:
        await put(store)
        await put(store)

    with wire(elsewhere) as server:
        of_store(server.url, twice, **FAST)

    assert [by_obstore(heard) for heard in server.heard] == [True, False, False, False]


# Replies


@pytest.mark.parametrize("call", [put, get])
def test_a_web_page_is_no_object(call: Call) -> None:
    with wire(lambda heard: Answer(200, b"welcome")) as server:
        assert type(error_of(server.url, call, **FAST)) is (TryAgain if call is get else OutcomeUnknown)


# Time


def test_a_put_may_take_longer_than_a_reply(tmp_path: Path) -> None:
    """The timeout for replies does not count the time in which the body is sent."""
    size_bytes = 8 * 2**20

    async def put_large(store: ObjectStore) -> None:
        await store.put("key", Body.of(bytes(size_bytes)))

    with slow_server(size_bytes, seconds=1.5) as url:
        of_store(url, put_large, **FAST, read_timeout_seconds=0.3)


def test_a_put_after_one_that_was_too_slow_is_sent_by_fsspec() -> None:
    first_is_over = threading.Event()

    def late_at_first(heard: Heard) -> Answer:
        if by_obstore(heard):
            first_is_over.wait(ANSWER_SECONDS_MAX)
        return answers(heard)

    async def twice(store: ObjectStore) -> None:
        with pytest.raises(OutcomeUnknown, match="took longer than"):
            await put(store)
        first_is_over.set()
        await put(store)

    with wire(late_at_first) as server:
        of_store(server.url, twice, **FAST, read_timeout_seconds=0.5)

    assert [by_obstore(heard) for heard in server.heard] == [True, False]


class slow_server:  # noqa: N801 - reads as a function
    """A server that reads `size_bytes`, the first of them slowly, and answers one request."""

    def __init__(self, size_bytes: int, *, seconds: float) -> None:
        self.size_bytes, self.seconds = size_bytes, seconds
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        connection, _ = self.listening.accept()
        with connection, suppress(OSError):
            taken, end, data = 0, time.monotonic() + self.seconds, b"first"
            while data and taken < self.size_bytes:
                data = connection.recv(2**16)
                taken += len(data)
                time.sleep(0.05 if time.monotonic() < end else 0)
            connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')
            connection.shutdown(socket.SHUT_WR)

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"

    def __exit__(self, *exc: object) -> None:
        self.thread.join()
        self.listening.close()


def test_a_cancelled_call_leaves_a_store_that_works() -> None:
    asked, cancelled = threading.Semaphore(0), threading.Event()

    def slowly(heard: Heard) -> Answer:
        asked.release()
        cancelled.wait(ANSWER_SECONDS_MAX)
        return answers(heard)

    async def cancelled_then_read(store: ObjectStore) -> bytes:
        for call in (put, get):
            task = asyncio.create_task(call(store))  # type: ignore[arg-type]
            await asyncio.to_thread(asked.acquire)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        cancelled.set()
        return await store.get("a/key")

    with wire(slowly) as server:
        assert of_store(server.url, cancelled_then_read, **FAST) == DIGITS


def test_a_store_may_be_closed_twice_and_opened_again(s3: Wire) -> None:
    async def again(store: ObjectStore) -> bytes:
        await put(store)
        await store.aclose()
        await store.aclose()
        return await store.get("a/key")

    assert of_store(s3.url, again, **FAST) == DIGITS


def test_the_stores_say_what_they_are() -> None:
    store = open_fast()

    assert isinstance(store, FastStore)
    assert isinstance(store.inner, S3Store)
    assert store.url == "s3://bucket"
    assert store.capabilities.server_checksum is None
