"""Values of options and arguments that need no conversion, because they already have their type.

Typer makes a converter for each parameter by pydantic, whose import takes longer than most commands take.
Nearly all our arguments are text, and nearly all our options are left out and have their default.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args, get_origin


def take_values_as_they_are(command: Any) -> None:
    """Spare every parameter of a command, and of those below it, a conversion that would change nothing."""
    command.get_params = partial(_params, command.get_params)
    for below in getattr(command, "commands", {}).values():
        take_values_as_they_are(below)


def _params(get_params: Callable[[Any], list[Any]], ctx: Any) -> list[Any]:
    """Return the parameters of a command; that of its help is made when it is first asked for them."""
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
    """Return the type that values of a parameter get; None if it has a parser, or if it is not known.

    Typer does not document where it keeps this. A version that keeps it elsewhere converts every value
    itself, which is slower, and as right.
    """
    try:
        kept = parameter.type_descriptor
        return None if kept.parameter_info.parser else kept.annotation
    except AttributeError:
        return None


def _has_type(value: Any, kind: Any) -> bool:
    """Whether a value has this very type: a path that exists, for example, is for Typer to check."""
    if get_origin(kind) is list and type(value) in (list, tuple):
        return bool(value) and all(type(each) is get_args(kind)[0] for each in value)
    return type(value) is kind
