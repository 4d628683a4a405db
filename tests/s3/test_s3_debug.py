"""Tests of `--debug`: it prints the log and tracebacks, and no credential. SDKs log those at this level."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from campaign import few
from cloud.s3 import answers
from wire import Answer, Heard, wire

OFFLOAD = [sys.executable, "-c", "from offload.cli.main import main; main()"]
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKEYMARK",
    "AWS_SECRET_ACCESS_KEY": "HUSHMARK",
    "AWS_SESSION_TOKEN": "TOKENMARK",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@few("a connection that drops under --debug; make test has an answer and a refusal", 2)
@pytest.mark.parametrize("answer", [answers, lambda heard: Answer(drop=True), lambda heard: Answer(403)])
def test_the_debug_log_and_tracebacks_hold_no_credential(answer: Callable[[Heard], Answer]) -> None:
    with wire(answer) as server:
        environment = os.environ | SECRETS | {"AWS_ENDPOINT_URL_S3": server.url}
        ran = subprocess.run(
            [*OFFLOAD, "--debug", "ls", "s3://bucket", "-o", "patience_seconds=0.1"],
            env=environment,
            capture_output=True,
            text=True,
        )

    assert ran.returncode != 0
    assert "Traceback" in ran.stderr
    for leak in ("MARK", "Signature=", "Credential="):
        assert leak not in ran.stderr + ran.stdout
    assert any("TOKENMARK" in heard.headers.get("x-amz-security-token", "") for heard in server.heard)
