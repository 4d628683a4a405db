"""The tables of edges are complete: every argument, second call and field of the contracts has a row."""

from __future__ import annotations

from types import ModuleType

import pytest
from offload_conformance.backend import SUITES
from offload_conformance.clauses import clauses_of
from offload_conformance.edges import arguments_of, changes_of, fields_of
from offload_conformance.offloader import edges as of_offloaders
from offload_conformance.store import edges as of_stores

from offload.contracts.capabilities import Capabilities
from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import Committer, LedgerOffloader
from offload.contracts.store import Listed, ObjectStore, Unfinished, Upload
from offload.model.attempt import Leftover, Receipt
from offload.model.entry import Entry
from offload.model.manifest import Manifest, Running
from offload.model.part import StreamPart

ROOMS = pytest.mark.parametrize(
    ("tables", "contracts", "results"),
    [
        (of_stores, (ObjectStore, Upload), (Listed, Unfinished, Capabilities)),
        (
            of_offloaders,
            (Catalogue, StreamView, Committer, LedgerOffloader, ReadHandle),
            (Manifest, Running, Entry, Leftover, Receipt, StreamPart),
        ),
    ],
    ids=["stores", "offloaders"],
)
CLAUSES = {clause.id for clause in clauses_of(*SUITES)}


@ROOMS
def test_every_argument_of_a_contract_has_a_kind(
    tables: ModuleType, contracts: tuple[type, ...], results: tuple[type, ...]
) -> None:
    """A new argument, a new type or a new field of one fails here until somebody has thought of its edges."""
    assert {*tables.KINDS} == arguments_of(*contracts)


@ROOMS
def test_every_change_is_made_twice(
    tables: ModuleType, contracts: tuple[type, ...], results: tuple[type, ...]
) -> None:
    assert {*tables.AGAIN} == changes_of(*contracts, reads=tables.READS)


@ROOMS
def test_every_field_of_a_result_is_compared(
    tables: ModuleType, contracts: tuple[type, ...], results: tuple[type, ...]
) -> None:
    assert {*tables.FIELDS} == fields_of(*results)


@ROOMS
def test_every_row_names_a_clause_or_a_reason(
    tables: ModuleType, contracts: tuple[type, ...], results: tuple[type, ...]
) -> None:
    rows = {**{name: kind.asked_by for name, kind in tables.KINDS.items()}, **tables.AGAIN, **tables.FIELDS}
    reasons = {name for name, kind in tables.KINDS.items() if kind.because} | {
        *getattr(tables, "UNASKED", ())
    }

    assert {name: each for name, each in rows.items() if not {*each} <= CLAUSES} == {}
    assert {name for name, each in rows.items() if not each} == reasons
