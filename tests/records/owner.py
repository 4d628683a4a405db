"""A process with a managed ledger whose tier commits to a metadata service. It does what its input says.

    append 3      append three records, and answer the offset of the first
    offload       seal, and offload all that is sealed
    read          answer all records
    run           append, seal and work until the process is killed; a line for each record

Each answer is a line of JSON: what the call returned, or the name of its error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from records.in_memory import plugins

from offload import FolderLog, LedgerPolicy, ManagedLedger, Session, TierPlan
from offload.ground.errors import OffloadError

STREAM = "orders"
POLICY = LedgerPolicy(deletion_lag_seconds=0.05, roll_seconds=None)


async def act(ledger: ManagedLedger, call: str, *arguments: str) -> Any:
    """Do what one line says."""
    match call:
        case "append":
            begin = ledger.next_offset
            return await ledger.append([b"%d" % (begin + rank) for rank in range(int(arguments[0]))])
        case "offload":
            await ledger.roll()
            return await ledger.offload_prefix(ledger.next_offset)
        case "read":
            return [body.decode() async for batch in ledger.read(0) for body in batch.bodies]
        case "run":
            while True:
                tell(await ledger.append([b"%d" % ledger.next_offset]))
                await ledger.roll()
                await ledger.step()
    raise AssertionError(call)


def tell(answer: Any) -> None:
    """Answer."""
    print(json.dumps(answer), flush=True)


async def main(folder: Path, tier_url: str, commit_url: str) -> None:
    """Own the stream until the input ends."""
    async with Session(plugins=plugins()) as session:
        tier = session.tier(tier_url, plan=TierPlan(commit_store=commit_url))
        await tier.open(create=True)
        ledger = await ManagedLedger.open(await FolderLog.open(folder, name=STREAM), tier, policy=POLICY)
        tell("open")
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                tell(await act(ledger, *line.split()))
            except OffloadError as error:
                tell(type(error).__name__)
        await ledger.close()


class Owner:
    """Such a process, as its test sees it."""

    def __init__(self, process: Popen[str]) -> None:
        self.process = process

    def begin(self, line: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for a line of the process. None if it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def do(self, line: str) -> Any:
        """Send a line, and wait for the answer."""
        self.begin(line)
        return self.answer()


@contextmanager
def owner(folder: Path, tier: Path, commit_url: str) -> Iterator[Owner]:
    """Start a process, and end it."""
    tests = Path(__file__).parents[1]
    code = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests.parent / 'examples/metadata')!r}]; "
    code += "import asyncio, pathlib; from records.owner import main; "
    code += "asyncio.run(main(pathlib.Path(sys.argv[1]), *sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(folder), str(tier), commit_url]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            found = Owner(process)
            assert found.answer() == "open"
            yield found
        finally:
            process.kill()
