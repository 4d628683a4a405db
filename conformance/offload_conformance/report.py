"""The report of a run: one JSON document, whose schema is `report.schema.json` beside this file.

Everything else is made from that document: JUnit, Markdown, the badge, and the comparison of two.
Knows no pytest, so that reports can be read where none is installed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from offload.errors import Misuse
from offload_conformance.clauses import LAYERS

VERSION: Final = 1
"""Of the document. It grows by fields; a field that changes its meaning is a new version."""

OUTCOMES: Final = ("passed", "failed", "not_run")
NAMED_MAX: Final = 3
SCHEMA: Final = Path(__file__).with_name("report.schema.json")

Document = dict[str, Any]


def read(path: Path) -> Document:
    """A report from a file. Raises `Misuse` where it is none, or one of a newer version."""
    try:
        document = json.loads(path.read_bytes())
        version = document["report"]
        assert isinstance(document["clauses"], list)
    except (ValueError, KeyError, TypeError, AssertionError) as exc:
        raise Misuse(f"{path} is no report of a conformance run") from exc
    if version != VERSION:
        raise Misuse(f"{path} is a report of version {version}, and this program reads version {VERSION}")
    found: Document = document
    return found


def totals(clauses: Iterable[Document]) -> dict[str, int]:
    """How many clauses ended in which way."""
    found = Counter(clause["outcome"] for clause in clauses)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def by_layer(report: Document) -> Iterator[tuple[str, dict[str, int]]]:
    """The totals of each layer that has clauses, and how many calls were repeated for it."""
    for layer in LAYERS:
        clauses = [clause for clause in report["clauses"] if clause["layer"] == layer]
        if clauses:
            yield layer, totals(clauses) | {"retries": sum(clause.get("retries", 0) for clause in clauses)}


def verdict(report: Document) -> bool:
    """Whether no required clause failed, and some were asked. An advisory one may fail."""
    required = [clause for clause in report["clauses"] if not clause["advisory"]]
    found = totals(required)
    return not found["failed"] and bool(found["passed"])


def limits(report: Document) -> list[tuple[str, str]]:
    """The clauses that passed although they asked for less than they may, and what they say of it."""
    passed = (clause for clause in report["clauses"] if clause["outcome"] == "passed")
    return [(clause["id"], clause["message"]) for clause in passed if clause["message"]]


def reasons(report: Document) -> list[tuple[str, list[str]]]:
    """Why clauses were not asked to their end, and the ids of the clauses, the most frequent reason first."""
    found: dict[str, list[str]] = {}
    for clause in report["clauses"]:
        if clause["outcome"] == "not_run":
            found.setdefault(clause["message"], []).append(clause["id"])
    return sorted(found.items(), key=lambda each: -len(each[1]))


def junit(report: Document) -> bytes:
    """As JUnit's XML: a suite per layer, a case per clause."""
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
    """Text without what XML cannot hold."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


def about(report: Document) -> list[tuple[str, str]]:
    """Return what a verdict holds for, so that a report stands alone: what was tested, when, and by what."""
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
    """For a pull request, or a page."""
    lines = [
        f"# {report['backend']['name']} against contract {report['contract']} of ledger-offload",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in about(report)),
        *(["", "Stopped by Ctrl-C before its end."] if report.get("interrupted") else []),
        "",
        "| layer | passed | failed | not run | retries |",
        "|---|---|---|---|---|",
        *(f"| {layer} | {' | '.join(map(str, found.values()))} |" for layer, found in by_layer(report)),
        "",
        "| clause | outcome | what it says |",
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
    """A few clauses by their names, more by their number: the table of clauses has them."""
    if len(clauses) > NAMED_MAX:
        return f"{len(clauses)} clauses"
    return ", ".join(f"`{each}`" for each in clauses)


def performance_tables(report: Document) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    """Heads and rows of what was measured, for people; nothing where nothing was."""
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
    """What https://shields.io/badges/endpoint-badge makes an image of. It names what it holds for."""
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
    """The ids of the clauses that changed, by how. One that appeared and fails also newly fails."""
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
