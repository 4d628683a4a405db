"""The servers of one run of pytest: each starts on its first use, and all stop at the end."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Final, Self

import pytest

from servers.catalogue import Running, server

REQUIRED: Final = "OFFLOAD_SERVERS_REQUIRED"
"""The variable that CI sets to 1: then a missing server fails its tests."""


class Session:
    """A context manager. On exit, all of its servers have ended."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[str, Running] = {}
        self._broken: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def running(self, name: str) -> Running:
        """Return the server `name`. If it is missing, skip the test, or fail it if servers are required."""
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
                self._broken[name] = str(exc)  # only one test waits for it in vain
                raise
        return self._running[name]
