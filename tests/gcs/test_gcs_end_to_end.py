"""Tests of the command line on a bucket of GCS: wrong arguments."""

from __future__ import annotations

import pytest
from command_line import offload


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ls", "gs://"), "names no bucket"),
        (("ls", "gs://bucket", "-o", "colour=red"), "colour"),
        (("ls", "gs://bucket", "-o", "connections_max=0"), "connections_max"),
        (("ls", "gs://bucket", "-o", "token=/no/such/file"), "token"),
    ],
)
def test_a_wrong_argument_is_one_plain_line_before_any_request(arguments: tuple[str, ...], said: str) -> None:
    done = offload(*arguments)

    assert done.code == 2
    assert said in done.error
