"""Tables on a terminal: they fit its width, by one rule, and break no number."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from command_line import offload, sync
from hypothesis import example, given
from hypothesis import strategies as st
from osiris_writer import simple_chunks, write_stream
from rich.cells import cell_len
from rich.console import Console
from terminals import on_terminal

from offload.cli.commands import BUILT_IN, GROUPS
from offload.cli.kit import bar
from offload.cli.kit.columns import NAME_WIDTH_MIN, fit, fit_sentence, shortened
from offload.cli.kit.progress import CommandProgress

ORDERS = ("__orders_1795918496456860468", "__orders_1795918496456861111")
PAYMENTS = ("__payments.eu-central-1.settled_1795918496456860999", "eu_orders_1795918496456000001")
"""Folders as RabbitMQ names them: virtual host, queue and number."""

HEADS = ("stream", "messages", "first offset", "size", "newest")


def rows(*names: str) -> list[list[str]]:
    return [[name, "240000", "1795918496", "9.6 KiB", "2023-11-14T22:13:24.750Z"] for name in names]


def test_a_table_that_fits_is_not_changed() -> None:
    fitted = fit(HEADS, rows(*ORDERS), width=120, drop=("size",))

    assert (fitted.heads, fitted.rows, fitted.not_shown) == ([*HEADS], rows(*ORDERS), [])


def test_names_lose_their_middle_and_then_columns_go_in_the_given_order() -> None:
    fitted = fit(HEADS, rows(*ORDERS, *PAYMENTS), width=66, drop=("size", "first offset", "newest"))

    assert (fitted.heads, fitted.not_shown) == (["stream", "messages", "newest"], ["size", "first offset"])
    names = [row[0] for row in fitted.rows]
    assert all(name.endswith(whole[-12:]) for name, whole in zip(names, [*ORDERS, *PAYMENTS], strict=True))
    assert [row[1:] for row in fitted.rows] == [["240000", "2023-11-14T22:13:24.750Z"]] * 4
    assert names[0] == ORDERS[0]  # there was room left, and names got it back


def test_text_may_fold_and_a_number_may_not() -> None:
    fitted = fit(("name", "finding", "age"), [["a", "some words", "3 s"], ["b", "-", "not known"]], width=9)

    assert fitted.is_whole == [True, False, True]


@example({"00000⺀⺀00000000000000⺀"})
@given(st.sets(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1), min_size=1))
def test_names_that_differ_look_different_when_they_are_shortened(names: set[str]) -> None:
    found = shortened(sorted(names), NAME_WIDTH_MIN)

    assert len({*found}) == len(names)
    for short, name in zip(found, sorted(names), strict=True):
        assert cell_len(short) <= max(NAME_WIDTH_MIN, cell_len(name))


@pytest.mark.parametrize("name", [*ORDERS, *PAYMENTS, "orders"])
@pytest.mark.parametrize("note", ["", ", 12 damaged"])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_progress_bar_has_one_line_with_whole_numbers_and_the_end_of_the_name(
    monkeypatch: pytest.MonkeyPatch, name: str, note: str, width: int
) -> None:
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(bar, "stderr", lambda: console)

    with bar.bar() as show:
        for done in (1, 2):
            show(
                CommandProgress(
                    what=f"verifying {name}", note=note, done=done, total=3, size_bytes=done * 1_020_000_000
                )
            )

    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split("[\r\n]", shown.getvalue())]
    drawn = [line for line in lines if (line.strip() and "%" in line) or "iB" in line]
    assert drawn
    for line in drawn:
        assert cell_len(line) <= width
        assert re.match(rf"verifying \S*{re.escape(name[-6:])}{note} ", line), line
        assert re.search(r" \d+% [\d.]+ [MG]iB(, [\d.]+ [KMGT]iB/s)? +[-\d]", line), line
        assert "…" not in line


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 12 records in offsets [0, 12345)", ["a: 12 records in", "  offsets [0, 12345)"]),
        ("it lags, by 10000 s, 297.6 KiB", ["it lags, by 10000 s,", "  297.6 KiB"]),
        ("see: offload help a-sync-stopped", ["see:", "  offload help a-sync-stopped"]),
    ],
)
def test_a_sentence_breaks_between_words(text: str, lines: list[str]) -> None:
    assert fit_sentence(text, 24).split("\n") == lines
    assert fit_sentence(text, 80) == text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the streams of a broker, and their tier."""
    folder = tmp_path_factory.mktemp("columns")
    for name in (*ORDERS, *PAYMENTS):
        write_stream(folder / "source" / name, simple_chunks(2))
    sync(folder / "source", folder / "tier")
    return folder


def lines_of(*arguments: object, columns: int = 80) -> list[str]:
    """Return the lines that a command prints on a terminal of this width, without colour."""
    env = {"COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "xterm"}
    code, shown = on_terminal(*arguments, env=env)
    assert code == 0, shown
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    return plain.replace("\r", "\n").splitlines()


def shown_names(place: Path) -> list[str]:
    """Return the names of the streams as output that is no terminal has them."""
    return [line.split("\t")[0] for line in offload("ls", place / "tier").lines[1:]]


def test_the_tables_of_ls_and_status_fit_80_columns_with_the_names_of_a_broker(place: Path) -> None:
    source = f"rabbitmq://{place / 'source'}"
    listed = lines_of("ls", place / "tier")
    status = lines_of("status", source, place / "tier", "--unused")
    table = status[: next(number for number, line in enumerate(status) if line.startswith("4 streams"))]

    assert max(map(len, (*listed, *table))) <= 80
    commands = [line for line in status if re.match("    (offload|systemctl) ", line)]
    assert len(commands) == 5
    sentences = [line for line in status if line not in commands and " " in line.strip()]  # no path alone
    assert max(map(len, sentences)) <= 80
    for lines in (listed, table):
        for name in shown_names(place):
            [row] = [line for line in lines if name[-12:] in line]
            assert row.startswith(name[:5])
    assert any(line.startswith("not shown in 80 columns: version, codecs") for line in listed)
    assert max(map(len, lines_of("ls", place / "tier", columns=60))) <= 60
    newest = re.compile(r" \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\s*$")
    assert len([line for line in listed if newest.search(line)]) == 4


def test_the_lines_of_inspect_break_between_facts_at_80_columns(place: Path) -> None:
    lines = lines_of("inspect", place / "tier", ORDERS[0])

    assert max(map(len, lines)) <= 80
    assert any("messages in offsets [0, 6), " in line for line in lines)
    assert any(re.search(r"\S+Z to \S+Z$", line.rstrip()) for line in lines)
    assert any(re.search(r"ledger 0, attempt [0-9a-f-]{36}$", line.rstrip()) for line in lines)
    piped = offload("inspect", place / "tier", ORDERS[0]).lines
    assert " ".join("".join(lines).split()).count("attempt ") == " ".join(piped).count("attempt ")
    assert len(piped) < len(lines)


def test_output_that_is_no_terminal_is_whole(place: Path) -> None:
    ran = offload("ls", place / "tier")

    assert ran.lines[0].count("\t") == 10
    assert {*ORDERS, PAYMENTS[0]} < {*shown_names(place)}


def test_the_help_lists_commands_in_groups_and_cuts_no_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert [name for group in GROUPS.values() for name in group] == [*BUILT_IN]
    for words in (("--help",), ("spark", "--help")):
        text = offload(*words).text
        assert "..." not in text.partition("\nCommands")[2]
        assert max(map(len, text.splitlines())) <= 80
    assert "rabbitmq-stream://host/stream" in offload("restore", "--help").text
    assert re.findall(r"^(Commands.*):$", offload("--help").text, re.MULTILINE)[0::5] == [
        "Commands that copy to a tier",
        "Commands of plugins",
    ]
