"""A mutant: a rule of the product, and a way to take it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule, the way to take it out, and what finds the mutant."""

    clause: str
    """The section of the rule in `docs/commit-protocol.md`. "-" if it is no rule of the protocol."""

    rule: str
    take_out: Callable[[pytest.MonkeyPatch], None]

    seed: int | None = None
    """The first seed whose history shows the harm. If the code changes, tests seek another one."""

    needs: str = ""
    """What a replay must bring about, if chance meets it too rarely for a seed."""


def set_to(*changes: tuple[Any, str, Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what replaces these attributes."""

    def take_out(patch: pytest.MonkeyPatch) -> None:
        for owner, name, value in changes:
            patch.setattr(owner, name, value)

    return take_out
