"""Tests of the GCS backend's own promises: the emulator, errors by reason, secrets, the probe."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError
from offload_cloud.exchange_errors import Cause, ExchangeError
from offload_gcs import GcsOptions, GcsStore
from offload_gcs.failures import Asked, Refused, Unusable, explained

from offload import (
    AlreadyExists,
    Denied,
    Misuse,
    NoSpace,
    NotFound,
    OffloadError,
    OutcomeUnknown,
    StoreDenied,
    Throttled,
    TryAgain,
)

NOWHERE = {"endpoint_url": "http://127.0.0.1:1", "token": "ya29.HUSH"}
KEY = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"

READ = Asked(what="read 'k'", permission="storage.objects.get", key="k", of_object=True)
STORE = Asked(what="store 'k'", permission="storage.objects.create", key="k", mutation=True)
CREATE = Asked(what="create 'k'", permission="storage.objects.create", key="k", mutation=True, creates=True)
DELETE = Asked(what="delete 'k'", permission="storage.objects.delete", key="k", mutation=True, of_object=True)
LIST = Asked(what="list ''", permission="storage.objects.list")


@pytest.fixture(autouse=True)
def _no_emulator_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)


def refused(
    asked: Asked, status: int, reason: str = "", message: str = "m", *, retry_after: str = ""
) -> OffloadError:
    body = {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}}
    reply = Refused(status, json.dumps(body).encode(), retry_after=retry_after)
    return explained(reply, asked, where="gs://bucket")


def test_an_error_names_a_file_without_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("no certificate")

    options = NOWHERE | {"endpoint_url": "https://127.0.0.1:1", "verify": str(tmp_path / "ca")}
    store = GcsStore(bucket="bucket", options=GcsOptions.of(options))

    with pytest.raises(Misuse, match="verify"):
        asyncio.run(store.create("key", b""))


@pytest.mark.parametrize(
    ("said", "endpoint"),
    [
        ("localhost:4443", "http://localhost:4443"),
        ("http://gcs.test:1/", "http://gcs.test:1"),
        ("default", "https://storage.googleapis.com"),
        ("", "https://storage.googleapis.com"),
    ],
)
def test_the_emulator_from_the_environment_gets_no_credentials(
    monkeypatch: pytest.MonkeyPatch, said: str, endpoint: str
) -> None:
    """Google's own clients do the same. Options override the variable."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", said)
    found = GcsOptions()
    given = GcsOptions.of({"endpoint_url": "https://gcs.test"})

    assert found.endpoint == endpoint
    assert found.is_anonymous == (endpoint != "https://storage.googleapis.com")
    assert (given.endpoint, given.is_anonymous) == ("https://gcs.test", False)


def test_every_server_but_googles_is_probed() -> None:
    """The service documents create-if-absent. An emulator may not honour it."""
    google, other = GcsStore(bucket="bucket"), GcsStore(bucket="bucket", options=GcsOptions.of(NOWHERE))

    assert not google.capabilities.create_is_probed
    assert other.capabilities.create_is_probed


@pytest.mark.parametrize(
    "said",
    [
        "Authorization: Bearer HUSH-1.2_3",
        "https://x/o?uploadType=resumable&upload_id=HUSH&x=1",
        "the token ya29.HUSH-x is old",
        "http://me:HUSH@proxy.test refused",
    ],
)
def test_a_servers_text_is_quoted_without_secrets(said: str) -> None:
    """The error page of a proxy may repeat the request."""
    for error in (
        refused(STORE, 400, "x", said),
        explained(Refused(502, said.encode()), STORE, where="gs://bucket"),
        explained(OSError(said), READ, where="gs://bucket"),
        explained(RefreshError(said), READ, where="gs://bucket"),
    ):
        assert "HUSH" not in str(error)
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("asked", "status", "reason", "kind"),
    [
        (CREATE, 412, "conditionNotMet", AlreadyExists),
        (CREATE, 412, "orgPolicyConstraintFailed", Denied),
        (STORE, 412, "conditionNotMet", OffloadError),
        (READ, 404, "notFound", NotFound),
        (DELETE, 404, "notFound", NotFound),
        (STORE, 404, "notFound", StoreDenied),
        (LIST, 404, "notFound", StoreDenied),
        (READ, 401, "authError", StoreDenied),
        (READ, 403, "forbidden", Denied),
        (STORE, 403, "insufficientPermissions", Denied),
        (STORE, 403, "retentionPolicyNotMet", Denied),
        (STORE, 403, "UserProjectAccountProblem", StoreDenied),
        (STORE, 400, "cloudKmsBadKey", Denied),
        (STORE, 302, "", StoreDenied),
        (STORE, 407, "", StoreDenied),
        (STORE, 403, "quotaExceeded", NoSpace),
        (STORE, 507, "", NoSpace),
        (STORE, 429, "", Throttled),
        (STORE, 403, "rateLimitExceeded", Throttled),
        (READ, 503, "", TryAgain),
        (STORE, 503, "", OutcomeUnknown),
        (CREATE, 500, "backendError", OutcomeUnknown),
        (DELETE, 504, "", OutcomeUnknown),
        (READ, 502, "", TryAgain),
        (STORE, 408, "", OutcomeUnknown),
        (STORE, 409, "conflict", TryAgain),
        (STORE, 413, "uploadTooLarge", Misuse),
        (READ, 418, "", OffloadError),
    ],
)
def test_status_and_reason_choose_the_error(
    asked: Asked, status: int, reason: str, kind: type[OffloadError]
) -> None:
    assert type(refused(asked, status, reason)) is kind


@pytest.mark.parametrize(
    ("message", "kind", "said"),
    [
        ("No such object: bucket/no/bucket", NotFound, "no object 'k'"),
        ("Not Found", NotFound, "no object 'k'"),
        ("The specified bucket does not exist.", StoreDenied, "the bucket does not exist"),
    ],
)
def test_a_404_means_the_object_or_the_bucket(message: str, kind: type[OffloadError], said: str) -> None:
    error = refused(READ, 404, "notFound", message)

    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    ("asked", "status", "reason", "message", "said"),
    [
        (CREATE, 403, "forbidden", "", "lack the permission storage.objects.create"),
        (READ, 403, "forbidden", "", "lack the permission storage.objects.get"),
        (LIST, 403, "forbidden", "", "lack the permission storage.objects.list"),
        (
            STORE,
            403,
            "forbidden",
            "me@storage.googleapis.com does not have storage.objects.delete access to the object.",
            "lack the permission storage.objects.delete",
        ),
        (READ, 401, "required", "Anonymous caller does not have access", "gcloud auth"),
        (READ, 400, "required", "Bucket is a requester pays bucket but no user project", "`user_project`"),
        (READ, 403, "accountDisabled", "", "billing"),
        (STORE, 400, "invalid", "Cloud KMS key not found", "`kms_key_name`"),
        (STORE, 400, "invalid", "Invalid storage class", "`storage_class`"),
        (STORE, 307, "", "", "`endpoint_url`"),
    ],
)
def test_an_error_names_the_permission_or_option_to_change(
    asked: Asked, status: int, reason: str, message: str, said: str
) -> None:
    error = refused(asked, status, reason, message)

    assert isinstance(error, Denied)
    assert said in str(error)


def test_a_write_that_arrives_damaged_may_be_tried_again() -> None:
    said = "Provided CRC32C 'AAAAAA==' doesn't match calculated CRC32C '4waSgw=='."

    assert type(refused(STORE, 400, "invalid", said)) is TryAgain


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"Not Found",
        b"[]",
        b'{"error": "x"}',
        b'{"error": {"errors": []}}',
        b"\xff\x00",
        b"null",
    ],
)
def test_an_error_reply_may_have_any_body(body: bytes) -> None:
    assert type(explained(Refused(404, body), READ, where="gs://bucket")) is NotFound


def test_a_page_with_status_404_does_not_prove_that_an_object_is_absent() -> None:
    error = explained(Refused(404, b"<html>Not Found</html>"), READ, where="gs://bucket")

    assert type(error) is StoreDenied
    assert "check `endpoint_url`" in str(error)


def test_an_error_of_the_xml_api_is_understood() -> None:
    body = b"<?xml version='1.0'?><Error><Code>UserProjectMissing</Code><Message>m</Message></Error>"

    assert "`user_project`" in str(explained(Refused(400, body), READ, where="gs://bucket"))


@pytest.mark.parametrize(
    ("exc", "kind", "said"),
    [
        (DefaultCredentialsError("none there"), StoreDenied, "gcloud auth application-default login"),
        (RefreshError("invalid_grant"), StoreDenied, "could not be renewed"),
        (RefreshError("busy", retryable=True), TryAgain, "token server"),
        (TransportError("no route"), TryAgain, "token server"),
        (Unusable("there are none"), StoreDenied, "there are none"),
        (ExchangeError(Cause.STALLED, "http://h"), OutcomeUnknown, "`read_timeout_seconds`"),
        (ExchangeError(Cause.SLOW_CONNECT, "http://h"), TryAgain, "`connect_timeout_seconds`"),
        (ExchangeError(Cause.CLOSED, "http://h"), OutcomeUnknown, "closed the connection"),
    ],
)
def test_the_clients_errors_become_errors_of_the_port(
    exc: Exception, kind: type[OffloadError], said: str
) -> None:
    error = explained(exc, CREATE, where="gs://bucket")

    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize("key", ["line\nend", "a\rb"])
def test_a_key_with_a_line_end_is_misuse(key: str) -> None:
    async def main() -> None:
        store = GcsStore(bucket="bucket", options=GcsOptions.of(NOWHERE))
        for call in (store.get(key), store.create(key, b""), store.delete([key]), store.start_upload(key)):
            with pytest.raises(Misuse):
                await call
        assert [row async for row in store.list(key)] == []

    asyncio.run(main())


def python(code: str, folder: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GCSFS")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=kept | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("given", "kept"), [({}, "false"), ({"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "1"}, "1")]
)
def test_opening_a_file_system_sends_no_grpc_request(
    tmp_path: Path, given: dict[str, str], kept: str
) -> None:
    """The environment's setting of zonal buckets stays as it is."""
    code = (
        "import os, asyncio; from offload_gcs import GcsOptions;"
        "import offload_gcs.store as s; import offload_gcs.client as c;"
        "f = asyncio.run(c.GcsClient(GcsOptions(anonymous=True))._opened());"
        "print(os.environ['GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT'], type(f).__module__)"
    )

    assert python(code, tmp_path, **given) == f"{kept} gcsfs.core"
