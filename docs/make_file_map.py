"""Writes two lists of the code: the file map of docs/how-it-works.md, and the files of decision 20.

    python docs/make_file_map.py

The text of a folder is the first paragraph of the docstring of its `__init__`, that of a file is the first
sentence of its head. `tests/docs/test_pages.py` compares the pages with what this makes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MAP: Final = ROOT / "docs" / "how-it-works.md"
ROOMS: Final = ROOT / "docs" / "adr" / "0020-rooms-of-the-core.md"
"""Its table of imports names the rooms of the core, each after those that it imports."""

PACKAGES: Final = (
    "backends/offload_posix",
    "backends/offload_cloud",
    "backends/offload_s3",
    "backends/offload_gcs",
    "backends/offload_azure",
    "plugins/offload_keys",
    "plugins/offload_mqtt",
    "plugins/offload_pulsar",
    "plugins/offload_queue",
    "plugins/offload_rabbitmq",
    "plugins/offload_rabbitmq_s3",
    "plugins/offload_rocketmq",
    "plugins/offload_spark",
    "plugins/pyspark_offload",
    "conformance/offload_conformance",
)
"""The packages around the core, in the order of the map."""


def rooms() -> dict[str, str]:
    """Return the rooms of the core with the names of those that each may import, as decision 20 has them."""
    rows = re.findall(
        r"^\| (\w+) \| (nothing|(?:\w+, )*\w+) \|$", ROOMS.read_text(encoding="utf-8"), re.MULTILINE
    )
    return {room: "" if others == "nothing" else others for room, others in rows}


def folders(tops: Iterable[str]) -> Iterator[str]:
    """Yield these folders, each with the packages in it behind it."""
    for top in tops:
        inner = sorted(init.parent for init in (ROOT / top).rglob("__init__.py"))
        yield from (str(folder.relative_to(ROOT)) for folder in inner)


def about(folder: str) -> str:
    """Return the first paragraph of the docstring of a folder's `__init__`, in one line."""
    text = (ROOT / folder / "__init__.py").read_text(encoding="utf-8")
    return _cell((ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0])


def files(folder: str) -> str:
    """Return the names of a folder's modules, without their suffix, in order."""
    names = sorted(path.stem for path in (ROOT / folder).glob("*.py"))
    return ", ".join(f"`{name}`" for name in names if name not in ("__init__", "__main__"))


def file_map() -> str:
    """Return docs/how-it-works.md with the rows of its map as the folders are now."""
    core = (f"offload/{room}" for room in rooms())
    found = folders([*core, *PACKAGES])
    rows = "".join(f"| `{folder}/` | {about(folder)} | {files(folder)} |\n" for folder in found)
    return _between(MAP, "Rows", f"\n| folder | what it is | files |\n|---|---|---|\n{rows}\n")


def file_list() -> str:
    """Return decision 20 with its list of the files of the core as they are now."""
    lines = []
    for folder in folders(f"offload/{room}" for room in rooms()):
        lines.append(f"\n- **{folder}/**: {about(folder)}\n")
        paths = sorted((ROOT / folder).glob("*.py"))
        lines += [f"  - `{path.stem}`: {_head(path)}\n" for path in paths if path.stem[:2] != "__"]
    return _between(ROOMS, "Files", "".join(lines).lstrip("\n"))


PAGES: Final = {MAP: file_map, ROOMS: file_list}
"""The pages, and what makes each."""


def _between(page: Path, what: str, text: str) -> str:
    """Return a page with this text between its two marks."""
    marks = f"<!-- {what} by docs/make_file_map.py. -->\n", f"<!-- End of the {what.lower()}. -->\n"
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    assert begin, f"{page.name} has no line {marks[0]!r}"
    assert end, f"{page.name} has no line {marks[1]!r}"
    return f"{before}{begin}{text}{end}{after}"


def _head(path: Path) -> str:
    """Return the first sentence of a file's head, in one line."""
    text = " ".join(
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].split()
    )
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0].rstrip(":")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    for page, made in PAGES.items():
        page.write_text(made(), encoding="utf-8")
