"""A real stream that is part of the plugin, so that a demonstration needs no broker."""

from __future__ import annotations

from pathlib import Path


def sample_path() -> Path:
    """Return the folder that holds the stream `tiny`, for use as a source. Copy it before you change it."""
    return Path(__file__).parent / "sample"
