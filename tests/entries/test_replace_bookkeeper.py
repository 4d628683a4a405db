"""The example of a store of ledgers, as a user would run it, and killed at any moment."""

from __future__ import annotations

import asyncio
import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from campaign import CAMPAIGN

from offload import NotOffloaded, open_tier

EXAMPLE = Path(__file__).parents[2] / "examples" / "replace-bookkeeper" / "ledger_store.py"
KILLS = 6 if CAMPAIGN else 1
SEED = 21


def started(folder: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, str(EXAMPLE), "write", str(folder / "ledgers"), str(folder / "tier")]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def written(folder: Path, lines: list[str]) -> list[str]:
    """Write lines, wait for the end, and return what was acknowledged."""
    process = started(folder)
    out, _ = process.communicate("".join(line + "\n" for line in lines).encode(), timeout=60)
    assert process.returncode == 0
    return out.decode().splitlines()


def killed(folder: Path, lines: list[str], acknowledged: int) -> list[str]:
    """Write lines, kill the process after so many acknowledgements, and return all that it gave."""
    process = started(folder)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(line + "\n" for line in lines).encode())
    process.stdin.flush()
    out = [process.stdout.readline() for _ in range(acknowledged)]
    process.kill()
    out += process.stdout.read().splitlines(keepends=True)
    process.stdin.close()
    process.stdout.close()
    process.wait()
    return [line.decode().rstrip("\n") for line in out if line.endswith(b"\n")]


def check_entries(folder: Path, acknowledged: list[str]) -> int:
    """Read each acknowledged entry by its ledger and id. Return the number of ledgers on the disk."""
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))

    async def run() -> int:
        store = example["LedgerStore"](folder / "ledgers")
        async with open_tier(str(folder / "tier")) as tier:
            for line in acknowledged:
                place, _, text = line.partition(" ")
                ledger_id, entry_id = map(int, place.split(":"))
                assert await example["read_entry"](store, tier, ledger_id, entry_id) == text.encode(), line
        return len(store.ledgers)

    return asyncio.run(run())


def test_ledgers_leave_the_disk_and_their_entries_are_found(tmp_path: Path) -> None:
    """The lines and ids are those of the page."""
    acknowledged = written(tmp_path, [str(number) for number in range(1000, 1050)])
    words = [sys.executable, str(EXAMPLE), "read", str(tmp_path / "ledgers"), str(tmp_path / "tier")]

    assert acknowledged[7] == "0:7 1007"
    assert check_entries(tmp_path, acknowledged) == 1
    assert subprocess.run([*words, "0", "7"], capture_output=True, check=True, timeout=60).stdout == b"1007\n"
    missing = subprocess.run([*words, "0", "25"], capture_output=True, check=False, timeout=60)
    assert (missing.returncode, missing.stdout, missing.stderr) == (1, b"", b"no entry 0:25\n")


def test_an_entry_that_does_not_exist_is_never_one_of_another_ledger(tmp_path: Path) -> None:
    written(tmp_path, [str(number) for number in range(1000, 1050)])
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))

    async def run() -> None:
        store = example["LedgerStore"](tmp_path / "ledgers")
        async with open_tier(str(tmp_path / "tier")) as tier:
            for place in ((0, 20), (0, 25), (0, -1), (1, 20), (1, 10**9), (2, 10), (2, -1), (3, 0)):
                with pytest.raises(NotOffloaded):
                    await example["read_entry"](store, tier, *place)

    asyncio.run(run())


def test_no_acknowledged_entry_is_lost_if_the_store_is_killed_again_and_again(tmp_path: Path) -> None:
    drawn = random.Random(SEED)
    acknowledged: list[str] = []
    for kill in range(KILLS):
        lines = [f"{kill}-{number}-{'x' * drawn.randrange(300)}" for number in range(150)]
        acknowledged += killed(tmp_path, lines, drawn.randrange(1, 70))
    acknowledged += written(tmp_path, [f"last-{number}" for number in range(25)])

    places = [line.partition(" ")[0] for line in acknowledged]
    assert len(set(places)) == len(places) > KILLS + 25
    assert check_entries(tmp_path, acknowledged) == 1
