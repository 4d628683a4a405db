"""Results compared by all their fields, so that no clause has to choose the fields that may be wrong.

`facts` turns a manifest, a receipt, a leftover, entries or a table into plain values; `assert_same` compares
two of them and names the first field that differs. A clause leaves a field out only by its name (`but`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

__all__ = ["OWN_CHOICE", "POSITION", "assert_same", "facts"]

POSITION: Final = frozenset({"position"})
"""The column of a table that only the handle can interpret."""

OWN_CHOICE: Final = frozenset(
    {
        *("attempt", "uid", "writer", "committer", "commit_id", "parent_commit_id", "incarnation", "stream"),
        *("version", "checksum", "stored_size_bytes", "tail_size_bytes"),
    }
)
"""The fields that may differ between two streams whose writers did the same: names, and sizes as stored."""


def facts(result: Any, *, but: Collection[str] = ()) -> Any:
    """Return a result as plain values, without the fields of these names at any depth."""
    if (columns := getattr(getattr(result, "dtype", None), "names", None)) is not None:
        return {name: result[name].tolist() for name in columns if name not in but}
    if is_dataclass(result) and not isinstance(result, type):
        names = tuple(each.name for each in fields(result))
        return {name: facts(getattr(result, name), but=but) for name in names if name not in but}
    if isinstance(result, Mapping):
        return {name: facts(value, but=but) for name, value in result.items()}
    if isinstance(result, list | tuple):
        return [facts(each, but=but) for each in result]
    return result


def assert_same(found: Any, expected: Any, *, but: Collection[str] = ()) -> None:
    """Assert that two results have the same fields, and the same values in them."""
    one, two = facts(found, but=but), facts(expected, but=but)
    if isinstance(one, dict) and isinstance(two, dict):
        for name in one | two:
            assert (name, one.get(name)) == (name, two.get(name))
    assert one == two
