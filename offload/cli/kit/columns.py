"""Fitting tables and trees into the width of a terminal, each by one rule.

A table:

    1. the heads break at their spaces
    2. a long name in the first column loses its middle: its end tells it from others
    3. columns go, in the order that the command gives, and a line below the table names them
    4. cells of other columns fold, if they are text

Each step is taken only if the table is still too wide after the one before. Then the names get back what room
is left.

A line of a tree breaks between two facts: at two spaces, and then at a comma outside of brackets. A sentence
breaks between two words, but not within brackets, between a number and its unit, or in a command for help.
The progress bar has one line: its longest word, which is a name, loses its middle.

Invariants: a number, a size or a time is never broken and never shortened. Two names that differ are shown
differently. Output that is no terminal, and `--json`, are not fitted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.tree import Tree

GAP: Final = 2
"""The spaces between two columns."""

NAME_WIDTH_MIN: Final = 24
"""A name is not shortened below this width."""

CUT: Final = ".."
GUIDE_WIDTH: Final = 4
"""The width of the lines that a tree draws before a label, for each level."""

COMMA: Final = re.compile(r"(?<=,) (?![^\[(]*\))")
"""The space behind a comma that is in no brackets, and in no range of offsets."""

BETWEEN_WORDS: Final = re.compile(
    r"(?<!offload)(?<!offload help) (?![^\[(]*[)\]])(?!(?<=\d )(?:(?:[KMGT]i)?B|m?s)\b)"
)
"""The space between two words, which is not between a number and its unit."""

NUMBER: Final = re.compile(r"[\d.,:+TZ-]*%?( ([KMGT]iB|B|s|ms))?|not known|-|yes|no")


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTable:
    """A table that fits, or that folds cells of text."""

    heads: list[str]
    """With line breaks, if the heads are broken."""

    rows: list[list[str]]
    is_whole: list[bool]
    """For each column, whether its cells may not fold."""

    not_shown: list[str]
    """The heads of the columns that are gone."""


def fit(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, drop: Sequence[str] = ()
) -> FittedTable:
    """Fit a table into a width. The columns of `drop` may go, the first one first."""
    columns = [[row[number] for row in rows] for number in range(len(heads))]
    shown = [*range(len(heads))]
    broken = [*heads]
    if _width(broken, columns, shown) > width:
        broken = [head.replace(" ", "\n") for head in heads]
    names = columns[0]
    if _width(broken, columns, shown) > width:
        columns[0] = shortened(names, NAME_WIDTH_MIN)
    not_shown = list[str]()
    for head in drop:
        if head in heads and _width(broken, columns, shown) > width:
            shown.remove([*heads].index(head))
            not_shown.append(head)
    spare = width - _width(broken, columns, shown)
    if spare > 0 and columns[0] != names:
        columns[0] = shortened(names, max(map(cell_len, columns[0])) + spare)
    return FittedTable(
        heads=[broken[number] for number in shown],
        rows=[[columns[number][row] for number in shown] for row in range(len(rows))],
        is_whole=[number == 0 or all(map(NUMBER.fullmatch, columns[number])) for number in shown],
        not_shown=not_shown,
    )


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most this width, or of the least width at which names that differ look different."""
    while True:
        found = [_cut(name, width) for name in names]
        if len({*found}) == len({*names}):
            return found
        width += 1


def _cut(name: str, width: int) -> str:
    if cell_len(name) <= width:
        return name
    head = tail = name
    while cell_len(head) > (width - len(CUT)) // 3:
        head = head[:-1]
    while cell_len(tail) > width - len(CUT) - cell_len(head):
        tail = tail[1:]
    return f"{head}{CUT}{tail}"


def fit_words(text: str, width: int) -> str:
    """Return a line whose longest word has lost its middle, if the line was wider than this."""
    if (over := cell_len(text) - width) <= 0:
        return text
    longest = max(text.split(" "), key=cell_len)
    return text.replace(longest, _cut(longest, max(cell_len(longest) - over, len(CUT) + 2)), 1)


def fit_sentence(text: str, width: int, command: str = "") -> str:
    """Return a sentence in lines of at most this width, if no word and no command at its end is wider."""
    if cell_len(whole := f"{text} {command}".rstrip()) <= width:
        return whole
    words = [*BETWEEN_WORDS.split(text), *([command] if command else [])]
    return "\n  ".join(_filled(words, " ", width - GAP))


def fit_tree(tree: Tree, width: int) -> None:
    """Break the labels of a tree that are wider than this."""
    if isinstance(tree.label, str) and cell_len(tree.label) > width:
        lines = _filled(tree.label.split("  "), "  ", width)
        tree.label = "\n  ".join(
            line for each in lines for line in _filled(COMMA.split(each), " ", width - GAP)
        )
    for child in tree.children:
        fit_tree(child, width - GUIDE_WIDTH)


def _filled(pieces: Sequence[str], between: str, width: int) -> list[str]:
    """Join pieces to lines of at most this width, if no piece is wider."""
    lines = [pieces[0]]
    for piece in pieces[1:]:
        longer = f"{lines[-1]}{between}{piece}"
        lines[-1:] = [longer] if cell_len(longer) <= width else [lines[-1], piece]
    return lines


def _width(heads: Sequence[str], columns: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    wide = [max(map(cell_len, (*heads[number].split("\n"), *columns[number]))) for number in shown]
    return sum(wide) + GAP * (len(shown) - 1)
