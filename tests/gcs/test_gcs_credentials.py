"""Tests of credentials: where they are found, how they are renewed, and the error if there are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cloud.gcs import OF_BYTES, of_store
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from offload_gcs import GcsStore
from wire import Answer, Heard, Wire, wire

from offload import Denied, OffloadError, TryAgain

TOKENS = "/token"
Grant = Callable[[int], Answer]


class Google:
    """A token server and a store in one. `grant` answers the n-th request for a token."""

    def __init__(self) -> None:
        self.asked = 0
        self.grant: Grant = lambda n: granted(f"ya29.HUSH-{n}")

    def __call__(self, heard: Heard) -> Answer:
        if heard.path != TOKENS:
            return Answer(body=b"data", headers=OF_BYTES)
        self.asked += 1
        return self.grant(self.asked)


def granted(token: str, expires_in: int = 3600) -> Answer:
    body = {"access_token": token, "expires_in": expires_in, "token_type": "Bearer"}
    return Answer(body=json.dumps(body).encode(), headers={"Content-Type": "application/json"})


@pytest.fixture(scope="module")
def private_key() -> str:
    return (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        .private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        .decode()
    )


@pytest.fixture
def google() -> Google:
    return Google()


@pytest.fixture
def server(google: Google) -> Iterator[Wire]:
    with wire(google) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_credentials_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def key(private_key: str, server: Wire) -> dict[str, str]:
    """Return the key of a service account whose token server is the server of this test."""
    return {
        "type": "service_account",
        "project_id": "ours",
        "private_key_id": "1",
        "private_key": private_key,
        "client_email": "tier@ours.iam.gserviceaccount.com",
        "token_uri": server.url + TOKENS,
    }


@pytest.fixture
def key_file(key: dict[str, str], tmp_path: Path) -> str:
    (tmp_path / "key").write_text(json.dumps(key))
    return str(tmp_path / "key")


def get(server: Wire, *, times: int = 1, **options: Any) -> None:
    async def call(store: GcsStore) -> None:
        for _ in range(times):
            assert await store.get("key") == b"data"

    of_store(server.url, call, **{"token": None} | options)


def error_of(server: Wire, **options: Any) -> OffloadError:
    with pytest.raises(OffloadError) as caught:
        get(server, **options)
    assert "HUSH" not in str(caught.value)
    assert "PRIVATE KEY" not in str(caught.value)
    return caught.value


def shown(server: Wire) -> list[str]:
    """Return the credentials that the store received, by request."""
    return [heard.headers["authorization"] for heard in server.heard if heard.path != TOKENS]


def test_a_key_file_is_used(server: Wire, key_file: str) -> None:
    get(server, token=key_file)

    assert shown(server) == ["Bearer ya29.HUSH-1"]


def test_the_json_of_a_key_is_used(server: Wire, key: dict[str, str]) -> None:
    get(server, token=json.dumps(key))

    assert shown(server) == ["Bearer ya29.HUSH-1"]


def test_the_key_file_of_the_environment_is_used(
    server: Wire, key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key_file)

    get(server)
    get(server, token="google_default")

    assert shown(server) == ["Bearer ya29.HUSH-1", "Bearer ya29.HUSH-2"]


def test_the_login_of_a_person_in_a_file_is_refused(server: Wire, google: Google, tmp_path: Path) -> None:
    """gcloud writes such a file. The refusal needs no request to a token server."""
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "HUSH"}
    (tmp_path / "login").write_text(json.dumps(login))

    error = error_of(server, token=str(tmp_path / "login"))

    assert isinstance(error, Denied)
    assert "kind is not known" in str(error)


def test_a_token_may_be_longer_than_a_file_name(server: Wire) -> None:
    """Asking the file system for a file of this name fails."""
    get(server, token="ya29." + "x" * 2000)

    assert shown(server) == ["Bearer ya29." + "x" * 2000]


def test_an_access_token_is_sent_to_the_endpoint_alone(server: Wire) -> None:
    get(server, token="ya29.HUSH-own")

    assert [(heard.path, heard.headers["authorization"]) for heard in server.heard] == [
        ("/storage/v1/b/bucket/o/key", "Bearer ya29.HUSH-own")
    ]


def test_the_scope_is_reading_and_writing_only(server: Wire, key_file: str) -> None:
    import base64

    get(server, token=key_file)

    assertion = parse_qs(server.heard[0].body.decode())["assertion"][0].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(assertion + "=="))
    assert claims["scope"] == "https://www.googleapis.com/auth/devstorage.read_write"


def test_a_valid_token_is_requested_once(server: Wire, google: Google, key_file: str) -> None:
    get(server, token=key_file, times=3)

    assert google.asked == 1
    assert shown(server) == ["Bearer ya29.HUSH-1"] * 3


def test_a_token_is_renewed_before_it_expires(server: Wire, google: Google, key_file: str) -> None:
    google.grant = lambda n: granted(f"ya29.HUSH-{n}", expires_in=100)

    get(server, token=key_file, times=2)

    assert shown(server) == ["Bearer ya29.HUSH-1", "Bearer ya29.HUSH-2"]


def test_missing_credentials_are_denied_with_advice(server: Wire) -> None:
    error = error_of(server)

    assert isinstance(error, Denied)
    assert "gcloud auth application-default login" in str(error)
    assert "anonymous=true" in str(error)
    assert server.heard == []


def test_revoked_credentials_are_denied(server: Wire, google: Google, key_file: str) -> None:
    google.grant = lambda n: Answer(400, b'{"error": "invalid_grant", "error_description": "revoked"}')

    error = error_of(server, token=key_file)

    assert isinstance(error, Denied)
    assert "could not be renewed" in str(error)
    assert shown(server) == []


def test_an_absent_token_server_may_be_tried_again(server: Wire, key: dict[str, str]) -> None:
    error = error_of(server, token=json.dumps(key | {"token_uri": "http://127.0.0.1:1/token"}))

    assert type(error) is TryAgain
    assert shown(server) == []


@pytest.mark.parametrize("content", ["no json HUSH", '{"type": "HUSH"}', "[1]", ""])
def test_a_file_without_a_key_is_refused(server: Wire, tmp_path: Path, content: str) -> None:
    (tmp_path / "key.json").write_text(content)

    assert isinstance(error_of(server, token=str(tmp_path / "key.json")), Denied)


def test_credentials_of_another_project_are_refused(server: Wire, key_file: str) -> None:
    """The option `project` guards against the wrong login."""
    error = error_of(server, token=key_file, project="theirs")
    get(server, token=key_file, project="ours")

    assert isinstance(error, Denied)
    assert "'ours'" in str(error)
    assert len(shown(server)) == 1


def test_anonymous_by_either_name_asks_for_no_token(server: Wire, google: Google) -> None:
    get(server, anonymous=True)
    get(server, token="anon")

    assert google.asked == 0
    assert all("authorization" not in heard.headers for heard in server.heard)
