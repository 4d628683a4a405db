"""Write docs/contract.md: every sentence of the contracts, and the clauses that test it.

    python docs/make_contract.py

The sentences come from the docstrings of `PAGES`. People write the cells beside them, in the page itself. A
cell is kept as long as its sentence is the same word for word. A new or changed sentence has an empty cell,
and `tests/contract/test_sentences.py` fails until it names a clause or a reason.
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
OWN: Final = frozenset({"Body.of", "Body.check_size", "begin_upload", "check_key", "EntryView"})
"""The names in these modules that the framework implements itself, as it does `__aenter__`.

No backend does.
"""

BEGIN: Final = "<!-- Sentences by docs/make_contract.py, cells by hand. -->\n"
HEAD: Final = "| sentence | tested by |"
ROW: Final = re.compile(r"^\| (.*?) \| (.*?) ?\|$")
_SENTENCE_ENDS: Final = re.compile(r"(?<=\.)\s+")

Key = tuple[str, str]
"""The name that a sentence describes, and the sentence."""


def documented(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield every public name of a module with its docstring. The module itself has the empty name."""
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
    """Yield the sentences of a docstring, each in one line.

    An item of a list begins with the words before the list. Each line of an indented table is one sentence.
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
    """Yield the path of each module in `PAGES` with all of its sentences."""
    for path in PAGES:
        module = ast.parse((HERE.parent / path).read_text(encoding="utf-8"))
        yield path, [(name, each) for name, text in documented(module) for each in sentences(text)]


def cells(page: str) -> dict[Key, str]:
    """Return the cell beside each sentence of the page."""
    found: dict[Key, str] = {}
    name = ""
    for line in page.partition(BEGIN)[2].splitlines():
        if line.startswith("##"):
            name = line.strip("# `") if line.startswith("###") else ""
        elif (match := ROW.match(line)) and line != HEAD:
            found[name, match[1].replace("\\|", "|")] = match[2]
    return found


def page() -> str:
    """Return docs/contract.md with the present sentences of the docstrings and the cells of the page."""
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
