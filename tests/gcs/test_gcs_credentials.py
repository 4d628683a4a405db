"""Where credentials come from, how they are renewed, and what is said when there are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from offload_gcs import GcsOptions, GcsStore
from wire import Answer, Heard, Wire, wire

from offload import Denied, OffloadError, TryAgain

TOKENS = "/token"
Grant = Callable[[int], Answer]


class Google:
    """A token server and a store in one. `grant` answers the n-th question for a token."""

    def __init__(self) -> None:
        self.asked = 0
        self.grant: Grant = lambda n: granted(f"ya29.HUSH-{n}")

    def __call__(self, heard: Heard) -> Answer:
        if heard.path != TOKENS:
            return Answer(body=b"data")
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
    """The key of a service account whose tokens come from the server of this test."""
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
    async def main() -> None:
        store = GcsStore(bucket="bucket", options=GcsOptions.of({"endpoint_url": server.url} | options))
        try:
            for _ in range(times):
                assert await store.get("key") == b"data"
        finally:
            await store.aclose()

    asyncio.run(main())


def error_of(server: Wire, **options: Any) -> OffloadError:
    with pytest.raises(OffloadError) as caught:
        get(server, **options)
    assert "HUSH" not in str(caught.value)
    assert "PRIVATE KEY" not in str(caught.value)
    return caught.value


def shown(server: Wire) -> list[str]:
    """The credentials that the store was shown, request by request."""
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


def test_a_login_of_a_person_is_used(server: Wire, google: Google, tmp_path: Path) -> None:
    """As gcloud writes it. gcsfs knows one place for its tokens, so none is asked for here: it is refused."""
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "HUSH"}
    (tmp_path / "login").write_text(json.dumps(login))

    error = error_of(server, token=str(tmp_path / "login"))

    assert isinstance(error, Denied)
    assert "no kind that is known" in str(error)


def test_a_token_longer_than_any_files_name_is_a_token(server: Wire) -> None:
    """Some are; whether a file is meant must not be asked in a way that fails on them."""
    get(server, token="ya29." + "x" * 2000)

    assert shown(server) == ["Bearer ya29." + "x" * 2000]


def test_an_access_token_is_sent_as_it_is_and_nowhere_else(server: Wire) -> None:
    get(server, token="ya29.HUSH-own")

    assert [(heard.path, heard.headers["authorization"]) for heard in server.heard] == [
        ("/storage/v1/b/bucket/o/key", "Bearer ya29.HUSH-own")
    ]


def test_the_scope_is_reading_and_writing_and_no_more(server: Wire, key_file: str) -> None:
    import base64

    get(server, token=key_file)

    assertion = parse_qs(server.heard[0].body.decode())["assertion"][0].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(assertion + "=="))
    assert claims["scope"] == "https://www.googleapis.com/auth/devstorage.read_write"


def test_a_token_is_asked_for_once_while_it_lasts(server: Wire, google: Google, key_file: str) -> None:
    get(server, token=key_file, times=3)

    assert google.asked == 1
    assert shown(server) == ["Bearer ya29.HUSH-1"] * 3


def test_a_token_that_is_about_to_end_is_renewed_before_it_does(
    server: Wire, google: Google, key_file: str
) -> None:
    google.grant = lambda n: granted(f"ya29.HUSH-{n}", expires_in=100)

    get(server, token=key_file, times=2)

    assert shown(server) == ["Bearer ya29.HUSH-1", "Bearer ya29.HUSH-2"]


def test_no_credentials_at_all_are_a_persons_to_set(server: Wire) -> None:
    error = error_of(server)

    assert isinstance(error, Denied)
    assert "gcloud auth application-default login" in str(error)
    assert "anonymous=true" in str(error)
    assert server.heard == []


def test_credentials_that_were_revoked_are_a_persons_to_renew(
    server: Wire, google: Google, key_file: str
) -> None:
    google.grant = lambda n: Answer(400, b'{"error": "invalid_grant", "error_description": "revoked"}')

    error = error_of(server, token=key_file)

    assert isinstance(error, Denied)
    assert "could not be renewed" in str(error)
    assert shown(server) == []


def test_a_server_of_tokens_that_is_not_there_was_sent_nothing(server: Wire, key: dict[str, str]) -> None:
    error = error_of(server, token=json.dumps(key | {"token_uri": "http://127.0.0.1:1/token"}))

    assert type(error) is TryAgain
    assert shown(server) == []


@pytest.mark.parametrize("content", ["no json HUSH", '{"type": "HUSH"}', "[1]", ""])
def test_a_key_file_that_is_none_is_refused(server: Wire, tmp_path: Path, content: str) -> None:
    (tmp_path / "key.json").write_text(content)

    assert isinstance(error_of(server, token=str(tmp_path / "key.json")), Denied)


def test_credentials_of_another_project_are_refused(server: Wire, key_file: str) -> None:
    """A guard against the wrong ones. Said of the project that they must be of."""
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
