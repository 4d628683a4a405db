"""The badge as a picture: an SVG without external fonts, scripts or addresses.

Invariants: every word comes from the badge of the report. The width follows from the words, and `textLength`
keeps each text in its place, whatever font the reader has.
"""

from __future__ import annotations

from typing import Final
from xml.etree import ElementTree as ET

from offload_conformance.report import Document, badge

COLORS: Final = {"brightgreen": "#3c8f1f", "yellow": "#8a6d00", "red": "#b8371d"}
"""Colours dark enough for white letters."""

HEIGHT: Final = 20
LETTER: Final = 6.5
"""The average width of a letter."""
MARGIN: Final = 8


def svg(report: Document) -> bytes:
    """Return the badge of a report as an SVG file."""
    words = badge(report)
    label, message = words["label"], words["message"]
    left, right = (round(len(text) * LETTER + 2 * MARGIN) for text in (label, message))
    root = ET.Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        width=str(left + right),
        height=str(HEIGHT),
        role="img",
        attrib={"aria-label": f"{label}: {message}"},
    )
    ET.SubElement(root, "title").text = f"{label}: {message}"
    for x, width, color, text in (
        (0, left, "#444", label),
        (left, right, COLORS[words["color"]], message),
    ):
        ET.SubElement(root, "rect", x=str(x), width=str(width), height=str(HEIGHT), fill=color)
        written = ET.SubElement(
            root,
            "text",
            x=str(x + MARGIN),
            y="14",
            textLength=str(width - 2 * MARGIN),
            attrib={"fill": "#fff", "font-family": "Verdana, DejaVu Sans, sans-serif", "font-size": "11"},
        )
        written.text = text
    picture: bytes = ET.tostring(root, encoding="utf-8")
    return picture + b"\n"
