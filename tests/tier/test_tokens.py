"""Tokens: by which a job's batch is recognized, and nothing else is taken for one."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload import Misuse
from offload.model.tokens import SIZE_BYTES, token_for, token_of, with_token


@given(st.text(), st.uuids())
def test_an_attempt_begins_with_its_batchs_token(name: str, random: UUID) -> None:
    uid = with_token(token_for(name), random)

    assert token_of(uid) == token_for(name) if name else uid == random
    assert uid.version == (8 if name else random.version)
    assert uid.bytes[SIZE_BYTES + 1 :] == random.bytes[SIZE_BYTES + 1 :]


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_have_tokens_of_their_own(one: str, other: str) -> None:
    assert (token_for(one) == token_for(other)) == (one == other)


def test_what_was_made_at_random_has_no_token() -> None:
    assert {token_of(uuid4()) for _ in range(1000)} == {b""}


@pytest.mark.parametrize("token", [b"x", b"a batch.", token_for("a") + b"x", bytes(8)])
def test_what_is_no_token_is_refused(token: bytes) -> None:
    with pytest.raises(Misuse, match="is no token"):
        with_token(token, uuid4())
