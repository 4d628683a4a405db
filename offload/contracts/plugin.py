"""The declarations of plugins, and the hooks that return them. `offload.opening.plugins` finds the plugins.

The project name in pluggy is `offload`, and so is the entry-point group in which any distribution may
register a module. Hooks return declarations, which are plain data. A declaration names its code as
`module:attribute`. The code is imported when it is first used, so that listing plugins imports no SDK.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import pluggy

from offload.contracts.capabilities import Capabilities
from offload.contracts.events import Event
from offload.ground.errors import Misuse
from offload.ground.extras import missing_text
from offload.ground.urls import with_lower_scheme

if TYPE_CHECKING:  # discovery imports this module, and that must be fast
    from offload.contracts.opening import OpeningContext

__all__ = [
    "CONTRACT",
    "Backend",
    "BrokerType",
    "Command",
    "DecoderType",
    "HookSpecs",
    "KeyServiceType",
    "ListenerType",
    "SourceType",
    "TargetType",
    "hookimpl",
]


PROJECT: Final = "offload"
CONTRACT: Final = "0.3"
"""The contract of backends, by the minor release that its clauses belong to (docs/conformance.md)."""

TAKEN: Final = ("emit", "env", "fragment_size_bytes", "limits", "metrics", "uploads_max")
"""The parts of an `OpeningContext` that a backend may declare in `takes`."""

_CONTRACT: Final = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
_hookspec: Final = pluggy.HookspecMarker(PROJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The base class of declarations: a name, and the place of the code."""

    name: str
    target: str
    """`module:attribute`, imported on first use."""

    schemes: tuple[str, ...] = ()
    """The URL schemes that this declaration serves. Plain paths have the scheme `file`."""

    needs: str = ""
    """The requirement that installs the code's imports, if they are an extra: `some-distribution[extra]`."""

    def load(self, target: str = "") -> Any:
        """Import the code, or another target of the plugin. Raises `Misuse` if that fails."""
        module, _, attribute = (target or self.target).partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as exc:
            if self.needs and isinstance(exc, ModuleNotFoundError):
                raise Misuse(missing_text(repr(self.name), str(exc.name), self.needs)) from exc
            raise Misuse(f"{self.name!r} cannot be used: {exc}") from exc
        except (Exception, SystemExit) as exc:  # an imported module may raise anything
            raise Misuse(f"{self.name!r} cannot be used: {type(exc).__name__}: {exc}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(Declaration):
    """A kind of place for tiers. The target is called with a URL, and returns an object of this `kind`.

    The object is an `ObjectStore` (store), a `LedgerOffloader` (offloader), or, for a place that can only be
    read, a `Catalogue` (catalogue). If `options` are declared, the target also takes a mapping of them as
    `options`, and checks their values.
    """

    kind: Literal["store", "offloader", "catalogue"] = "store"
    options: tuple[str, ...] = ()
    """The names of the options that the target takes."""

    opens_stores: bool = False
    """True if the target opens stores by `OpeningContext.open_store`, for a kind that takes a context.

    Options that are not declared here are then those of the stores, as `OpeningContext.store_options`. The
    backend of such a store refuses the unknown ones.
    """

    takes: tuple[str, ...] = ()
    """The parts of an `OpeningContext` that the target honours, by the names in `TAKEN`.

    Not for kind `store`. If it names any, the target also takes `context`, which is an `OpeningContext` or
    None. A caller's wish for a part that is not named here is refused.
    """

    marker: str = ""
    """For kind `catalogue`: the beginning of keys by which a place of this layout is known, up to a `/`.

    If somebody names such a place by the URL of its store, the error says how to name it.
    """

    capabilities: Capabilities | None = None
    """The capabilities of its stores, if they do not depend on the place."""

    states: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The state of capabilities for which a plain yes or no in `capabilities` would not be true everywhere.

    By name: `supported`, `unsupported`, `not yet`, `unknown`, or `since 2.3` of the server.
    """

    advice: tuple[str, ...] = ()
    """Settings that an operator should make at the store itself, for `offload check`. One sentence each."""

    tested_against: str | None = None
    """The contract with which it was last tested, such as `0.3`. For information: nothing is refused."""

    def __post_init__(self) -> None:
        if strange := [name for name in self.takes if name not in TAKEN]:
            raise Misuse(f"backend {self.name!r}: takes names {strange}; it can name {', '.join(TAKEN)}")
        if self.takes and self.kind == "store":
            raise Misuse(f"backend {self.name!r}: a store takes nothing, because the session does it all")
        if self.opens_stores and not self.takes:
            raise Misuse(f"backend {self.name!r}: it opens stores by a context, so it takes a part of one")
        stated = self.tested_against
        if stated is not None and not _CONTRACT.fullmatch(stated):
            raise Misuse(
                f"backend {self.name!r}: tested_against is a contract such as {CONTRACT!r}, not {stated!r}"
            )

    def contract_note(self) -> str | None:
        """Return a note if the backend was tested against another contract than that of this framework."""
        stated = self.tested_against
        if stated is None or _numbers(stated) == _numbers(CONTRACT):
            return None
        tested = f"backend {self.name!r} was tested against contract {stated}, and this is {CONTRACT}"
        if _numbers(stated) < _numbers(CONTRACT):
            return f"{tested}: newer clauses were not tested; `offload conformance` tests them"
        return f"{tested}: it may need a newer framework; pip install --upgrade ledger-offload"

    def open(self, url: str, options: Mapping[str, Any], context: OpeningContext | None = None) -> Any:
        """Call the target with a URL, whose scheme is in lower case, and return its result.

        `context` is passed to targets that take a part of it. Raises `Misuse` for an option that was not
        declared, and for a malformed URL.
        """
        own, context = _own_options(f"backend {self.name!r}", self, options, context)
        target, url = self.load(), with_lower_scheme(url)
        keywords: dict[str, Any] = {"options": own} if self.options else {}
        if self.takes:
            keywords["context"] = context
        with _misspelt(self, context):
            return target(url, **keywords)


def _own_options(
    who: str, declared: Backend | SourceType, options: Mapping[str, Any], context: OpeningContext | None
) -> tuple[Mapping[str, Any], OpeningContext | None]:
    """Return the options of a target itself, and its context with those of the stores that it opens.

    Raises `Misuse` for an option that is neither.
    """
    if not declared.opens_stores or context is None:
        _refuse_unknown(who, options, declared.options)
        return options, context
    own = {name: value for name, value in options.items() if name in declared.options}
    others = {name: value for name, value in options.items() if name not in declared.options}
    return own, replace(context, store_options=others)


@contextmanager
def _misspelt(declared: Backend | SourceType, context: OpeningContext | None) -> Iterator[None]:
    """Name the target's own option in the error of a store that refuses one with nearly this name."""
    try:
        yield
    except Misuse as error:
        from difflib import get_close_matches  # discovery imports this module, and that must be fast

        for name in () if context is None else context.store_options:
            for near in get_close_matches(name, declared.options, n=1):
                raise Misuse(f"{error}; did you mean {near!r}, an option of {declared.name!r}?") from error
        raise


def _refuse_unknown(who: str, options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise Misuse(f"{who} has no option {name!r}; it has {', '.join(known) or 'none at all'}")


def _numbers(contract: str) -> tuple[int, ...]:
    return tuple(map(int, contract.split(".")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType(Declaration):
    """A broker's data. The target is called with the URL and returns a `Source`.

    If `options` are declared, the target also takes a mapping of them as `options`, and checks their values.
    """

    options: tuple[str, ...] = ()
    """The names of the options that the target takes."""

    opens_stores: bool = False
    """True if the data is in an object store. The target then also takes `context`, an `OpeningContext`.

    Its `open_store` opens the store of a URL in the session. Options that are not declared here are those of
    the store, as `OpeningContext.store_options`, or limits of its requests. The store's backend refuses the
    unknown ones.
    """

    sample: str = ""
    """`module:function` that returns the path of a small source shipped with the plugin, for the demo."""

    def open(self, url: str, options: Mapping[str, Any], context: OpeningContext | None = None) -> Any:
        """Call the target with a URL, and return its result. Raises `Misuse` for an unknown option.

        `context` is passed to a target that opens stores.
        """
        own, context = _own_options(f"source {self.name!r}", self, options, context)
        target, url = self.load(), with_lower_scheme(url)
        keywords: dict[str, Any] = {"options": own} if self.options else {}
        if self.opens_stores:
            keywords["context"] = context
        with _misspelt(self, context):
            return target(url, **keywords)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetType(Declaration):
    """A place to restore a stream to. The target is called with the URL and a mapping of options.

    It returns a `MessageTarget` or a `ChunkTarget`, and checks the values of the options.
    """

    options: tuple[str, ...] = ()
    """The names of the options that the target takes."""

    is_folder: bool = False
    """True if a URL is the scheme and a folder of a stopped broker: `--files` names such a folder."""

    def open(self, url: str, options: Mapping[str, Any]) -> Any:
        """Call the target with a URL, and return its result. Raises `Misuse` for an unknown option."""
        _refuse_unknown(f"target {self.name!r}", options, self.options)
        return self.load()(with_lower_scheme(url), options)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderType(Declaration):
    """A decoder of record bodies. The target is a `Decoder`."""

    java: str = ""
    """The format of records that this decoder and Spark's Java reader decode alike.

    For records of this format, both make the same columns `body` and `key`, to the byte. The bundled reader
    has the format `amqp-1.0`. Python decodes if the reader lacks the format, or if none is named.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyServiceType(Declaration):
    """A place of master keys. The target is called with the URL and returns a `KeyService`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerType(Declaration):
    """A broker that can be asked about its streams. The target is called with the URL, and by keyword.

    The keywords are `user` and `password`, each a text or None, and `env`. It returns a `BrokerView`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerType(Declaration):
    """A server of a broker's protocol. The target is called with the URL, and `env` by keyword.

    It returns a `Listener`, and checks the options, which are in the query of the URL.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Declaration):
    """A subcommand of `offload`. The target is a Typer application or a plain function."""

    help: str = ""


class HookSpecs:
    """The hooks. A plugin implements any of them with `@hookimpl`.

    pluggy reads the names and arguments of these methods and never calls them, so their bodies are empty.
    """

    @_hookspec
    def offload_backends(self) -> Sequence[Backend]:  # type: ignore[empty-body]  # never called
        """Declare backends."""

    @_hookspec
    def offload_sources(self) -> Sequence[SourceType]:  # type: ignore[empty-body]  # never called
        """Declare sources."""

    @_hookspec
    def offload_targets(self) -> Sequence[TargetType]:  # type: ignore[empty-body]  # never called
        """Declare places to restore a stream to."""

    @_hookspec
    def offload_decoders(self) -> Sequence[DecoderType]:  # type: ignore[empty-body]  # never called
        """Declare decoders of record bodies."""

    @_hookspec
    def offload_keys(self) -> Sequence[KeyServiceType]:  # type: ignore[empty-body]  # never called
        """Declare key services."""

    @_hookspec
    def offload_brokers(self) -> Sequence[BrokerType]:  # type: ignore[empty-body]  # never called
        """Declare brokers that can be asked."""

    @_hookspec
    def offload_listeners(self) -> Sequence[ListenerType]:  # type: ignore[empty-body]  # never called
        """Declare servers of brokers' protocols."""

    @_hookspec
    def offload_commands(self) -> Sequence[Command]:  # type: ignore[empty-body]  # never called
        """Declare subcommands."""

    @_hookspec
    def offload_event(self, event: Event) -> None:
        """Receive an event. Return at once; an exception is logged and ignored."""


KINDS: Final = {
    "backend": "offload_backends",
    "source": "offload_sources",
    "target": "offload_targets",
    "decoder": "offload_decoders",
    "key service": "offload_keys",
    "broker": "offload_brokers",
    "listener": "offload_listeners",
    "command": "offload_commands",
}
"""The kinds of declarations, and the hook that returns each."""
