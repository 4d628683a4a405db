"""The list of commands in a help text: in groups, and each with its whole first sentence.

The library lists all commands in one column, and cuts what does not fit into one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from typer.core import TyperGroup

from offload.cli.commands import GROUPS

OTHERS: Final = "Commands of plugins"


class GroupedCommands(TyperGroup):
    """The built-in commands and those of plugins, as `offload --help` lists them."""

    groups: Mapping[str, Sequence[str]] = GROUPS
    others = OTHERS

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups in which there are commands."""
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        for title, group in self._groups(names):
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), _sentence(self.commands[name])) for name in group])

    def _groups(self, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        known = {name for group in self.groups.values() for name in group}
        rest = [name for name in names if name not in known]
        for title, group in (*self.groups.items(), (self.others, rest)):
            if found := [name for name in group if name in names]:
                yield title, found


class ListedCommands(GroupedCommands):
    """The commands below a command, in one group."""

    groups: Mapping[str, Sequence[str]] = {}
    others = "Commands"


def _sentence(command: Any) -> str:
    """Return the first sentence of a command's help."""
    text = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text, maxsplit=1)[0]
