"""The badge: an image without external parts, or JSON from which shields.io makes an image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from conformance_box.installed import Site, box, report_in
from offload_conformance.badge import COLORS, svg
from offload_conformance.report import badge

SVG = "{http://www.w3.org/2000/svg}"


def report(*outcomes: str, advisory: bool = False) -> dict[str, Any]:
    clauses = [{"outcome": outcome, "advisory": advisory and outcome == "failed"} for outcome in outcomes]
    return {
        "contract": "0.9",
        "backend": {"name": "attic", "version": "1.5"},
        "server": "SQLite",
        "server_version": "3.40",
        "started_at": "2026-11-22T10:00:00Z",
        "environment": {"python": "3.11.7"},
        "clauses": clauses,
    }


def test_the_picture_shows_the_backend_the_date_and_the_suite() -> None:
    root = ET.fromstring(svg(report("passed", "passed", "failed")))

    label, message = (text.text for text in root.iter(f"{SVG}text"))
    assert label == "ledger-offload contract 0.9"
    assert message == "attic 1.5 on SQLite 3.40, 2 of 3 clauses, 2026-11-22, Python 3.11.7"
    assert root.findtext(f"{SVG}title") == root.get("aria-label") == f"{label}: {message}"


@pytest.mark.parametrize(
    ("made", "color"),
    [
        (report("passed", "passed"), "brightgreen"),
        (report("passed", "not_run"), "yellow"),
        (report("passed", "failed", advisory=True), "brightgreen"),
        (report("passed", "failed"), "red"),
        (report("not_run"), "red"),
    ],
)
def test_the_badge_is_green_only_after_a_verdict_on_every_clause(made: dict[str, Any], color: str) -> None:
    picture = ET.fromstring(svg(made))

    assert badge(made)["color"] == color
    assert [rect.get("fill") for rect in picture.iter(f"{SVG}rect")][1] == COLORS[color]


def test_the_words_lie_within_the_picture_and_beside_each_other() -> None:
    root = ET.fromstring(svg(report(*["passed"] * 1234)))
    ends = [(int(each.get("x", "")), int(each.get("textLength", ""))) for each in root.iter(f"{SVG}text")]

    (first, first_length), (second, second_length) = ends
    assert 0 < first < first + first_length < second < second + second_length < int(root.get("width", ""))


def test_the_picture_loads_nothing_and_runs_nothing() -> None:
    picture = svg(report("passed")).decode()

    assert re.findall(r"https?://[^\"' ]+", picture) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|<script|url\(|<!|\bon\w+=", picture)


def test_a_version_cannot_inject_markup() -> None:
    root = ET.fromstring(svg(report("passed") | {"contract": '<"&>'}))

    assert next(root.iter(f"{SVG}text")).text == 'ledger-offload contract <"&>'


def test_the_name_of_the_file_decides_its_format(site: Site, tmp_path: Path) -> None:
    picture, endpoint = tmp_path / "badge.SVG", tmp_path / "badge.json"
    select = ("--select", "store/puts_are_whole")

    for path in (picture, endpoint):
        assert box(tmp_path / "place", *select, "--badge", path).code == 0

    said = report_in(endpoint)
    assert said["schemaVersion"] == 1
    assert ET.parse(picture).getroot().get("aria-label") == f"{said['label']}: {said['message']}"
