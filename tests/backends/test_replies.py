"""Tests of the code that backends of distant stores share: prefixes and replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_cloud.prefixes import begins_a_key
from offload_cloud.ranges import exactly

from offload import Suffix

parts = st.from_regex(r"[^/.\0][^/\0]{0,5}", fullmatch=True)
keys = st.lists(parts, min_size=1, max_size=4).map("/".join)


@given(keys, st.integers(0, 30))
def test_every_beginning_of_a_key_is_accepted_as_a_prefix(key: str, length: int) -> None:
    assert begins_a_key(key[:length])


@pytest.mark.parametrize("prefix", ["/", "//", "a//", ".", "../", "x/.", "x/../", "a\0"])
def test_a_prefix_that_no_key_can_have_is_rejected(prefix: str) -> None:
    assert not begins_a_key(prefix)


def test_the_suffix_of_an_empty_object_is_empty() -> None:
    """MinIO answers 206 with the range `bytes 0--1/0`."""
    found = exactly(Suffix(3), b"", status=206, content_range="bytes 0--1/0", where="s3://b: 'k'")

    assert found == b""
