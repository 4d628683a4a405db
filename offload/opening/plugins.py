"""The plugins that are installed: finding them, their declarations, and sending them events.

Invariants:

- A plugin that cannot be loaded is reported by name, and the others still work.
- Two plugins that declare the same name or scheme are an error that names both distributions. It is raised
  only when that name or scheme is used.
- The core imports no plugin.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.metadata import Distribution, EntryPoint, PackageMetadata, entry_points
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import pluggy

from offload.contracts.events import Event
from offload.contracts.plugin import KINDS, PROJECT, Declaration, HookSpecs
from offload.ground.errors import Misuse

__all__ = ["Plugin", "Plugins"]


_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point. `error` says why it was not loaded, and is None if it was."""

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
    """A declaration and the plugin that made it."""

    kind: str
    plugin: Plugin
    declaration: Declaration

    def claims(self) -> Iterator[str]:
        """Yield what no other declaration of this kind may declare: its name, and each of its schemes."""
        yield _name_claim(self.kind, self.declaration.name)
        yield from (_scheme_claim(self.kind, scheme) for scheme in self.declaration.schemes)


class _Manager(pluggy.PluginManager):
    """A manager that looks only at the functions of a module, because most of its names are imports."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        if isinstance(plugin, ModuleType) and not isinstance(vars(plugin).get(name), _HOOKS):
            return None
        return super().parse_hookimpl_opts(plugin, name)


_HOOKS: Final = (FunctionType, MethodType, classmethod, staticmethod)
"""The types in which pluggy finds a hook."""


def _manager() -> pluggy.PluginManager:
    manager = _Manager(PROJECT)
    manager.add_hookspecs(HookSpecs)
    return manager


@dataclass
class Plugins:
    """All plugins of this environment, as `find` found them, or those passed in."""

    plugins: Sequence[Plugin] = ()
    declared: Sequence[PluginDeclaration] = ()
    manager: pluggy.PluginManager = field(default_factory=_manager)

    @classmethod
    def find(cls, found: Sequence[EntryPoint] | None = None) -> Plugins:
        """Load every entry point of the group `offload`. No plugin can make this fail."""
        manager = _manager()
        plugins: list[Plugin] = []
        declared: list[PluginDeclaration] = []
        points = _installed(_path_now()) if found is None else _named(found)
        # Sorted, because entry points come in the order of folders on `sys.path`.
        for named, point in sorted(points, key=lambda pair: (pair[0].name, pair[0].distribution)):
            plugin, declarations = _load(manager, named, point)
            plugins.append(plugin)
            declared += declarations
        return cls(plugins=plugins, declared=declared, manager=manager)

    @cached_property
    def conflicts(self) -> dict[str, list[PluginDeclaration]]:
        """The claims that several declarations make, and the plugin names that several plugins have."""
        by_claim: dict[str, list[PluginDeclaration]] = {}
        bearers: dict[str, dict[Plugin, PluginDeclaration]] = {}
        for each in self.declared:
            bearers.setdefault(_plugin_claim(each.plugin), {}).setdefault(each.plugin, each)
            for claim in each.claims():
                by_claim.setdefault(claim, []).append(each)
        by_claim |= {claim: list(named.values()) for claim, named in bearers.items()}
        return {claim: rivals for claim, rivals in by_claim.items() if len(rivals) > 1}

    def of_kind(self, kind: str) -> list[PluginDeclaration]:
        """Return the declarations of one kind, ordered by name."""
        return sorted((d for d in self.declared if d.kind == kind), key=lambda d: d.declaration.name)

    def by_name(self, kind: str, name: str) -> Declaration:
        """Return the declaration of this kind and name. Raises `Misuse` unless there is exactly one."""
        found = [d for d in self.of_kind(kind) if d.declaration.name == name]
        known = {d.declaration.name for d in self.of_kind(kind)}
        return self._one(kind, name, _name_claim(kind, name), found, known)

    def by_scheme(self, kind: str, scheme: str) -> Declaration:
        """Return the declaration of this kind that serves a URL scheme. Raises `Misuse` as `by_name` does."""
        found = [d for d in self.of_kind(kind) if scheme in d.declaration.schemes]
        known = {each for d in self.of_kind(kind) for each in d.declaration.schemes}
        return self._one(kind, scheme, _scheme_claim(kind, scheme), found, known)

    def emit(self, event: Event) -> None:
        """Send an event to every plugin. If one fails, that is logged, and the others still get the event."""
        # Called one by one: a call of the hook as a whole ends at the first plugin that fails.
        for caller in self.manager.hook.offload_event.get_hookimpls():
            try:
                caller.function(event=event)
            except Exception:  # noqa: BLE001 - a listener may raise anything, and must not end the work
                _log.exception("plugin %s failed on %s", caller.plugin_name, type(event).__name__)

    def _one(
        self, kind: str, wanted: str, claim: str, found: list[PluginDeclaration], known: set[str]
    ) -> Declaration:
        if not found:
            broken = "".join(
                f"; plugin {p.name!r} of {p.origin} did not load: {p.error}" for p in self.plugins if p.error
            )
            raise Misuse(
                f"no plugin knows the {kind} {wanted!r}; known: {', '.join(sorted(known)) or 'none'}{broken}"
            )
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
    """Return one line that names every plugin that makes this claim."""
    origins = " and ".join(f"{rival.plugin.origin} (plugin {rival.plugin.name!r})" for rival in rivals)
    return f"{claim} is declared by {origins}; uninstall all but one"


def _path_now() -> tuple[tuple[str, int], ...]:
    """Return each folder of `sys.path`, with the time of its last change."""
    times = list[tuple[str, int]]()
    for folder in sys.path:
        try:
            place = folder or os.getcwd()  # an empty name is the current folder
            times.append((place, os.stat(place).st_mtime_ns))
        except OSError:
            times.append((folder, 0))
    return tuple(times)


@lru_cache(maxsize=1)
def _installed(_path: tuple[tuple[str, int], ...]) -> tuple[tuple[Plugin, EntryPoint], ...]:
    """Return the entry points of this environment.

    A scan opens a file of every installed distribution, so a process that opens many tiers scans once. An
    installation adds or removes a folder on `sys.path`, whose time then changes.
    """
    return tuple(_named(entry_points(group=PROJECT)))


def _named(points: Iterable[EntryPoint]) -> Iterator[tuple[Plugin, EntryPoint]]:
    """Yield each entry point with its name and distribution.

    The metadata of a distribution holds its whole README. It is parsed once, not for each of its points.
    """
    metadata: dict[Distribution, PackageMetadata] = {}
    for point in points:
        if point.dist is None:
            yield Plugin(name=point.name, distribution="unknown distribution", version=""), point
            continue
        if point.dist not in metadata:
            metadata[point.dist] = point.dist.metadata
        known = metadata[point.dist]
        yield Plugin(name=point.name, distribution=known["Name"], version=known["Version"]), point


def _load(
    manager: pluggy.PluginManager, plugin: Plugin, point: EntryPoint
) -> tuple[Plugin, list[PluginDeclaration]]:
    unique = f"{plugin.distribution}:{point.name}"
    try:
        loaded = point.load()
        manager.register(loaded, name=unique)
        return plugin, [
            PluginDeclaration(kind=kind, plugin=plugin, declaration=declaration)
            for kind, hook in KINDS.items()
            for declaration in _ask(manager, loaded, hook)
        ]
    except (Exception, SystemExit) as exc:  # noqa: BLE001 - a module may raise anything
        # A plugin may have been registered and have failed only when it was asked for declarations. Without
        # this it would still be sent events.
        if manager.has_plugin(unique):
            manager.unregister(name=unique)
        error = f"{type(exc).__name__}: {exc}"
        return replace(plugin, error=error), []


def _ask(manager: pluggy.PluginManager, plugin: object, hook: str) -> Iterator[Declaration]:
    """Yield the declarations of this plugin alone: asked together, one failure would hide the others."""
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        if implementation.plugin is plugin:
            for declaration in implementation.function():
                if not isinstance(declaration, Declaration):
                    raise TypeError(f"{hook} returned {declaration!r}, which is not a declaration")
                yield declaration
