"""Finding plugins: which are installed, what they declare, and who is told of events.

Invariants: a plugin that cannot be loaded is reported by name and harms no other; two plugins that
declare one name or scheme are an error that names both distributions, raised as soon as just that
name or scheme is used; the core imports no plugin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import pluggy

from offload.contracts.events import Event
from offload.contracts.plugin import KINDS, PROJECT, Declaration, HookSpecs
from offload.errors import Misuse

__all__ = ["Plugin", "Plugins"]


_log: Final = logging.getLogger(__name__)


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
class PluginDeclaration:
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
    declared: Sequence[PluginDeclaration] = ()
    manager: pluggy.PluginManager = field(default_factory=_manager)

    @classmethod
    def find(cls, found: Sequence[EntryPoint] | None = None) -> Plugins:
        """Load every entry point of the group `offload`; none can make this fail."""
        manager = _manager()
        plugins: list[Plugin] = []
        declared: list[PluginDeclaration] = []
        points = entry_points(group=PROJECT) if found is None else found
        for point in sorted(points, key=lambda point: (point.name, _distribution(point))):
            plugin, declarations = _load(manager, point)
            plugins.append(plugin)
            declared += declarations
        return cls(plugins=plugins, declared=declared, manager=manager)

    @cached_property
    def conflicts(self) -> dict[str, list[PluginDeclaration]]:
        """What more than one plugin declares, and names that more than one plugin bears."""
        by_claim: dict[str, list[PluginDeclaration]] = {}
        bearers: dict[str, dict[Plugin, PluginDeclaration]] = {}
        for each in self.declared:
            bearers.setdefault(_plugin_claim(each.plugin), {}).setdefault(each.plugin, each)
            for claim in each.claims():
                by_claim.setdefault(claim, []).append(each)
        by_claim |= {claim: list(named.values()) for claim, named in bearers.items()}
        return {claim: rivals for claim, rivals in by_claim.items() if len(rivals) > 1}

    def of_kind(self, kind: str) -> list[PluginDeclaration]:
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

    def _one(self, kind: str, wanted: str, claim: str, found: list[PluginDeclaration]) -> Declaration:
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


def conflict_text(claim: str, rivals: Sequence[PluginDeclaration]) -> str:
    """One line that names everybody who declares the same thing."""
    origins = " and ".join(f"{rival.plugin.origin} (plugin {rival.plugin.name!r})" for rival in rivals)
    return f"{claim} is declared by {origins}; uninstall all but one"


def _load(manager: pluggy.PluginManager, point: EntryPoint) -> tuple[Plugin, list[PluginDeclaration]]:
    plugin = Plugin(
        name=point.name, distribution=_distribution(point), version=point.dist.version if point.dist else ""
    )
    unique = f"{plugin.distribution}:{point.name}"
    try:
        loaded = point.load()
        manager.register(loaded, name=unique)
        return plugin, [
            PluginDeclaration(kind=kind, plugin=plugin, declaration=declaration)
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
