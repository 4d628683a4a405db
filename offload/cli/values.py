"""Skipping the conversion of options and arguments whose values already have their type.

Typer builds a converter for each parameter with pydantic, whose import takes longer than most commands run.
Nearly all arguments are text, and nearly all options are left out and keep their default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args, get_origin


def take_values_as_they_are(command: Any) -> None:
    """Skip every conversion that would change nothing, for a command and all its subcommands."""
    command.get_params = partial(_params, command.get_params)
    for below in getattr(command, "commands", {}).values():
        take_values_as_they_are(below)


def _params(get_params: Callable[[Any], list[Any]], ctx: Any) -> list[Any]:
    """Return the parameters of a command. The library makes the one for `--help` at the first call."""
    found = get_params(ctx)
    for parameter in found:
        if not isinstance(parameter.process_value, partial):
            parameter.process_value = partial(_process, parameter, parameter.process_value)
    return found


def _process(parameter: Any, convert: Any, ctx: Any, value: Any) -> Any:
    """Do what `convert`, Click's `process_value` of this parameter, does to `value`."""
    kind = _type_of(parameter)
    if kind is None or (parameter.required if value is None else not _has_type(value, kind)):
        return convert(ctx, value)
    if parameter.multiple or parameter.nargs == -1:
        value = () if value is None else [*value]
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def _type_of(parameter: Any) -> object:
    """Return the type that the values of a parameter get; None if it has a parser, or if it is not known.

    Typer does not document where it keeps this. If a version of it keeps it elsewhere, Typer converts every
    value itself: slower, with the same result.
    """
    try:
        kept = parameter.type_descriptor
        return None if kept.parameter_info.parser else kept.annotation
    except AttributeError:
        return None


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a value has exactly this type. Typer handles all others, such as an existing path."""
    if get_origin(kind) is list and type(value) in (list, tuple):
        return bool(value) and all(type(each) is get_args(kind)[0] for each in value)
    return type(value) is kind
