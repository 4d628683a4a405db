"""A caller's storage options, divided by who takes them: the backend, the commit store, or the limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from offload.contracts.opening import RequestLimits
from offload.ground.errors import Misuse

__all__ = ["COMMIT_OPTION", "GivenOptions"]

COMMIT_OPTION: Final = "commit."
"""The prefix of the names of options for the commit store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """A caller's storage options, divided by recipient."""

    data: Mapping[str, Any]
    """The options of the backend."""

    commits: Mapping[str, Any]
    """The options of the commit store's backend, without the prefix `commit.`."""

    limits: RequestLimits
    """The limits of requests, which no backend needs to know."""

    @classmethod
    def of(cls, options: Mapping[str, Any], limits: RequestLimits | None = None) -> GivenOptions:
        """Divide `options`.

        Those that name limits override `limits`. Raises `Misuse` for an invalid limit, and if these are no
        options.
        """
        if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
            raise Misuse(
                f"storage_options are a dictionary of names and values, not this {type(options).__name__}"
            )
        commits, others = _divided(options, lambda name: name.startswith(COMMIT_OPTION))
        of_limits, data = _divided(others, lambda name: name in RequestLimits.names())
        commits = {name.removeprefix(COMMIT_OPTION): value for name, value in commits.items()}
        return cls(data=data, commits=commits, limits=(limits or RequestLimits()).with_options(of_limits))


def _divided(
    options: Mapping[str, Any], chosen: Callable[[str], bool]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options whose names are chosen, and the others."""
    mine = {name: value for name, value in options.items() if chosen(name)}
    return mine, {name: value for name, value in options.items() if name not in mine}
