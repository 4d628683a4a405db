"""The servers of one run of pytest: started when first asked for, and stopped at its end."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Final, Self

import pytest

from servers.catalogue import Running, server

REQUIRED: Final = "OFFLOAD_SERVERS_REQUIRED"
"""Set to 1: a server that is missing fails its tests. CI sets it."""


class Session:
    """A context manager; on leaving it, all of its servers have ended."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[str, Running] = {}
        self._broken: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def running(self, name: str) -> Running:
        """The server `name`. Skips the test where it is missing, or fails it where servers are required."""
        why = server(name).missing()
        if why is not None:
            required = os.environ.get(REQUIRED) == "1"
            (pytest.fail if required else pytest.skip)(f"{name} cannot be run here: {why}")
        if name in self._broken:
            pytest.fail(f"{name} did not start: {self._broken[name]}")
        if name not in self._running:
            try:
                self._running[name] = self._stack.enter_context(server(name).running())
            except Exception as exc:
                self._broken[name] = str(exc)  # one test waits for it in vain, not every one
                raise
        return self._running[name]
