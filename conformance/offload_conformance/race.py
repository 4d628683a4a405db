"""Processes that race for keys, each with a client of its own.

Invariant: they are spawned, never forked, because the threads and sockets of a client do not survive a fork.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import IO, Final, Self

from offload_conformance.contender import ContenderTask

COMMAND: Final = (sys.executable, "-m", "offload_conformance.contender")
PATIENCE_SECONDS: Final = 120
"""A limit, so that a store that never answers ends the test."""


class Contender:
    """One process. Its client is closed and it is ended at the end of the `async with`."""

    def __init__(self, job: ContenderTask) -> None:
        self._job = job

    async def __aenter__(self) -> Self:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `__aexit__`
        self._process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._tell(self._job)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.close()
            await self._process.stdin.wait_closed()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            self._errors.close()

    async def is_ready(self) -> None:
        """Wait until the process has opened the place."""
        await self._answer("ready")

    async def creates(self, key: str) -> bool:
        """Let the process create a key. Return True if it won."""
        self._tell(key)
        return await self._answer("won", "lost") == "won"

    def _tell(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")

    async def _answer(self, *known: str) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = (await self._process.stdout.readline()).decode().strip()
        assert answer in known, f"a client in another process failed: {self._last_words()}"
        return answer

    def _last_words(self) -> str:
        """Return the last line that the process wrote to standard error: the error that ended it."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:400] if lines else "it ended without a message"


async def winners_of(job: ContenderTask, keys: Sequence[str], *, contenders: int) -> list[list[bytes]]:
    """Let processes create each key at the same time. For each key, return the bytes of those that won."""
    names = [f"process {n}" for n in range(contenders)]
    async with AsyncExitStack() as stack:
        racing = [await stack.enter_async_context(Contender(job | {"bytes": name})) for name in names]
        await asyncio.gather(*(each.is_ready() for each in racing))
        found = []
        for key in keys:
            won = await asyncio.gather(*(each.creates(key) for each in racing))
            found.append([name.encode() for name, has_won in zip(names, won, strict=True) if has_won])
        return found
