"""Reading the configuration of `offload run` from a TOML file, with errors that name the line.

A value of `[options]` or `[source_options]`, or of a key that begins with `broker`, may be somewhere else, so
that the file holds no secret:

    NAME_file = "/run/secrets/x"    the content of this file, without the last line break
    NAME_env = "VARIABLE"           the value of a variable of the environment

Python's parser reports no lines for values. So the file is also read statement by statement, and each
statement is parsed alone: that says which keys it sets, and its line is known.
"""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ValidationError

from offload.ground.errors import Misuse
from offload.ground.outside import Unreadable, text_outside, toml_outside
from offload.ground.urls import names_secret
from offload.service.config import PricesConfig, RunConfig, StreamConfig, UpkeepConfig

__all__ = ["config_of_values", "load_config"]


HIDDEN: Final = ("options", "source_options")
"""The tables whose values may be secret, and are never shown."""

HIDDEN_NAMES: Final = ("broker_password",)
"""The keys outside of these tables of which this is true, too."""

OF_BROKER: Final = "broker"
"""The first word of the keys outside of these tables that may have their values elsewhere."""

MISTAKES_MAX: Final = 20
MISTAKE_CHARACTERS_MAX: Final = 1000

_TOKEN: Final = re.compile(
    r'''"""[^"\\]*(?:(?:\\.|"{1,2}(?!"))[^"\\]*)*"{3,5}|'{3}[^']*(?:'{1,2}(?!')[^']*)*'{3,5}'''
    r"""|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[][{}\n]""",
    re.DOTALL,
)
"""The tokens that decide where a statement of TOML ends: strings, comments, brackets, and ends of lines."""

_KeyPath: TypeAlias = tuple[str, ...]
_Place: TypeAlias = Callable[[_KeyPath], tuple[int, str]]
"""Returns the line of a value, and the text that names it."""


def load_config(path: Path, environ: Mapping[str, str]) -> tuple[RunConfig, list[str]]:
    """Return the configuration in a file, and warnings about it, one line each.

    Raises `Misuse`, whose text has the file and the line of each mistake.
    """
    try:
        text = text_outside(path)
    except OSError as error:
        raise Misuse(f"{path}: cannot read this configuration: {error.strerror}") from error
    except Unreadable as error:
        raise Misuse(f"{path}: cannot read this configuration: {error}") from error
    try:
        document = toml_outside(text)
    except Unreadable as error:
        raise Misuse(f"{path}: this is no TOML: {error}") from error
    lines = _lines(text)

    def place(keys: _KeyPath) -> tuple[int, str]:
        # A value that is missing has the line of its table, or none.
        line = next((lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in lines), 0)
        return line, f"{path}:{line}: {_named(keys)}" if line else f"{path}: {_named(keys)}"

    warnings = _exposed(path, document)
    for table in HIDDEN:
        if isinstance(document.get(table), dict):
            document[table] = _resolved((table,), document[table], path.parent, environ, place)
    of_broker = {name: document.pop(name) for name in [*document] if name.split("_")[0] == OF_BROKER}
    document |= _resolved((), of_broker, path.parent, environ, place)
    return _checked(document, place), warnings


def config_of_values(document: Mapping[str, Any], names: Mapping[_KeyPath, str]) -> RunConfig:
    """Return the configuration of values from elsewhere. `names` are those of the values, for errors."""
    return _checked(document, lambda keys: (0, names.get(keys, _named(keys))))


def _checked(document: Mapping[str, Any], place: _Place) -> RunConfig:
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        # Without the cause: it holds every value, secrets too.
        mistakes = [text[:MISTAKE_CHARACTERS_MAX] for _, text in sorted(_mistakes(error, place))]
    more = f"; and {len(mistakes) - MISTAKES_MAX} more" if mistakes[MISTAKES_MAX:] else ""
    raise Misuse("; ".join(mistakes[:MISTAKES_MAX]) + more)


def _mistakes(error: ValidationError, place: _Place) -> Iterator[tuple[int, str]]:
    """Yield the line of each wrong value, and a text: where it is, what was expected, and what was found."""
    told = set()
    for each in error.errors(include_url=False):
        keys = tuple(map(str, each["loc"]))
        if keys[0] in HIDDEN:
            keys, each["type"] = keys[:2], "hidden"
        elif keys[0] in HIDDEN_NAMES:
            each["input"] = "a value that is not shown"
        if keys in told:
            continue  # a value of several types: each of them is an error of its own
        told.add(keys)
        line, where = place(keys)
        yield line, where + _reason(keys, each["type"], each["msg"], each["input"])


def _named(keys: _KeyPath) -> str:
    return ".".join(f'"{key}"' if keys[:at] == ("streams",) else key for at, key in enumerate(keys))


def _reason(keys: _KeyPath, kind: str, message: str, value: object) -> str:
    if kind == "hidden":
        return ": expected a text, a number, true or false"
    if kind == "extra_forbidden":
        near = get_close_matches(keys[-1], _known(keys), n=1)
        return " is no key here" + (f"; did you mean {near[0]!r}?" if near else f"; known: {_listed(keys)}")
    if kind == "missing":
        return " is missing"
    text = message.removeprefix("Value error, ")
    text = text.replace("Input should be a valid ", "expected a ").replace("Input should be ", "expected ")
    # A mistake of a whole table says itself what is wrong, and so do texts that have the value already.
    is_said = isinstance(value, dict | BaseModel) or f"not {value!r}" in text
    return f": {text}" if is_said else f": {text}; found {value!r}"


def _known(keys: _KeyPath) -> list[str]:
    """Return the names of the keys that the table of this key may have."""
    models: dict[str, type[BaseModel]] = {
        "streams": StreamConfig,
        "upkeep": UpkeepConfig,
        "prices": PricesConfig,
    }
    model = models[keys[0]] if len(keys) > 1 else RunConfig
    return [field.alias or name for name, field in model.model_fields.items()]


def _listed(keys: _KeyPath) -> str:
    return ", ".join(sorted(_known(keys)))


def _lines(text: str) -> dict[_KeyPath, int]:
    """Return the line of each table and key, counted from 1."""
    lines: dict[_KeyPath, int] = {}
    table: _KeyPath = ()
    for begin, statement in _statements(text):
        paths = list(_paths(tomllib.loads(statement)))
        if statement.lstrip().startswith("["):
            table, paths = paths[-1], [()]
        for keys in paths:
            lines.setdefault(table + keys, begin)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each statement of a TOML document, with its line, in one pass: a long value is no burden."""
    begin, start, line, depth = 1, 0, 1, 0
    for token in _TOKEN.finditer(text + "\n"):
        word = token[0]
        line += word.count("\n")
        depth += (word in "[{") - (word in "]}")
        if word == "\n" and not depth:
            if text[start : token.start()].strip():
                yield begin, text[start : token.start()] + "\n"
            begin, start = line, token.end()


def _paths(parsed: Mapping[str, Any], above: _KeyPath = ()) -> Iterator[_KeyPath]:
    for key, value in parsed.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))


def _resolved(
    table: _KeyPath,
    options: Mapping[str, Any],
    folder: Path,
    environ: Mapping[str, str],
    place: _Place,
) -> dict[str, Any]:
    """Return the options with the values of `NAME_file` and `NAME_env` under `NAME`."""
    found: dict[str, Any] = {}
    for given, value in options.items():
        name, _, how = given.rpartition("_")
        _, where = place((*table, given))
        if how not in ("file", "env") or not name:
            name, text = given, value
        elif not isinstance(value, str):
            raise Misuse(f"{where}: expected a text")
        elif how == "file":
            text = _content(folder / value, where)
        elif value in environ:
            text = environ[value]
        else:
            raise Misuse(f"{where}: the environment has no variable {value!r}")
        if name in found:
            raise Misuse(f"{where}: {name!r} is given twice")
        found[name] = text
    return found


def _content(path: Path, where: str) -> str:
    try:
        return text_outside(path).removesuffix("\n")
    except (OSError, Unreadable) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Misuse(f"{where}: cannot read {path}: {why}") from None


def _exposed(path: Path, document: Mapping[str, Any]) -> list[str]:
    """Return a warning if everybody on this machine can read a secret in the file."""
    if not path.stat().st_mode & stat.S_IROTH:
        return []
    names = [(f"{table}.{name}", name) for table in HIDDEN for name in _keys(document.get(table))]
    names += [(name, name) for name in document if name in HIDDEN_NAMES]
    return [
        f"{path} is readable by all, and {shown} may be a secret: "
        f"chmod o-r {path}, or put the value into a file and name it by {name}_file"
        for shown, name in names
        if names_secret(name) and not name.endswith(("_file", "_env"))
    ]


def _keys(table: object) -> list[str]:
    return list(table) if isinstance(table, dict) else []
