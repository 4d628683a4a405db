"""Values that need no conversion reach a command exactly as Typer would deliver them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any
from uuid import UUID

import pytest
import typer

from offload.cli.values import take_values_as_they_are


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def doubled(text: str) -> str:
    return text * 2


def upper(text: str | None) -> str | None:
    return text and text.upper()


def shown(values: list[str] | None) -> list[str]:
    return [repr(values)]


def command(
    word: str,
    words: Annotated[list[str] | None, typer.Argument()] = None,
    number: Annotated[int, typer.Option(min=1, max=9)] = 3,
    ratio: float | None = None,
    flag: bool = False,
    either: Annotated[bool | None, typer.Option("--yes/--no")] = None,
    many: Annotated[list[int] | None, typer.Option()] = None,
    pair: Annotated[tuple[int, str], typer.Option()] = (1, "one"),
    colour: Colour = Colour.RED,
    identity: UUID | None = None,
    path: Annotated[Path | None, typer.Option(exists=True)] = None,
    twice: Annotated[str, typer.Option(parser=doubled)] = "ab",
    tags: Annotated[list[str] | None, typer.Option(callback=shown)] = None,
    loud: Annotated[str | None, typer.Option(callback=upper, envvar="LOUD")] = None,
) -> None:
    """Take a parameter of every kind."""


LINES = [
    "w",
    "w x y",
    "w --number 7 --ratio 0.5 --flag --no --many 1 --many 2 --pair 4 four",
    "w --colour blue --identity 00000000-0000-0000-0000-000000000001 --path / --twice xy --loud quiet",
    "",
    "w --number 10",
    "w --number x",
    "w --many x",
    "w --colour green",
    "w --identity x",
    "w --path /nowhere/at/all",
    "w --unknown",
]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("env", [{}, {"LOUD": "from the environment"}], ids=["plain", "env"])
def test_every_value_and_error_is_that_of_typer(
    line: str, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    app = typer.Typer(add_completion=False)
    app.command()(command)
    plain, ours = typer.main.get_command(app), typer.main.get_command(app)

    take_values_as_they_are(ours)

    assert outcome(ours, line) == outcome(plain, line)


def outcome(parsed: Any, line: str) -> Any:
    """Return what each parameter became, or the error that the user reads."""
    try:
        return parsed.make_context("program", line.split()).params
    except Exception as error:  # noqa: BLE001 - Typer exports no base of its errors
        return type(error), str(error)


def test_a_typer_that_stores_types_elsewhere_converts_every_value_itself() -> None:
    def convert(ctx: object, value: object) -> object:
        return "converted", value

    parameter = SimpleNamespace(process_value=convert, required=False, callback=None, multiple=True, nargs=1)
    command = SimpleNamespace(get_params=lambda ctx: [parameter])

    take_values_as_they_are(command)
    [taken] = command.get_params(None)

    assert [taken.process_value(None, value) for value in (None, "x")] == [
        ("converted", None),
        ("converted", "x"),
    ]
