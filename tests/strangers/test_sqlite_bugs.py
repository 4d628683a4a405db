"""The example over SQLite with one subtle bug at a time: each fails by the clause that names it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from campaign import campaign, keeping
from strangers.suites import ROOT, outcomes, refusing

EXAMPLE = ROOT / "examples" / "offload-sqlite"
INSERT = 'await self.write(lambda db: db.execute("INSERT INTO objects VALUES (?, ?)", (raw, data)))'
LISTING = "SELECT key, length(data) FROM objects WHERE key >= ? AND key > ? ORDER BY key LIMIT ?"
LOOK_FIRST = """\
look = "SELECT 1 FROM objects WHERE key = ?"
            with suppress(FileNotFoundError):
                if await self._read(lambda db: db.execute(look, (raw,)).fetchall()):
                    raise errors.AlreadyExists(key)
            insert = "INSERT OR REPLACE INTO objects VALUES (?, ?)"
            await self.write(lambda db: db.execute(insert, (raw, data)))"""
CUT = "[[data]] = db.execute(cut, (start + 1, end - start, raw)).fetchall()"
CUT_FROM_THE_END = """\
back = isinstance(span, Suffix) and span.length <= size
                at, count = (-span.length, size) if back else (start + 1, end - start)
                [[data]] = db.execute(cut, (at, count, raw)).fetchall()"""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A bug: the replacements in the example's code, in order, and the clause that must fail."""

    name: str
    clause: str
    also: frozenset[str] = frozenset()
    """Clauses that may see it as well."""

    swaps: tuple[tuple[str, str], ...]


ALL = "TestStore and not page_after_page and not keys_change"
"""The clauses of a store without those that take longer than all others."""

ALONE = "TestStore and not between_processes"
"""The clauses that start no other process. pytest selects by a part of a name, such as `create_is_atomic`."""

BUGS = (
    Bug(
        name="create looks first, then replaces",
        clause="create_is_atomic",
        also=frozenset(
            {
                "create_is_atomic_between_threads",
                "create_is_atomic_between_processes",
                "capabilities_are_as_meant",
                "create_never_undoes_a_put",
            }
        ),
        swaps=((INSERT, LOOK_FIRST),),
    ),
    Bug(
        name="a prefix is a pattern of LIKE",
        clause="listing_reads_prefixes_as_they_are",
        also=frozenset({"listing_finds_nothing_under_what_begins_no_key"}),
        swaps=(
            (LISTING, LISTING.replace("key >= ?", "CAST(key AS TEXT) LIKE CAST(? AS TEXT) || '%'")),
            ("if not last.startswith(start):", "if False:"),
        ),
    ),
    Bug(
        name="keys are compared without regard to case",
        clause="listing_is_ordered",
        also=frozenset({"listing_begins_after", "keys_that_look_alike_differ"}),
        swaps=(
            ("key BLOB PRIMARY KEY", "key TEXT COLLATE NOCASE PRIMARY KEY"),
            ("return check_key(key).encode(*UTF8)", "return check_key(key)"),
            ("(text.encode(*UTF8) for text in (prefix, after))", "(prefix, after)"),
            ("Listed(last.decode(*UTF8), size)", "Listed(last, size)"),
        ),
    ),
    Bug(
        name="the last no bytes are all of them",
        clause="ranges_are_exact",
        also=frozenset(
            {
                "absence_is_an_error",
                "any_calls_answer_as_a_dictionary_would",
                "ranges_are_exact_at_every_border",
            }
        ),
        swaps=((CUT, CUT_FROM_THE_END),),
    ),
)


def refused_by(swaps: tuple[tuple[str, str], ...], folder: Path, wanted: str = ALL) -> set[str]:
    """Return the wanted clauses that the example fails after these replacements in its code."""
    shutil.copytree(EXAMPLE, folder)
    code, tests = folder / "offload_sqlite" / "store.py", folder / "tests" / "test_conformance.py"
    text = code.read_text()
    for old, new in swaps:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    code.write_text(text.replace("synchronous = EXTRA", "synchronous = OFF"))  # the tests cut no power
    tests.write_text(tests.read_text().replace("key.decode()", "key.decode() if type(key) is bytes else key"))
    return refusing(outcomes(folder, tests, "-k", wanted, paths=[folder]))


@pytest.mark.parametrize("bug", keeping(BUGS[:1], BUGS, "subtle bugs of SQLite", id_=lambda bug: bug.name))
def test_a_subtle_bug_is_refused_by_its_clause(tmp_path: Path, bug: Bug) -> None:
    assert bug.clause in refused_by(bug.swaps, tmp_path / "example", f"{ALONE} and {bug.clause}")


@campaign("the example without a bug; the store of the guide passes the same clauses here")
def test_the_clauses_that_refuse_bugs_pass_without_one(tmp_path: Path) -> None:
    wanted = " or ".join(bug.clause for bug in BUGS)

    assert refused_by((), tmp_path / "example", f"{ALONE} and ({wanted})") == set()


@campaign("all clauses over the example with a bug; the one that names it is asked here")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_subtle_bug_is_refused_by_no_other_clause(tmp_path: Path, bug: Bug) -> None:
    refused = refused_by(bug.swaps, tmp_path / "example")

    assert bug.clause in refused
    assert refused <= {bug.clause, *bug.also}


@campaign("all clauses over the example without a bug; the guide's store is asked those of stores here")
def test_without_a_bug_nothing_is_refused(tmp_path: Path) -> None:
    assert refused_by((), tmp_path / "example") == set()
