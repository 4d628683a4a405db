"""A real stream that comes with the plugin, so that a demonstration needs no broker."""

from __future__ import annotations

from pathlib import Path


def sample_path() -> Path:
    """The folder that holds the stream `tiny`, to be used as a source. Copy it before writing there."""
    return Path(__file__).parent / "sample"
