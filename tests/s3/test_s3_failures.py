"""Tests of errors of a bucket: one sentence says what failed, and which option or permission to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    FlexibleChecksumError,
    ReadTimeoutError,
    UnauthorizedSSOTokenError,
)
from botocore.parsers import ResponseParserError
from cloud.calls import MUTATIONS, Call, create, get, names, put
from cloud.s3 import error_of
from offload_s3.failures import explained
from wire import Answer, wire

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


def refused(
    code: str,
    message: str = "m",
    *,
    operation: str = "PutObject",
    status: int = 400,
    mutation: bool = True,
    headers: dict[str, str] | None = None,
    **inside: str,
) -> OffloadError:
    """Return the error for a reply with this code."""
    reply: Any = {
        "Error": {"Code": code, "Message": message} | inside,
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}},
    }
    cause = ClientError(reply, operation)
    return explained(cause, what="do it", where="s3://b", key="k", mutation=mutation)


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("PreconditionFailed", AlreadyExists, "exists"),
        ("412", AlreadyExists, "exists"),
        ("ConditionalRequestConflict", AlreadyExists, "exists"),
        ("NoSuchKey", NotFound, "no object"),
        ("InvalidAccessKeyId", StoreDenied, "access key is not known"),
        ("SignatureDoesNotMatch", StoreDenied, "secret key does not match"),
        ("ExpiredToken", StoreDenied, "token has expired"),
        ("InvalidToken", StoreDenied, "token is not valid"),
        ("InvalidTokenId", StoreDenied, "token is not valid there"),
        ("RequestTimeTooSkewed", StoreDenied, "clock"),
        ("NoSuchBucket", StoreDenied, "bucket does not exist"),
        ("PermanentRedirect", StoreDenied, "another region"),
        ("AuthorizationHeaderMalformed", StoreDenied, "`region`"),
        ("InvalidObjectState", Denied, "archived; restore it first"),
        ("InvalidStorageClass", Denied, "`storage_class`"),
        ("InvalidTag", Denied, "`tags`"),
        ("NotImplemented", Denied, "does not implement"),
        ("KMS.DisabledException", Denied, "KMS key is disabled"),
        ("KMS.NotFoundException", Denied, "`sse_kms_key_id`"),
        ("KMS.AccessDeniedException", Denied, "kms:GenerateDataKey"),
        ("KMS.SomethingNewException", Denied, "KMS refuses the key"),
        ("407", StoreDenied, "`proxy`"),
        ("QuotaExceeded", NoSpace, "full"),
        ("XMinioAdminBucketQuotaExceeded", NoSpace, "quota"),
        ("SlowDown", Throttled, "SlowDown"),
        ("BadDigest", TryAgain, "BadDigest"),
        ("InternalError", OutcomeUnknown, "InternalError"),
        ("EntityTooSmall", Misuse, "EntityTooSmall"),
        ("SomethingNew", OffloadError, "SomethingNew: m"),
    ],
)
def test_the_code_chooses_the_error(code: str, kind: type[OffloadError], said: str) -> None:
    """Servers and client libraries differ in the types of errors and agree in codes."""
    error = refused(code)

    assert type(error) is kind
    assert said in str(error)


@pytest.mark.parametrize(
    ("operation", "action"),
    [
        ("PutObject", "s3:PutObject"),
        ("UploadPart", "s3:PutObject"),
        ("AbortMultipartUpload", "s3:AbortMultipartUpload"),
        ("GetObject", "s3:GetObject"),
        ("ListObjectsV2", "s3:ListBucket"),
        ("DeleteObjects", "s3:DeleteObject"),
    ],
)
def test_an_error_names_the_missing_permission(operation: str, action: str) -> None:
    error = refused("AccessDenied", "Access Denied", operation=operation, status=403)

    assert type(error) is Denied
    assert f"lack {action}" in str(error)


def test_an_error_names_the_missing_kms_permission() -> None:
    message = "User: u is not authorized to perform: kms:GenerateDataKey on the resource"

    assert "grant kms:GenerateDataKey" in str(refused("AccessDenied", message, status=403))


def test_an_error_quotes_the_policy() -> None:
    message = "User: u is not authorized to perform: s3:PutObject with an explicit deny"

    assert "explicit deny" in str(refused("AccessDenied", message, status=403))


@pytest.mark.parametrize(
    ("headers", "inside"), [({"X-Amz-Bucket-Region": "eu-west-3"}, {}), ({}, {"Region": "eu-west-3"})]
)
def test_an_error_names_the_right_region_if_the_reply_does(
    headers: dict[str, str], inside: dict[str, str]
) -> None:
    assert "set region=eu-west-3" in str(refused("PermanentRedirect", headers=headers, **inside))


@pytest.mark.parametrize("code", ["InternalError", "500", "502", "504", "SomethingNew"])
def test_a_server_error_leaves_the_outcome_of_a_mutation_unknown(code: str) -> None:
    assert type(refused(code, status=500)) is OutcomeUnknown
    assert type(refused(code, status=500, mutation=False)) is TryAgain


@pytest.mark.parametrize("code", ["400", "403", "404", "405"])
def test_an_error_without_a_code_and_marks_is_not_from_s3(code: str) -> None:
    bare = refused(code, status=int(code))
    marked = refused("404", status=404, headers={"x-amz-request-id": "r"})

    assert type(bare) is StoreDenied
    assert "an S3 server (HTTP" in str(bare)
    assert type(marked) is NotFound


@pytest.mark.parametrize(
    ("cause", "kind", "said"),
    [
        (UnauthorizedSSOTokenError(), StoreDenied, "sign-in has expired"),
        (CredentialRetrievalError(provider="p", error_msg="e"), TryAgain, "credentials could not be fetched"),
        (FlexibleChecksumError(error_msg="e"), TryAgain, "damaged on the way"),
        (ResponseParserError("page"), OutcomeUnknown, "not from an S3 server"),
        (ValueError("Invalid endpoint: x"), Misuse, "Invalid endpoint"),
        (FileNotFoundError(2, "no file", "ca.pem"), Misuse, "ca.pem"),
        (
            ReadTimeoutError(endpoint_url="http://u:HUSH@h:1/b?sig=HUSH"),
            TryAgain,
            "the credentials could not be fetched",
        ),
        (EndpointConnectionError(endpoint_url="http://u:HUSH@h:1/b?sig=HUSH"), OutcomeUnknown, "http://h:1"),
        (OSError("odd http://u:HUSH@h:1/b?sig=HUSH\nodd"), OutcomeUnknown, "odd http://h:1/b odd"),
    ],
)
def test_the_clients_errors_become_errors_of_the_port(
    cause: BaseException, kind: type[OffloadError], said: str
) -> None:
    error = explained(cause, what="do it", where="s3://b", mutation=True)

    assert type(error) is kind
    assert said in str(error)
    assert "HUSH" not in str(error)
    assert "\n" not in str(error)


# On the wire


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("http://127.0.0.1:1", {}, "nothing answers at http://127.0.0.1:1; check `endpoint_url`"),
        ("http://nowhere.invalid", {}, "the name of http://nowhere.invalid does not resolve"),
        ("http://nowhere.invalid", {"proxy": "http://u:HUSH@127.0.0.1:1"}, "check `proxy`"),
        ("https://nowhere.invalid", {"proxy": "http://u:HUSH@127.0.0.1:1"}, "check `proxy`"),
    ],
)
def test_an_error_names_the_address_that_does_not_answer(
    url: str, options: dict[str, Any], said: str
) -> None:
    """The call may be tried again: nothing was sent, and the server may be starting."""
    error = error_of(url, create, **options)

    assert type(error) is TryAgain
    assert said in str(error)


def page(status: int) -> Answer:
    return Answer(status, b"<html><body>hello <br> </body></html>", {"Content-Type": "text/html"})


@pytest.mark.parametrize("call", [put, create, get, names])
@pytest.mark.parametrize("status", [200, 400, 403, 404, 405, 502])
def test_a_web_server_is_no_s3_server(call: Call, status: int) -> None:
    """Its page may come from a proxy for a moment, or the address is wrong."""
    with wire(lambda heard: page(status)) as server:
        error = error_of(server.url, call)

    assert type(error) is (
        StoreDenied if 400 <= status < 500 else OutcomeUnknown if call in MUTATIONS else TryAgain
    )
    assert "S3 server" in str(error)
    assert "`endpoint_url`" in str(error)


@pytest.mark.parametrize(
    ("settings", "options", "kind", "said"),
    [
        ({}, {}, StoreDenied, "no credentials found"),
        ({"AWS_ACCESS_KEY_ID": "AKEY"}, {}, StoreDenied, "missing: AWS_SECRET_ACCESS_KEY"),
        ({}, {"profile": "nobody"}, Misuse, "(nobody) could not be found"),
        ({"AWS_CONFIG_FILE": "no-such-file", "AWS_PROFILE": "p"}, {}, Misuse, "(p) could not be found"),
        ({}, {"profile": "broken"}, Misuse, "does not exist"),
        ({}, {"profile": "program"}, Misuse, "no-such-program"),
        ({}, {"profile": "sso"}, StoreDenied, "sign-in has expired"),
        ({"AWS_ENDPOINT_URL_S3": "junk"}, {"endpoint_url": None}, Misuse, "Invalid endpoint: junk"),
        ({"AWS_CA_BUNDLE": "no.pem"}, {"endpoint_url": "https://127.0.0.1:1"}, StoreDenied, "no credentials"),
        ({}, {"region": "no region"}, Misuse, "'no region'"),
    ],
)
def test_an_error_names_the_wrong_setting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    options: dict[str, Any],
    kind: type[OffloadError],
    said: str,
) -> None:
    (tmp_path / "config").write_text(
        "[profile broken]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = gone\n"
        "[profile program]\ncredential_process = no-such-program\n"
        "[profile sso]\nsso_start_url = https://x\nsso_region = us-east-1\n"
        "sso_account_id = 1\nsso_role_name = r\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    at_home = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(tmp_path),
    }
    for name, value in (at_home | settings).items():
        monkeypatch.setenv(name, value)

    error = error_of("http://127.0.0.1:1", get, **{"key": None, "secret": None, "token": None} | options)

    assert type(error) is kind
    assert said in str(error)
