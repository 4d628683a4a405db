"""Print every claim of the tests by file: `make claims`.

A claim is the name of a test. A clause of the conformance suite is one claim for each class that it tests.
The first number counts the cases in `make test`. The other numbers count the cases that only the campaign
has, each with its reason.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from contextlib import redirect_stdout

import pytest

Claim = tuple[str, str]
"""A file, and a test of it in words."""


class Collected:
    """A plugin of pytest that counts the cases of each claim by where they run. The key "" is `make test`."""

    def __init__(self) -> None:
        self.cases: dict[Claim, Counter[str]] = defaultdict(Counter)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            file, *names = item.nodeid.partition("[")[0].split("::")
            words = " ".join(name.removeprefix("test_").replace("_", " ") for name in names)
            mark = item.get_closest_marker("campaign")
            self.cases[file, words][mark.args[0] if mark else ""] += 1


def main() -> int:
    """Collect all tests, run none, and print their claims."""
    collected = Collected()
    with redirect_stdout(sys.stderr):
        code = pytest.main(["--collect-only", "-q", "-q", *sys.argv[1:]], plugins=[collected])
    file_before = ""
    for (file, words), cases in sorted(collected.cases.items()):
        if file != file_before:
            print(f"\n{file}")
            file_before = file
        left = "; ".join(f"{count} {reason}" for reason, count in cases.items() if reason)
        print(f"  {words}: {cases['']}" + (f" (campaign: {left})" if left else ""))
    return code


if __name__ == "__main__":
    assert os.environ.get("OFFLOAD_CAMPAIGN"), "without OFFLOAD_CAMPAIGN=1 the campaign's claims are left out"
    sys.exit(main())
