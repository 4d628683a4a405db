"""The report of a run: one JSON document. Its schema is `report.schema.json` beside this file.

JUnit XML, Markdown, the badge and the comparison of two reports are made from that document alone.
Knows no pytest, so that reports can be read on machines without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from offload.ground.errors import Misuse
from offload.ground.outside import json_outside, read_outside
from offload_conformance.clauses import LAYERS

VERSION: Final = 1
"""The version of the document. New fields keep it; a field that changes its meaning raises it."""

REPORT_SIZE_BYTES_MAX: Final = 64 * 2**20

OUTCOMES: Final = ("passed", "failed", "not_run")
NAMED_MAX: Final = 3
SCHEMA: Final = Path(__file__).with_name("report.schema.json")

Document = dict[str, Any]


def read(path: Path) -> Document:
    """Read a report from a file. Raises `Misuse` if it is not a report, or one of a newer version."""
    try:
        document = json_outside(read_outside(path, size_bytes_max=REPORT_SIZE_BYTES_MAX))
        version = document["report"]
        assert isinstance(document["clauses"], list)
    except OSError as exc:
        raise Misuse(f"cannot read the report {path}: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError, AssertionError) as exc:
        raise Misuse(f"{path} is not a report of a conformance run") from exc
    if version != VERSION:
        raise Misuse(f"{path} is a report of version {version}; this program reads version {VERSION}")
    found: Document = document
    return found


def totals(clauses: Iterable[Document]) -> dict[str, int]:
    """Return the number of clauses for each outcome."""
    found = Counter(clause["outcome"] for clause in clauses)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def by_layer(report: Document) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the totals of each layer that has clauses, and the number of its repeated calls."""
    for layer in LAYERS:
        clauses = [clause for clause in report["clauses"] if clause["layer"] == layer]
        if clauses:
            yield layer, totals(clauses) | {"retries": sum(clause.get("retries", 0) for clause in clauses)}


def verdict(report: Document) -> bool:
    """Return True if some required clause passed and none failed. An advisory clause may fail."""
    required = [clause for clause in report["clauses"] if not clause["advisory"]]
    found = totals(required)
    return not found["failed"] and bool(found["passed"])


def limits(report: Document) -> list[tuple[str, str]]:
    """Return the clauses that passed with less than they can ask for, and what limited them."""
    passed = (clause for clause in report["clauses"] if clause["outcome"] == "passed")
    return [(clause["id"], clause["message"]) for clause in passed if clause["message"]]


def reasons(report: Document) -> list[tuple[str, list[str]]]:
    """Return why clauses did not run to their end, with their ids, the most frequent reason first."""
    found: dict[str, list[str]] = {}
    for clause in report["clauses"]:
        if clause["outcome"] == "not_run":
            found.setdefault(clause["message"], []).append(clause["id"])
    return sorted(found.items(), key=lambda each: -len(each[1]))


def junit(report: Document) -> bytes:
    """Return the report as JUnit XML: a suite for each layer, a case for each clause."""
    root = ET.Element("testsuites", name="offload conformance")
    for layer, found in by_layer(report):
        clauses = [clause for clause in report["clauses"] if clause["layer"] == layer]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=layer,
            tests=str(len(clauses)),
            failures=str(found["failed"]),
            skipped=str(found["not_run"]),
            time=f"{sum(clause['duration_seconds'] for clause in clauses):.3f}",
            timestamp=report["started_at"],
        )
        for clause in clauses:
            _junit_case(suite, clause)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


def _junit_case(suite: ET.Element, clause: Document) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        classname=clause["layer"],
        name=clause["id"].partition("/")[2],
        time=f"{clause['duration_seconds']:.3f}",
    )
    message = _xml_text(clause["message"])
    if clause["outcome"] == "failed":
        ET.SubElement(case, "failure", message=clause["text"]).text = message
    elif clause["outcome"] == "not_run":
        ET.SubElement(case, "skipped", message=message)


def _xml_text(text: str) -> str:
    """Return the text without characters that XML cannot hold."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


def about(report: Document) -> list[tuple[str, str]]:
    """Return the facts to which a verdict applies: what was tested, when, and by what."""
    backend, environment = report["backend"], report["environment"]
    server = " ".join(filter(None, (report["server"], report["server_version"]))) or "not stated (--server)"
    return [
        ("backend", f"{backend['name']}, {backend['distribution']} {backend['version']}"),
        ("server", server),
        ("place", report["url"]),
        ("date", report["started_at"]),
        ("Python", f"{environment['implementation']} {environment['python']}, {environment['platform']}"),
        ("contract", f"{report['contract']}, ledger-offload {report['suite_version']}"),
        ("seed", str(report["seed"])),
    ]


def markdown(report: Document) -> str:
    """Return the report as Markdown, for a pull request or a page."""
    lines = [
        f"# {report['backend']['name']} against contract {report['contract']} of ledger-offload",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in about(report)),
        *(["", "The run was stopped by Ctrl-C."] if report.get("interrupted") else []),
        "",
        "| layer | passed | failed | not run | retries |",
        "|---|---|---|---|---|",
        *(f"| {layer} | {' | '.join(map(str, found.values()))} |" for layer, found in by_layer(report)),
        "",
        "| clause | outcome | claim |",
        "|---|---|---|",
    ]
    for clause in report["clauses"]:
        outcome = clause["outcome"].replace("_", " ") + (" (advisory)" if clause["advisory"] else "")
        lines.append(f"| `{clause['id']}` | {outcome} | {_cell(clause['text'])} |")
    for heads, rows in performance_tables(report):
        lines += [
            "",
            *(f"| {' | '.join(map(_cell, row))} |" for row in (heads, ("---",) * len(heads), *rows)),
        ]
    if why := reasons(report):
        lines += ["", "| not run | because |", "|---|---|"]
        lines += [f"| {_named(clauses)} | {_cell(reason)} |" for reason, clauses in why]
    if within := limits(report):
        lines += ["", "| passed | note |", "|---|---|"]
        lines += [f"| `{clause}` | {_cell(how)} |" for clause, how in within]
    failed = [clause for clause in report["clauses"] if clause["outcome"] == "failed"]
    for clause in failed:
        lines += ["", f"## {clause['id']}", "", clause["text"], "", "```text", clause["message"], "```"]
    return "\n".join(lines) + "\n"


def _named(clauses: list[str]) -> str:
    """Return a few clauses by their ids, more by their number. The table of clauses has all ids."""
    if len(clauses) > NAMED_MAX:
        return f"{len(clauses)} clauses"
    return ", ".join(f"`{each}`" for each in clauses)


def performance_tables(report: Document) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Yield heads and rows of the measurements, for people, or nothing if there are none."""
    measured = report.get("performance")
    if not measured:
        return
    yield (
        ("one caller", "bytes", "calls", "median ms", "p99 ms", "max ms", ""),
        [
            (
                *(row["operation"], str(row["size_bytes"]), str(row["calls"])),
                *(_ms(row[f"{which}_seconds"]) for which in ("median", "p99", "max")),
                row["error"],
            )
            for row in measured["latency"]
        ],
    )
    yield (
        ("at once", "bytes", "how many", "calls", "MB/s", ""),
        [
            (
                *(row["operation"], str(row["size_bytes"]), str(row["at_once"]), str(row["calls"])),
                "-" if row["bytes_per_second"] is None else f"{row['bytes_per_second'] / 1e6:.1f}",
                row["error"],
            )
            for row in measured["throughput"]
        ],
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def badge(report: Document) -> Document:
    """Return the JSON of which https://shields.io/badges/endpoint-badge makes an image."""
    found = totals(report["clauses"])
    asked = found["passed"] + found["failed"]
    whole = verdict(report) and not found["not_run"]
    backend, server = report["backend"], " ".join(filter(None, (report["server"], report["server_version"])))
    words = (
        f"{backend['name']} {backend['version']}" + (f" on {server}" if server else ""),
        f"{found['passed']} of {asked + found['not_run']} clauses",
        report["started_at"][: len("2026-11-22")],
        f"Python {report['environment']['python']}",
    )
    return {
        "schemaVersion": 1,
        "label": f"ledger-offload contract {report['contract']}",
        "message": ", ".join(words),
        "color": "brightgreen" if whole else "yellow" if verdict(report) else "red",
    }


CHANGES: Final = ("newly fails", "newly passes", "not run any more", "appeared", "disappeared")


def compare(old: Document, new: Document) -> dict[str, list[str]]:
    """Return the ids of changed clauses by the kind of change.

    A new clause that fails is also newly failing.
    """
    before = {clause["id"]: clause["outcome"] for clause in old["clauses"]}
    after = {clause["id"]: clause["outcome"] for clause in new["clauses"]}

    def now(outcome: str) -> list[str]:
        return [each for each, is_ in after.items() if is_ == outcome and before.get(each) != outcome]

    found = (
        now("failed"),
        [each for each in now("passed") if each in before],
        [each for each in now("not_run") if each in before],
        [each for each in after if each not in before],
        [each for each in before if each not in after],
    )
    return dict(zip(CHANGES, found, strict=True))
