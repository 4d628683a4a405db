"""Writes the file map of docs/how-it-works.md: every folder of the code, what it is for, and its files.

    python docs/make_file_map.py

The text of a row is the first paragraph of the docstring of the folder's `__init__`.
`tests/docs/test_pages.py` compares the page with what this makes.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "how-it-works.md"

FOLDERS: Final = (
    "offload",
    "offload/model",
    "offload/formats",
    "offload/contracts",
    "offload/store",
    "offload/local",
    "offload/commit",
    "offload/native",
    "offload/streams",
    "offload/upkeep",
    "offload/upkeep/compact",
    "offload/upkeep/copy",
    "offload/upkeep/rebuild",
    "offload/upkeep/sweep",
    "offload/upkeep/verify",
    "offload/managed",
    "offload/arrow",
    "offload/service",
    "offload/cli",
    "offload/cli/kit",
    "backends/offload_posix",
    "backends/offload_cloud",
    "backends/offload_s3",
    "backends/offload_gcs",
    "backends/offload_azure",
    "plugins/offload_keys",
    "plugins/offload_pulsar",
    "plugins/offload_rabbitmq",
    "plugins/offload_spark",
    "plugins/offload_spark/jobs",
    "plugins/pyspark_offload",
    "conformance/offload_conformance",
    "conformance/offload_conformance/store",
    "conformance/offload_conformance/offloader",
    "conformance/offload_conformance/protocol",
)
"""The folders: first the core, each after those that it imports, then the packages around it."""

BEGIN: Final = "<!-- Rows by docs/make_file_map.py. -->\n"
END: Final = "<!-- End of the rows. -->\n"


def about(folder: str) -> str:
    """Return the first paragraph of the docstring of a folder's `__init__`, in one line."""
    text = (ROOT / folder / "__init__.py").read_text(encoding="utf-8")
    return _cell((ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0])


def files(folder: str) -> str:
    """Return the names of a folder's modules, without their suffix, in order."""
    names = sorted(path.stem for path in (ROOT / folder).glob("*.py"))
    return ", ".join(f"`{name}`" for name in names if name not in ("__init__", "__main__"))


def page() -> str:
    """Return docs/how-it-works.md with the rows of its map as the folders are now."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE.name} has no line {BEGIN!r}"
    assert end, f"{PAGE.name} has no line {END!r}"
    rows = "".join(f"| `{folder}/` | {about(folder)} | {files(folder)} |\n" for folder in FOLDERS)
    return f"{before}{begin}\n| folder | what it is | files |\n|---|---|---|\n{rows}\n{end}{after}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
