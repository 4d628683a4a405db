"""Hostile texts at the doors that read one from outside: a value or an error of ours, in bounded memory."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from campaign import CAMPAIGN
from offload_cloud.pauses import pause_of
from offload_conformance.report import read as read_report
from offload_gcs.failures import _understood
from offload_keys.vault import _answer
from offload_pulsar.ledger_metadata import LedgerMetadata, _from_json
from offload_rabbitmq.folder_target import _read as read_of_restore
from offload_spark.options import _Said

from offload.contracts.opening import RequestLimits
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.ground.errors import OffloadError
from offload.ground.outside import Unreadable, json_outside, number_outside, read_outside, toml_outside
from offload.log.lock import _present, _state
from offload.managed.cursors import decode_cursors
from offload.managed.tier_copy import _decode_note
from offload.model.position import parse_position
from offload.model.quantities import seconds_from, size_bytes_from
from offload.opening.exporting import _recorded
from offload.service.address import address_from
from offload.service.config_file import load_config

MIB: Final = 2**20
ERROR_CHARACTERS_MAX: Final = 25_000
ARGUMENT_SIZE_BYTES_MAX: Final = 128 * 1024
"""Linux passes no longer argument or variable to a program, and our HTTP clients take no longer header."""

MEMORY_SIZE_BYTES_MAX: Final = 64 * MIB
"""The most that a door takes for one text. The largest text here has 4 MiB."""


def texts() -> Iterator[bytes]:
    """Yield hostile texts: JSON, TOML, numbers and bytes that are none of these."""
    keys = [
        b"first",
        b"ends",
        b"version",
        b"cursors",
        b"stream",
        b"source",
        b"parts",
        b"had",
        b"report",
        b"a",
    ]
    numbers = [b"9" * 5000, b"-" + b"9" * 5000, b"1e999999", b"1" + b"0" * 41, b"0x" + b"f" * 5000, b"NaN"]
    numbers += [
        b"Infinity",
        b"-1",
        b"0.1",
        b"1_0",
        "\u0661".encode(),
        b"1e5",
        b"18446744073709551616",
        b"true",
    ]
    values = [
        *numbers,
        b"null",
        b"[]",
        b"{}",
        b'"x"',
        b'"' + b"x" * MIB + b'"',
        b'"\\ud800"',
        b'"\\u0000"',
        b'""',
    ]
    yield from numbers
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}")):
        for depth in (63, 65, 1000, 100_000):
            yield opening * depth + b"1" + closing * depth
            yield b"a = " + opening * depth
    for key in keys:
        for value in values:
            yield b'{"%b": %b}' % (key, value)
            yield b"%b = %b\n" % (key, value)
    for junk in (
        b"",
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b" ",
        b"\n",
        b"null",
        b"[",
        b"\r\n",
    ):
        for count in (1, 1000, 4 * MIB // max(len(junk), 1) if CAMPAIGN else 10_000):
            yield junk * count
    yield b'a = """\n' + b"line\n" * 20_000 + b'"""\n'
    yield b"a = [\n" + b"1,\n" * 20_000 + b"]\n"
    yield b"a." * 50_000 + b"b = 1\n"
    yield b"[a]\n" * 1000
    yield b"".join(b"k%d = 1\n" % n for n in range(5000))
    yield b"{" + b",".join(b'"k%d":1' % n for n in range(5000)) + b"}"
    yield b'{"a":1,"a":2}'
    for number in range(40):
        yield json.dumps({"ends": [[1, 2]], "had": None, "first": 0, "synced": 3}).encode()[:number]


def of_descriptor(door: Callable[[int, Path], object]) -> Callable[[bytes, Path], object]:
    """Return a door that reads a descriptor."""

    def ask(raw: bytes, path: Path) -> object:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return door(descriptor, path)
        finally:
            os.close(descriptor)

    return ask


def of_text(door: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    """Return a door that takes an argument or a header."""
    return lambda raw, path: door(raw[:ARGUMENT_SIZE_BYTES_MAX].decode("utf-8", "surrogateescape"))


def said_by_vault(raw: bytes) -> object:
    # The caller takes a reply without the field for no answer.
    with suppress(LookupError, TypeError):
        return _answer(200, raw, "plaintext")
    return None


DOORS: Final[dict[str, Callable[[bytes, Path], object]]] = {
    "run.toml": lambda raw, path: load_config(path, {}),
    "record of an export": lambda raw, path: _recorded(path, ("stream",)),
    "report of a conformance run": lambda raw, path: read_report(path),
    "file of a restore": lambda raw, path: read_of_restore(path, ("stream",)),
    "lock of a log": of_descriptor(_state),
    "line of a lock": of_descriptor(_present),
    "cursors": lambda raw, path: decode_cursors(raw, where="here"),
    "note of a tier": lambda raw, path: _decode_note(raw),
    "anchor of a tier": lambda raw, path: TierAnchor.decode(b"ledger-offload tier 1\n" + raw, where="here"),
    "anchor of a stream": lambda raw, path: StreamAnchor.decode(
        b"ledger-offload stream 1\n" + raw, where="here"
    ),
    "reply of Vault": lambda raw, path: said_by_vault(raw),
    "error of GCS": lambda raw, path: _understood(raw),
    "metadata of Pulsar": lambda raw, path: LedgerMetadata.decode(raw, where="here"),
    "JSON of Pulsar": lambda raw, path: _from_json("bookkeeper.LedgerMetadata", raw, "here"),
    "Retry-After": of_text(partial(pause_of, now_ms=lambda: 0)),
    "address": of_text(address_from),
    "duration": of_text(seconds_from),
    "size": of_text(size_bytes_from),
    "position": of_text(parse_position),
    "pattern of Spark": of_text(lambda text: _Said({"streampattern": text}).streams()),
    "limit": of_text(lambda text: RequestLimits.of({"up_requests_max": text})),
}


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")  # of a pattern that somebody wrote
@pytest.mark.parametrize("name", DOORS)
def test_no_text_from_outside_gets_through_a_door_as_anything_but_a_value_or_an_error_of_ours(
    name: str, tmp_path: Path
) -> None:
    door, path, odd, count = DOORS[name], tmp_path / "text", list[str](), 0
    tracemalloc.start()
    try:
        for raw in [*texts()][:: 1 if CAMPAIGN else 7]:
            path.write_bytes(raw)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            count += 1
            try:
                door(raw, path)
            except OffloadError as error:
                if len(str(error)) > ERROR_CHARACTERS_MAX:
                    odd.append(f"{raw[:40]!r}: an error of {len(str(error))} characters")
            except Exception as error:  # noqa: BLE001 - any other one is what this test looks for
                odd.append(f"{raw[:40]!r}: {type(error).__name__}: {str(error)[:80]}")
            _, peak = tracemalloc.get_traced_memory()
            if peak - before > MEMORY_SIZE_BYTES_MAX:
                odd.append(f"{raw[:40]!r}: {(peak - before) // MIB} MiB")
    finally:
        tracemalloc.stop()
    assert odd == []
    assert count >= (500 if CAMPAIGN else 70)


@pytest.mark.parametrize("place", ["/dev/zero", "fifo", "folder", "nul\0", "large"])
def test_a_file_that_is_none_or_too_large_is_refused_at_once(tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(bytes(2 * MIB))
    password = tmp_path / place if place != "nul\0" else place

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Unreadable):
        read_outside(password)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("text", ["9" * 41, "-1", "+1", "1 ", "\u0661", "", "1e3", "0x1"])
def test_a_number_is_decimal_digits_within_its_bound(text: str) -> None:
    assert number_outside(text) is None
    assert (number_outside("0"), number_outside("9" * 40)) == (0, int("9" * 40))


def test_a_document_within_the_bounds_is_read_as_its_format_says() -> None:
    value: Any = {"a": [1, 2.5, "x", None, True, {"b": 2**64 - 1}]}

    assert json_outside(json.dumps(value)) == value
    assert toml_outside('a = [1, 2.5, "x"]\n[b.c]\nd = 1979-05-27\n')["a"] == [1, 2.5, "x"]
