"""Writes docs/contract.md: every sentence of the contracts, and the clauses that ask for it.

    python docs/make_contract.py

The sentences come from the docstrings of `PAGES`. The cells beside them are written by people, in the page
itself: they are kept as long as their sentence is the same word for word. A new or changed sentence has an
empty cell, and `tests/contract/test_sentences.py` fails until it names a clause or a reason.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
PAGE: Final = HERE / "contract.md"
PAGES: Final = (
    "offload/contracts/store.py",
    "offload/contracts/catalogue.py",
    "offload/contracts/ledger.py",
    "offload/contracts/offloader.py",
    "offload/model/attempt.py",
)
OWN: Final = frozenset({"Body.of", "check_key", "EntryView"})
"""What the framework does itself in these modules, as it does `__aenter__`. No backend implements it."""

BEGIN: Final = "<!-- Sentences by docs/make_contract.py, cells by hand. -->\n"
HEAD: Final = "| sentence | asked by |"
ROW: Final = re.compile(r"^\| (.*?) \| (.*?) ?\|$")
_SENTENCE_ENDS: Final = re.compile(r"(?<=\.)\s+")

Key = tuple[str, str]
"""The name that a sentence is about, and the sentence."""


def documented(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Every public name of a module with its docstring. The module itself has no name."""
    yield "", ast.get_docstring(module) or ""
    yield from _of_body("", module.body)


def _of_body(outer: str, body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for before, node in zip([None, *body], body, strict=False):
        match before, node:
            case _, ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("_") or outer + name in OWN:
                    continue
                yield outer + name, ast.get_docstring(node) or ""
                if isinstance(node, ast.ClassDef):
                    yield from _of_body(f"{name}.", node.body)
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield outer + name, inspect.cleandoc(text)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a docstring, each in one line. Items of a list begin with the words before it.

    Each line of an indented table is one.
    """
    paragraphs = re.split(r"\n\s*\n", text)
    lead = ""
    for paragraph, following in zip(paragraphs, [*paragraphs[1:], ""], strict=True):
        if paragraph.startswith("    "):
            yield from (re.sub(r" {2,}", ": ", line.strip()) + "." for line in paragraph.splitlines())
            continue
        first, *items = re.split(r"^- ", paragraph, flags=re.MULTILINE)
        found = [each for item in items or [first] for each in _split(f"{lead} {item}" if items else item)]
        lead = ""
        if following.startswith("- ") and not found[-1].endswith("."):
            lead = found.pop()
        yield from (each.rstrip(";.:") + "." for each in found)


def _split(text: str) -> list[str]:
    return _SENTENCE_ENDS.split(" ".join(text.split()))


def keys() -> Iterator[tuple[str, list[Key]]]:
    """For each page its path, and every sentence on it."""
    for path in PAGES:
        module = ast.parse((HERE.parent / path).read_text(encoding="utf-8"))
        yield path, [(name, each) for name, text in documented(module) for each in sentences(text)]


def cells(page: str) -> dict[Key, str]:
    """What the page says beside each sentence."""
    found: dict[Key, str] = {}
    name = ""
    for line in page.partition(BEGIN)[2].splitlines():
        if line.startswith("##"):
            name = line.strip("# `") if line.startswith("###") else ""
        elif (match := ROW.match(line)) and line != HEAD:
            found[name, match[1].replace("\\|", "|")] = match[2]
    return found


def page() -> str:
    """docs/contract.md as the docstrings are now, with the cells that are written there."""
    before, begin, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + begin + "\n".join(_tables(cells(begin + _))) + "\n"


def _tables(known: dict[Key, str]) -> Iterable[str]:
    for path, rows in keys():
        yield f"\n## {path}"
        name = None
        for key in rows:
            if key[0] != name:
                name = key[0]
                yield f"\n### `{name}`\n" if name else ""
                yield f"{HEAD}\n|---|---|"
            yield f"| {key[1].replace('|', chr(92) + '|')} | {known.get(key, '')} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
