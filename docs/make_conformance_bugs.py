"""Write docs/conformance-bugs.md from the deliberately broken backends of tests/contract.

    python docs/make_conformance_bugs.py

The source is the classes and their docstrings, as tests/contract/bugs.py describes.
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
    from contract.bugs import Bug

HEAD: Final = """\
<!-- Made by docs/make_conformance_bugs.py from tests/contract; edit those. -->

# Bugs that the suite catches

A suite that passes everything proves nothing. So the suite is tested with {count} backends that are broken on
purpose. Each has one bug that real backends have or had, and each is caught by the clause in its row.
The tests check this in every run (`tests/contract/test_conformance_catches.py`). They also check that a sound
backend passes each clause on the same path, and that every clause catches at least one bug.

A clause is a test of that name in `offload_conformance` ([Write a backend](write-a-backend.md)). If a clause
fails on your backend, look for it here: your backend may have one of its bugs.

The authors of the clauses planted these bugs, so the tables do not show what the suite misses. For that there
is a second set, `tests/newcomers`: {others} bugs, {stores} in stores and {offloaders} in offloaders, nearly
all by people who had not read the clauses ([What the suite misses](conformance.md#what-the-suite-misses)).
"""


def page() -> str:
    """Return the whole of docs/conformance-bugs.md."""
    from contract.all_offloader_bugs import ALL_OFFLOADER_BUGS
    from contract.all_store_bugs import ALL_STORE_BUGS
    from contract.protocol_bugs import PROTOCOL_BUGS
    from newcomers.everything import BUGS

    kinds = [bug.kind for bug in BUGS.values()]
    head = HEAD.format(
        count=len(ALL_STORE_BUGS) + len(ALL_OFFLOADER_BUGS) + len(PROTOCOL_BUGS),
        others=len(kinds),
        stores=kinds.count("store"),
        offloaders=kinds.count("offloader"),
    )
    stores = f"## Stores: {len(ALL_STORE_BUGS)} bugs\n\n{_table(ALL_STORE_BUGS, 'store')}"
    offloaders = f"## Offloaders: {len(ALL_OFFLOADER_BUGS)} bugs\n\n{_table(ALL_OFFLOADER_BUGS, 'offloader')}"
    protocol = (
        f"## The protocol: {len(PROTOCOL_BUGS)} bugs of stores and of tiers on them\n\n"
        f"{_table(PROTOCOL_BUGS, 'store or tier')}"
    )
    return f"{head}\n{stores}\n{offloaders}\n{protocol}"


def _table(bugs: list[Bug], kind: str) -> str:
    lines = [f"| the {kind} | is caught by | origin or cause of the bug |", "|---|---|---|"]
    for bug in bugs:
        does = bug.does[0].lower() + bug.does[1:].rstrip(".")
        clause = bug.clause.removeprefix("test_")
        lines.append(f"| {does} | `{clause}` | {bug.comes_from} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
