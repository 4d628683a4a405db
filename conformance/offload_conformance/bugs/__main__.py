"""Run planted bugs: `python -m offload_conformance.bugs [NAME | CLAUSE | LAYER ...]`, all of them by default.

It prints a line for each bug, and exits with 1 if one of them is not found, or its sound class fails.
"""

from __future__ import annotations

import sys

from offload_conformance.bugs import load
from offload_conformance.bugs.trial import tried


def main(wanted: list[str]) -> int:
    """Run the bugs that the arguments name, and return the exit code."""
    bugs = load()
    named = {part for each in bugs.values() for part in (each.name, each.clause, each.layer)}
    if unknown := [each for each in wanted if each not in named]:
        print(f"no bug, clause or layer has the name {unknown[0]!r}", file=sys.stderr)
        return 2
    asked = [each for each in bugs.values() if not wanted or {each.name, each.clause, each.layer} & {*wanted}]
    wrong = 0
    for each in asked:
        trouble = tried(each)
        wrong += trouble is not None
        print(f"{trouble or 'found':8} {each.name} {each.clause}", flush=True)
    print(f"{len(asked)} bugs of {len({each.clause for each in asked})} clauses, {wrong} not found")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
