"""Plugins: what they declare, what they are told, and how they are found.

The project name in pluggy is `offload`, and so is the entry-point group in which any distribution
may register a module. Hooks return declarations, which are plain data; the code behind them is
named as `module:attribute` and imported when it is first used, so that listing plugins imports no
SDK.

Invariants: a plugin that cannot be loaded is reported by name and harms no other; two plugins that
declare one name or scheme are an error that names both distributions, raised as soon as just that
name or scheme is used; the core imports no plugin.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal

import pluggy

from offload.errors import Misuse
from offload.events import Event
from offload.extras import missing_text
from offload.store.capabilities import Capabilities
from offload.urls import with_lower_scheme

PROJECT: Final = "offload"
CONTRACT: Final = "0.2"
"""The contract of backends, by the minor release that its clauses belong to (docs/conformance.md)."""

_CONTRACT: Final = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
_hookspec: Final = pluggy.HookspecMarker(PROJECT)
_log: Final = logging.getLogger(__name__)


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

    def open(self, url: str, options: Mapping[str, Any]) -> Any:
        """What the target makes of a URL, whose scheme it gets in lower case.

        Raises `Misuse` for an option that was not declared, and for what is no URL.
        """
        for name in options:
            if name not in self.options:
                known = ", ".join(self.options) or "none at all"
                raise Misuse(f"backend {self.name!r} has no option {name!r}; it has {known}")
        target, url = self.load(), with_lower_scheme(url)
        return target(url, options=options) if self.options else target(url)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point: loaded, or with the reason why not."""

    name: str
    distribution: str
    version: str
    error: str | None = None

    @property
    def origin(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A declaration, with the plugin that made it."""

    kind: str
    plugin: Plugin
    declaration: Declaration

    def claims(self) -> Iterator[str]:
        """What nobody else may declare: the name, and every scheme, within its kind."""
        yield _name_claim(self.kind, self.declaration.name)
        yield from (_scheme_claim(self.kind, scheme) for scheme in self.declaration.schemes)


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    return manager


@dataclass
class Plugins:
    """All plugins of this environment, or those handed in. Found once, by `find`."""

    plugins: Sequence[Plugin] = ()
    declared: Sequence[Declared] = ()
    manager: pluggy.PluginManager = field(default_factory=_manager)

    @classmethod
    def find(cls, found: Sequence[EntryPoint] | None = None) -> Plugins:
        """Load every entry point of the group `offload`; none can make this fail."""
        manager = _manager()
        plugins: list[Plugin] = []
        declared: list[Declared] = []
        points = entry_points(group=PROJECT) if found is None else found
        for point in sorted(points, key=lambda point: (point.name, _distribution(point))):
            plugin, declarations = _load(manager, point)
            plugins.append(plugin)
            declared += declarations
        return cls(plugins=plugins, declared=declared, manager=manager)

    @cached_property
    def conflicts(self) -> dict[str, list[Declared]]:
        """What more than one plugin declares, and names that more than one plugin bears."""
        by_claim: dict[str, list[Declared]] = {}
        bearers: dict[str, dict[Plugin, Declared]] = {}
        for each in self.declared:
            bearers.setdefault(_plugin_claim(each.plugin), {}).setdefault(each.plugin, each)
            for claim in each.claims():
                by_claim.setdefault(claim, []).append(each)
        by_claim |= {claim: list(named.values()) for claim, named in bearers.items()}
        return {claim: rivals for claim, rivals in by_claim.items() if len(rivals) > 1}

    def of_kind(self, kind: str) -> list[Declared]:
        """The declarations of one kind, in order of names."""
        return sorted((d for d in self.declared if d.kind == kind), key=lambda d: d.declaration.name)

    def by_name(self, kind: str, name: str) -> Declaration:
        """The declaration of this kind and name. Raises `Misuse` where there is none, or more than one."""
        found = [d for d in self.of_kind(kind) if d.declaration.name == name]
        return self._one(kind, name, _name_claim(kind, name), found)

    def by_scheme(self, kind: str, scheme: str) -> Declaration:
        """The declaration of this kind that serves a URL scheme. Raises `Misuse` as `by_name` does."""
        found = [d for d in self.of_kind(kind) if scheme in d.declaration.schemes]
        return self._one(kind, scheme, _scheme_claim(kind, scheme), found)

    def emit(self, event: Event) -> None:
        """Tell every plugin of an event; one that fails is reported to the log and harms nobody."""
        for caller in self.manager.hook.offload_event.get_hookimpls():
            try:
                caller.function(event=event)
            except Exception:  # noqa: BLE001 - a listener may do anything; the work goes on
                _log.exception("plugin %s failed on %s", caller.plugin_name, type(event).__name__)

    def _one(self, kind: str, wanted: str, claim: str, found: list[Declared]) -> Declaration:
        if not found:
            known = ", ".join(
                sorted({s for d in self.of_kind(kind) for s in (*d.declaration.schemes, d.declaration.name)})
            )
            broken = "".join(
                f"; plugin {p.name!r} of {p.origin} did not load: {p.error}" for p in self.plugins if p.error
            )
            raise Misuse(f"no plugin knows the {kind} {wanted!r}; known: {known or 'none'}{broken}")
        for contested in (claim, *(_plugin_claim(each.plugin) for each in found)):
            if rivals := self.conflicts.get(contested):
                raise Misuse(conflict_text(contested, rivals))
        return found[0].declaration


def _plugin_claim(plugin: Plugin) -> str:
    return f"plugin name {plugin.name!r}"


def _name_claim(kind: str, name: str) -> str:
    return f"{kind} {name!r}"


def _scheme_claim(kind: str, scheme: str) -> str:
    return f"{kind} scheme {scheme!r}"


def conflict_text(claim: str, rivals: Sequence[Declared]) -> str:
    """One line that names everybody who declares the same thing."""
    origins = " and ".join(f"{rival.plugin.origin} (plugin {rival.plugin.name!r})" for rival in rivals)
    return f"{claim} is declared by {origins}; uninstall all but one"


def _load(manager: pluggy.PluginManager, point: EntryPoint) -> tuple[Plugin, list[Declared]]:
    plugin = Plugin(
        name=point.name, distribution=_distribution(point), version=point.dist.version if point.dist else ""
    )
    unique = f"{plugin.distribution}:{point.name}"
    try:
        loaded = point.load()
        manager.register(loaded, name=unique)
        return plugin, [
            Declared(kind=kind, plugin=plugin, declaration=declaration)
            for kind, hook in KINDS.items()
            for declaration in _ask(manager, loaded, hook)
        ]
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever a stranger's module does, others must live
        if manager.has_plugin(unique):
            manager.unregister(name=unique)
        error = f"{type(exc).__name__}: {exc}"
        return Plugin(
            name=plugin.name, distribution=plugin.distribution, version=plugin.version, error=error
        ), []


def _ask(manager: pluggy.PluginManager, plugin: object, hook: str) -> Iterator[Declaration]:
    """What this one plugin answers; asking all at once would let one failure hide the others."""
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        if implementation.plugin is plugin:
            for declaration in implementation.function():
                if not isinstance(declaration, Declaration):
                    raise TypeError(f"{hook} answers with {declaration!r}, which is no declaration")
                yield declaration


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown distribution"
