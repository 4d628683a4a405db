"""Tests of tokens: they identify the batches of a job and match nothing else."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload import Misuse
from offload.model.tokens import SIZE_BYTES, token_for, token_of, with_token


@given(st.text(), st.uuids())
def test_an_attempt_begins_with_the_token_of_its_batch(name: str, random: UUID) -> None:
    uid = with_token(token_for(name), random)

    assert token_of(uid) == token_for(name) if name else uid == random
    assert uid.version == (8 if name else random.version)
    assert uid.bytes[SIZE_BYTES + 1 :] == random.bytes[SIZE_BYTES + 1 :]


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_names_have_different_tokens(one: str, other: str) -> None:
    assert (token_for(one) == token_for(other)) == (one == other)


def test_a_random_uuid_has_no_token() -> None:
    assert {token_of(uuid4()) for _ in range(1000)} == {b""}


@pytest.mark.parametrize("token", [b"x", b"a batch.", token_for("a") + b"x", bytes(8)])
def test_an_invalid_token_is_refused(token: bytes) -> None:
    with pytest.raises(Misuse, match="is not a token"):
        with_token(token, uuid4())
