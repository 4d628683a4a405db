"""Write docs/conformance-bugs.md from the deliberately broken backends of tests/contract.

    python docs/make_conformance_bugs.py

The classes and their docstrings are the source (tests/contract/bugs.py says how); that each bug is caught by
its clause, tests/contract/test_conformance_catches.py holds.
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

# Which bug meets which clause

A suite that passes everything proves nothing. So it is held against backends that are broken on purpose:
{count} of them, each with one bug that real backends have or had, each caught by the clause that names it.
The tests do this at every run (`tests/contract/test_conformance_catches.py`). They also hold that a sound
backend passes each clause by the same path, and that no clause is without a bug.

A clause is a test of that name in `offload_conformance` ([write a backend](write-a-backend.md)). If a clause
fails on your backend, look for it here: one of its bugs may be yours.

The authors of the clauses planted these bugs, so they do not show what the suite misses. For that there is
a second set, `tests/newcomers`: 266 bugs, 148 in stores and 118 in offloaders, by people who had not read
the clauses.
"""


def page() -> str:
    """The whole of docs/conformance-bugs.md."""
    from contract.all_store_bugs import ALL_STORE_BUGS
    from contract.offloader_bugs import OFFLOADER_BUGS
    from contract.protocol_bugs import PROTOCOL_BUGS

    head = HEAD.format(count=len(ALL_STORE_BUGS) + len(OFFLOADER_BUGS) + len(PROTOCOL_BUGS))
    stores = f"## Stores: {len(ALL_STORE_BUGS)} bugs\n\n{_table(ALL_STORE_BUGS, 'store')}"
    offloaders = f"## Offloaders: {len(OFFLOADER_BUGS)} bugs\n\n{_table(OFFLOADER_BUGS, 'offloader')}"
    protocol = (
        f"## The protocol: {len(PROTOCOL_BUGS)} bugs of stores and of tiers on them\n\n"
        f"{_table(PROTOCOL_BUGS, 'store or tier')}"
    )
    return f"{head}\n{stores}\n{offloaders}\n{protocol}"


def _table(bugs: list[Bug], kind: str) -> str:
    lines = [f"| the {kind} | is caught by | where it was seen, or how it comes about |", "|---|---|---|"]
    for bug in bugs:
        does = bug.does[0].lower() + bug.does[1:].rstrip(".")
        clause = bug.clause.removeprefix("test_")
        lines.append(f"| {does} | `{clause}` | {bug.comes_from} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
