"""Tests of every command at an object of a later version, as an older program meets it during an upgrade.

The objects are sound: only their version is one that no program knows yet, and the checksum is right. An
older release that met today's objects would refuse them in the same way, and cannot be run from a clone.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from campaign import few
from command_line import contents, keys, offload, sync, verify
from osiris_data import DATA
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload.formats.checksums import crc32c

CHUNKS: Final = [*simple_chunks(4)]


def sealed(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "big")


def later_text(raw: bytes) -> bytes:
    """Return an anchor or a key object with version 9 in its first line."""
    first, second, _ = raw.split(b"\n", 2)
    lines = first[: first.rindex(b" ")] + b" 9\n" + second + b"\n"
    return lines + b"crc32c %08x\n" % crc32c(lines)


def later_head(raw: bytes) -> bytes:
    """Return a root with version 9 in its header."""
    return sealed(raw[:4] + b"\0\x09" + raw[6:-4])


def later_trailer(raw: bytes) -> bytes:
    """Return a fragment with version 9 in its trailer."""
    return raw[:-180] + later_head(raw[-180:])


LATER: Final[dict[str, tuple[str, Callable[[bytes], bytes]]]] = {
    "tier anchor": ("tier.anchor", later_text),
    "stream anchor": ("orders/stream.anchor", later_text),
    "root": ("orders/metadata/root.*", later_head),
    "fragment": ("orders/data/*.fragment", later_trailer),
    "key": ("orders/keys/*", later_text),
}
"""The names of the objects of each kind, and the function that makes them later ones."""

READS: Final = ("read", "copy", "status")
WRITES: Final = ("sync", "run --check")
NEEDS_A_ROOT: Final = ("inspect", "compact", "sweep", "trim", "delete", "rebuild")
REFUSED_BY: Final = {
    "tier anchor": (*READS, *WRITES, *NEEDS_A_ROOT, "ls"),
    "stream anchor": (*READS, *WRITES, *NEEDS_A_ROOT, "ls"),
    "root": (*READS, *WRITES, *NEEDS_A_ROOT, "ls"),
    "fragment": (*READS, *WRITES, "rebuild"),
    "key": (*READS, *WRITES),
}
"""The commands that need such an object. The others work: a trim needs no fragment's bytes."""


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[object, ...]]:
    """Return the arguments of each command, on a tier that is behind its source."""
    masters, source, tier = tmp_path / "masters", tmp_path / "source", tmp_path / "tier"
    masters.mkdir(mode=0o700)
    (masters / "label").touch(mode=0o600)
    (masters / "label").write_bytes(base64.b64encode(os.urandom(32)))
    monkeypatch.setenv("OFFLOAD_KEYS", f"keyfile:{masters}")
    write_stream(source / "orders", CHUNKS[:2])
    sync(source, tier, "--encrypt", "label")
    sync(DATA / "tiny", tier)
    append_chunks(source / "orders", CHUNKS[2:])
    url, both = f"rabbitmq://{source}", (tier, "orders")
    return {
        "ls": (tier,),
        "read": both,
        "copy": (tier, tmp_path / "copy", "orders", "--encrypt", "label"),
        "status": (url, tier),
        "sync": (url, tier),
        "run --check": (url, tier),
        "inspect": both,
        "compact": (tier,),
        "sweep": (tier, "--grace", 0),
        "trim": (*both, "--before", 1),
        "delete": (*both, "--yes"),
        "rebuild": (*both, "--incarnation", "00000000-0000-0000-0000-000000000001", "--yes"),
    }


def upgrade(tier: Path, kind: str) -> None:
    """Give the objects of this kind a later version. Of several roots, the newest."""
    glob, later = LATER[kind]
    found = sorted(tier.glob(glob))
    for path in found[-1:] if kind == "root" else found:
        raw = path.read_bytes()
        path.unlink()
        path.write_bytes(later(raw))


@few("kinds of objects of a later version; make test has three of five", 2)
@pytest.mark.parametrize("kind", LATER)
def test_a_command_that_needs_a_later_object_says_upgrade_and_changes_nothing(
    arguments: dict[str, tuple[object, ...]], tmp_path: Path, kind: str
) -> None:
    tier = tmp_path / "tier"
    upgrade(tier, kind)
    before = contents(tier)

    for command in REFUSED_BY[kind]:
        ran = offload(*command.split(), *arguments[command])

        assert ran.code == 1, command
        said = ran.text + ran.stderr
        assert "has format version 9, and this program reads" in said, command
        assert "upgrade the program" in said, command
        left = {name: file for name, file in contents(tier).items() if not name.startswith(".staging/")}
        assert left == {name: file for name, file in before.items() if name in left}, command
        assert keys(tier) == {name for name in before if not name.startswith(".staging/")}, command
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)


@pytest.mark.parametrize("kind", LATER)
def test_a_verify_calls_a_later_object_unchecked_and_no_damage(
    arguments: dict[str, tuple[object, ...]], tmp_path: Path, kind: str
) -> None:
    """Otherwise an operator would restore sound objects from a backup, in the middle of an upgrade."""
    tier = tmp_path / "tier"
    upgrade(tier, kind)

    code, document = verify(tier)
    shown = offload("verify", tier)

    assert (code, document["damages"]) == (3, [])
    found = {row["object"] for row in document["unchecked"]}
    assert {str(path.relative_to(tier)) for path in tier.glob(LATER[kind][0])} & found
    assert all("a newer program wrote it: " in row["reason"] for row in document["unchecked"])
    assert shown.code == 3
    assert "no damage was found, but " in shown.lines[-1]
    assert shown.lines[-1].endswith("cannot be checked: upgrade this program")
    assert "DAMAGE" not in shown.text


@pytest.mark.parametrize("kind", ["stream anchor", "root"])
def test_a_later_stream_hides_no_other_stream(
    arguments: dict[str, tuple[object, ...]], tmp_path: Path, kind: str
) -> None:
    upgrade(tmp_path / "tier", kind)

    assert [row["stream"] for row in offload("ls", tmp_path / "tier", "--json").objects] == ["tiny"]
