"""Write docs/conformance-bugs.md from the planted bugs: `offload_conformance.bugs`, and tests/contract.

    python docs/make_conformance_bugs.py

The source is the classes and their docstrings, as `offload_conformance.bugs.registry` describes.
tests/contract/test_conformance_catches.py tests that each bug is caught by its clause.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

HERE: Final = Path(__file__).parent
PAGE: Final = HERE / "conformance-bugs.md"
sys.path.insert(0, str(HERE.parent / "tests"))

if TYPE_CHECKING:
    from offload_conformance.bugs import Bug

HEAD: Final = """\
<!-- Made by docs/make_conformance_bugs.py from offload_conformance.bugs; edit those. -->

# Bugs that the suite catches

A suite that passes everything proves nothing. So the suite is tested with {count} backends that are broken on
purpose. Each has one bug that real backends have or had, and each is caught by the clause in its row.
The tests check this (`tests/contract/test_conformance_catches.py`). They also check that a sound backend
passes each clause on the same path, and that every clause catches at least one bug.

The bugs come with the suite. `python -m offload_conformance.bugs` runs all of them, each by its clause, and
checks that its sound class passes. It also takes names, clauses and layers:

    python -m offload_conformance.bugs store/listing_is_strong PagesByNumber

A clause is a test of that name in `offload_conformance` ([Write a backend](write-a-backend.md)). If a clause
fails on your backend, look for it here: your backend may have one of its bugs.

Most of these bugs are by the authors of the clauses, so they do not show what the suite misses. {blind} of
them are by people who had not read the clauses, and have a proof that shows the mistake without the suite
([What the suite misses](conformance.md#what-the-suite-misses)).
"""


def page() -> str:
    """Return the whole of docs/conformance-bugs.md."""
    import contract.backend_bugs  # noqa: F401 - registers its bugs
    from offload_conformance.bugs import load

    bugs = [*load().values()]
    head = HEAD.format(
        count=len(bugs),
        blind=sum(bug.proof is not None for bug in bugs),
    )
    stores, offloaders, tiers = (
        [bug for bug in bugs if bug.layer == layer] for layer in ("store", "contract", "protocol")
    )
    return "\n".join(
        (
            head,
            f"## Stores: {len(stores)} bugs\n\n{_table(stores, 'store')}",
            f"## Offloaders: {len(offloaders)} bugs\n\n{_table(offloaders, 'offloader')}",
            f"## The protocol: {len(tiers)} bugs of stores and of tiers on them\n",
            _table(tiers, "store or tier"),
        )
    )


def _table(bugs: list[Bug], kind: str) -> str:
    lines = [f"| the {kind} | is caught by | origin or cause of the bug |", "|---|---|---|"]
    for bug in bugs:
        does = bug.does[0].lower() + bug.does[1:].rstrip(".")
        lines.append(f"| {does} | `{bug.test.removeprefix('test_')}` | {bug.comes_from} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
