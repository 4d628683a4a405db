"""No clause fails on a backend that is odd and does what the contract allows."""

from __future__ import annotations

from typing import Any

import pytest
from campaign import campaign
from contract import odd_backends, odd_choices
from offload_conformance.bugs.trial import clauses_of, verdict
from offload_conformance.offloader.coded import CodedClauses

ODD = [*odd_backends.ODD, *odd_choices.ODD]


@campaign("odd backends; test_unusual_backends has others")
@pytest.mark.parametrize("backend", ODD, ids=lambda backend: f"{backend.__module__[9:]}.{backend.__name__}")
def test_no_clause_fails_on_an_odd_backend(backend: Any) -> None:
    """Clauses on codings are asked only of an offloader that declares codings."""
    asked = [
        clause
        for clause in clauses_of("store" if backend.KIND == "store" else "contract")
        if f"test_{clause.partition('/')[2]}" not in vars(CodedClauses)
    ]

    assert {clause: failure for clause in asked if (failure := verdict(backend, clause))} == {}
