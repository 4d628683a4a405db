"""Ten words that had several meanings: the glossary has the one that each has in names, and who bears it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\w+) \| .+ \| (.*) \| (.*) \|$", re.MULTILINE)
BASES = {"copied": "copy", "copier": "copy", "copying": "copy", "copies": "copy"}


def words_of(name: str) -> Iterator[str]:
    """Yield the words of a class or module name, in the singular."""
    for word in re.findall(r"[A-Z]?[a-z0-9]+", name):
        yield BASES.get(word.lower(), word.lower().removesuffix("s"))


def names() -> tuple[set[str], set[str]]:
    """Return the names of all classes and modules of the product."""
    files = [
        path
        for top in ("offload", "backends", "plugins", "conformance")
        for path in ROOT.glob(f"{top}/**/*.py")
        if "bugs" not in path.parts  # a planted bug is called by a sentence
    ]
    found = (re.findall(r"^ *class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE) for path in files)
    return {name for each in found for name in each}, {f"{path.parent.name}/{path.stem}" for path in files}


def named_after(word: str, names: Iterable[str]) -> set[str]:
    """Return the names that have this word."""
    return {name for name in names if word in words_of(name.rpartition("/")[2])}


def test_names_with_a_word_of_several_meanings_are_those_of_the_glossary() -> None:
    """Whoever gives such a name finds the meaning of its word in the table, and adds the name to it."""
    _, _, table = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").partition("## Words in names")
    rows = {
        word: tuple(set(re.findall(r"`([\w/]+)`", cell)) for cell in cells)
        for word, *cells in ROW.findall(table)[1:]
    }

    assert len(rows) == 10
    classes, modules = names()
    for word, (of_classes, of_modules) in rows.items():
        assert named_after(word, classes) == of_classes, word
        assert named_after(word, modules) == of_modules, word
