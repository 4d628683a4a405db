"""`offload help`: print a page of the documentation, or a section of it. The pages come with the package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final

import typer

import offload
from offload.cli.commands import BUILT_IN
from offload.cli.kit.ending import Usage
from offload.ground.errors import OffloadError

Topic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC",
        help="A page, or PAGE#SECTION as messages name it, or a command. Default: list the pages.",
    ),
]

PACKAGE: Final = Path(offload.__file__).parent
COMMANDS: Final = "command-line"
"""The page with a section for each command."""

_HEADING: Final = re.compile(r"(#+) (.*)")
_LINK: Final = re.compile(r"\[([^\]]*)\]\(([\w-]*)(?:\.md)?(#[\w-]+)?\)")
"""A link to another page, or to a section of this one."""


def help(topic: Topic = None) -> int:  # noqa: A001 - a command's function has its name
    """Print a page of the documentation, or a section of it. Without TOPIC, list the pages."""
    pages = {
        path.stem: path
        for path in sorted(_folder().glob("*.md"), key=lambda path: path.stem)
        if path.stem != "README"
    }
    if topic is None:
        for name, path in pages.items():
            print(f"{name:<{max(map(len, pages))}}  {_title(path)}")
        return 0
    page, _, section = topic.removeprefix("docs/").replace(".md", "").partition("#")
    if page not in pages and page in BUILT_IN:
        page, section = COMMANDS, page
    if page not in pages:
        near = get_close_matches(page, pages, n=1)
        meant = f"; did you mean: offload help {near[0]}" if near else ""
        raise Usage(f"there is no page {page!r}{meant}; to list all: offload help")
    lines = pages[page].read_text(encoding="utf-8").splitlines()
    print("\n".join(_with_topics(page, _section(lines, page, section) if section else lines)))
    return 0


def _folder() -> Path:
    """Return the folder of the pages: in the package, or in the checkout that it is part of."""
    for folder in (PACKAGE / "pages", PACKAGE.parent / "docs"):
        if (folder / f"{COMMANDS}.md").is_file():
            return folder
    raise OffloadError("this installation has no pages; the source distribution has them, in docs")


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as page:
        return next(page).removeprefix("# ").rstrip()


def _section(lines: list[str], page: str, section: str) -> list[str]:
    """Return a section and those below it. Raises `Usage` if the page has none of this name."""
    sections, begin, level = list[str](), -1, 0
    for number, found in _headings(lines):
        name = re.sub(r"[^\w\- ]", "", found[2].lower()).replace(" ", "-")
        sections.append(name)
        if begin >= 0 and len(found[1]) <= level:
            return lines[begin:number]
        if begin < 0 and name == section:
            begin, level = number, len(found[1])
    if begin < 0:
        raise Usage(f"page {page!r} has no section {section!r}; it has: {', '.join(sections[1:])}")
    return lines[begin:]


def _headings(lines: list[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the headings, and not the comments in examples."""
    is_code = False
    for number, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and (found := _HEADING.fullmatch(line)) is not None:
            yield number, found


def _with_topics(page: str, lines: list[str]) -> Iterator[str]:
    """Yield the lines, with the command that prints the target in the place of each link to a page."""
    is_code = False
    for line in lines:
        if line.lstrip().startswith("```"):
            is_code = not is_code
        yield line if is_code else _LINK.sub(lambda link: _shown(page, link), line)


def _shown(page: str, link: re.Match[str]) -> str:
    return f"{link[1]} (offload help {link[2] or page}{link[3] or ''})"
