"""What plugins declare, and the hooks that ask for it. `offload.plugins` finds the plugins.

The project name in pluggy is `offload`, and so is the entry-point group in which any distribution
may register a module. Hooks return declarations, which are plain data; the code behind them is
named as `module:attribute` and imported when it is first used, so that listing plugins imports no
SDK.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import pluggy

from offload.contracts.capabilities import Capabilities
from offload.contracts.events import Event
from offload.errors import Misuse
from offload.extras import missing_text
from offload.urls import with_lower_scheme

if TYPE_CHECKING:  # discovery imports this module, and that must be fast
    from offload.contracts.opening import OpeningContext

__all__ = [
    "CONTRACT",
    "Backend",
    "Command",
    "DecoderType",
    "HookSpecs",
    "LayoutType",
    "SourceType",
    "hookimpl",
]


PROJECT: Final = "offload"
CONTRACT: Final = "0.2"
"""The contract of backends, by the minor release that its clauses belong to (docs/conformance.md)."""

TAKEN: Final = ("emit", "env", "fragment_size_bytes", "limits", "metrics", "uploads_max")
"""The parts of an `OpeningContext` that a backend may declare in `takes`."""

_CONTRACT: Final = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
_hookspec: Final = pluggy.HookspecMarker(PROJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What every declaration has: a name, and where the code is."""

    name: str
    target: str
    """`module:attribute`, imported on first use."""

    schemes: tuple[str, ...] = ()
    """The URL schemes that lead here. No scheme at all: a plain path."""

    needs: str = ""
    """The requirement that brings what the code imports, if that is an extra: `some-distribution[extra]`."""

    def load(self, target: str = "") -> Any:
        """Import the code (or another target of the plugin). Raises `Misuse` where that fails."""
        module, _, attribute = (target or self.target).partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as exc:
            if self.needs and isinstance(exc, ModuleNotFoundError):
                raise Misuse(missing_text(repr(self.name), str(exc.name), self.needs)) from exc
            raise Misuse(f"{self.name!r} cannot be used: {exc}") from exc
        except (Exception, SystemExit) as exc:  # as in `_load`: a stranger's module may do anything
            raise Misuse(f"{self.name!r} cannot be used: {type(exc).__name__}: {exc}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Declaration):
    """A place for tiers. The target is called with the URL, and returns what `kind` says.

    That is an `ObjectStore` (store), a `LedgerOffloader` (offloader), or, of a place that is only read, a
    `Catalogue` (catalogue). Where `options` are declared, the target also takes a mapping of them as
    `options`; it checks their values.
    """

    kind: Literal["store", "offloader", "catalogue"] = "store"
    options: tuple[str, ...] = ()
    """The names of the options that the target takes."""

    takes: tuple[str, ...] = ()
    """What the target of a kind other than `store` honours of an `OpeningContext`, by the names in `TAKEN`.

    If it names any, the target also takes `context`, which is an `OpeningContext` or None. What a caller asks
    for that is not named here is refused.
    """

    capabilities: Capabilities | None = None
    """What its stores can do, where that does not depend on the place."""

    states: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What is meant of a capability, where a plain yes or no in `capabilities` would not be true everywhere.

    By its name: `supported`, `unsupported`, `not yet`, `unknown`, or `since 2.3` of the server.
    """

    advice: tuple[str, ...] = ()
    """What an operator should set up at the store itself, for `offload check`. A sentence each."""

    tested_against: str | None = None
    """The contract whose clauses it was last held to, as `0.2`. A statement; nothing is refused."""

    def __post_init__(self) -> None:
        if strange := [name for name in self.takes if name not in TAKEN]:
            raise Misuse(f"backend {self.name!r}: takes names {strange}; it can name {', '.join(TAKEN)}")
        if self.takes and self.kind == "store":
            raise Misuse(f"backend {self.name!r}: a store takes nothing, because the session does it all")
        stated = self.tested_against
        if stated is not None and not _CONTRACT.fullmatch(stated):
            raise Misuse(
                f"backend {self.name!r}: tested_against is a contract such as {CONTRACT!r}, not {stated!r}"
            )

    def contract_note(self) -> str | None:
        """What it means where this framework has another contract than the backend was tested against."""
        stated = self.tested_against
        if stated is None or _numbers(stated) == _numbers(CONTRACT):
            return None
        tested = f"backend {self.name!r} was tested against contract {stated}, and this is {CONTRACT}"
        if _numbers(stated) < _numbers(CONTRACT):
            return f"{tested}: clauses that came since were not asked; `offload conformance` asks them"
        return f"{tested}: it may need what came since; pip install --upgrade ledger-offload"

    def open(self, url: str, options: Mapping[str, Any], context: OpeningContext | None = None) -> Any:
        """What the target makes of a URL, whose scheme it gets in lower case.

        `context` reaches targets that take some of it. Raises `Misuse` for an option that was not declared,
        and for what is no URL.
        """
        for name in options:
            if name not in self.options:
                known = ", ".join(self.options) or "none at all"
                raise Misuse(f"backend {self.name!r} has no option {name!r}; it has {known}")
        target, url = self.load(), with_lower_scheme(url)
        keywords: dict[str, Any] = {"options": options} if self.options else {}
        if self.takes:
            keywords["context"] = context
        return target(url, **keywords)


def _numbers(contract: str) -> tuple[int, ...]:
    return tuple(map(int, contract.split(".")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType(Declaration):
    """A broker's local data. The target is called with the URL and returns a `Source`."""

    sample: str = ""
    """`module:function` that returns the path of a small source shipped with the plugin, for the demo."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutType(Declaration):
    """A foreign layout of objects on a tier that a plugin can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderType(Declaration):
    """A way to make more of a record than bytes. The target is a `Decoder`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Declaration):
    """A subcommand of `offload`. The target is a Typer application or a plain function."""

    help: str = ""


class HookSpecs:
    """The hooks. A plugin implements any of them with `@hookimpl`.

    pluggy reads their names and arguments and never calls them, so their bodies are empty.
    """

    @_hookspec
    def offload_backends(self) -> Sequence[Backend]:  # type: ignore[empty-body]  # never called
        """Declare backends."""

    @_hookspec
    def offload_sources(self) -> Sequence[SourceType]:  # type: ignore[empty-body]  # never called
        """Declare sources."""

    @_hookspec
    def offload_layouts(self) -> Sequence[LayoutType]:  # type: ignore[empty-body]  # never called
        """Declare foreign layouts."""

    @_hookspec
    def offload_decoders(self) -> Sequence[DecoderType]:  # type: ignore[empty-body]  # never called
        """Declare decoders of record bodies."""

    @_hookspec
    def offload_commands(self) -> Sequence[Command]:  # type: ignore[empty-body]  # never called
        """Declare subcommands."""

    @_hookspec
    def offload_event(self, event: Event) -> None:
        """Be told that something happened. Return at once; an exception is logged and ignored."""


KINDS: Final = {
    "backend": "offload_backends",
    "source": "offload_sources",
    "layout": "offload_layouts",
    "decoder": "offload_decoders",
    "command": "offload_commands",
}
"""What plugins may declare, and the hook that asks for it."""
