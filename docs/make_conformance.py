"""Write the matrix of docs/conformance.md from the reports in docs/conformance/, and renew those reports.

    python docs/make_conformance.py              # write the matrix from the existing reports
    python docs/make_conformance.py all          # first run the suite on every place
    python docs/make_conformance.py minio rgw    # first run it on these places

A place is a folder or a server of the tests, which `make servers` installs. A run takes a minute or two. The
rows are the clauses of today: a `-` marks a clause that is newer than the run of its column.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from offload_conformance.backend import SUITES
from offload_conformance.clauses import clauses_of
from offload_conformance.report import OUTCOMES

HERE: Final = Path(__file__).parent
PAGE: Final = HERE / "conformance.md"
REPORTS: Final = HERE / "conformance"
BEGIN: Final = "<!-- Made by docs/make_conformance.py from docs/conformance/. -->\n"
END: Final = "<!-- Made until here. -->\n"
MARKS: Final = {"passed": "yes", "failed": "**no**", "not_run": "-"}
PLACES: Final = ("folder", "moto", "rgw", "minio", "fake-gcs-server", "azurite")
"""The places, in the order of the columns."""


def renew(place: str) -> None:
    """Run the suite on a new folder, or on a new bucket of a server."""
    print(f"{place}:", flush=True)
    if place == "folder":
        with tempfile.TemporaryDirectory() as folder:
            _run(place, folder, {}, "a folder")
        return
    sys.path.insert(0, str(HERE.parent / "tests"))
    from servers.catalogue import server

    with server(place).running() as running:
        bucket = running.place()
        _run(place, bucket.url, bucket.options, f"{place} {running.version}")


def _run(name: str, url: str, options: dict[str, str], server: str) -> None:
    from offload.cli.app import run

    words = ["conformance", url, "--seed", "0", "--server", server]
    words += ["--report", str(REPORTS / f"{name}.json")]
    run([*words, *(word for option in options.items() for word in ("-o", "=".join(option)))])


def page() -> str:
    """Return docs/conformance.md with a new matrix."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    found = [json.loads((REPORTS / f"{place}.json").read_text(encoding="utf-8")) for place in PLACES]
    return before + BEGIN + "\n" + "\n".join(_matrix(found)) + "\n\n" + END + after


def _matrix(reports: list[dict[str, Any]]) -> Iterable[str]:
    yield _row("clause", "claim", (f"{each['backend']['name']}, {each['server']}" for each in reports))
    yield "|---" * (2 + len(reports)) + "|"
    yield _row("", "date of the run", (each["started_at"][:10] for each in reports))
    yield _row("", "version of ledger-offload", (each["suite_version"] for each in reports))
    clauses = clauses_of(*SUITES)
    outcomes = [{each["id"]: each["outcome"] for each in report["clauses"]} for report in reports]
    asked = [[found.get(clause.id, "not_run") for clause in clauses] for found in outcomes]
    counts = ([str(column.count(outcome)) for outcome in OUTCOMES] for column in asked)
    yield _row("", "passed, failed, not run", map(", ".join, counts))
    for clause, *ended in zip(clauses, *asked, strict=True):
        yield _row(f"`{clause.id}`", clause.text.replace("|", "\\|"), (MARKS[each] for each in ended))
    for report in reports:
        for clause in report["clauses"]:
            if clause["outcome"] != "passed":
                yield ""
                yield f"{report['server']}, `{clause['id']}`: `{' '.join(clause['message'].split())}`"


def _row(first: str, second: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([first, second, *cells])} |"


if __name__ == "__main__":
    REPORTS.mkdir(exist_ok=True)
    for each in PLACES if sys.argv[1:] == ["all"] else sys.argv[1:]:
        renew(each)
    if all((REPORTS / f"{place}.json").exists() for place in PLACES):
        PAGE.write_text(page(), encoding="utf-8")
