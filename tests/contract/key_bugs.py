"""Stores that cannot hold some keys, and do not say so, or say what is not true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from contract.bugs import Bug, breaks

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Span, Suffix, check_key
from offload.ground.errors import Misuse
from offload.store.memory import MemoryStore

KEY_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=KEY_BUGS)


@bug("keys_may_be_long")
class CutsWhatItDeclaresTooLong(MemoryStore):
    """Declares that keys have at most 511 bytes, and cuts longer ones.

    The width of a column is declared, and nothing checks it.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, key_size_bytes_max=511)

    async def put(self, key: str, body: Body) -> None:
        await super().put(key[:511], body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key[:511], data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key[:511], span)


@bug("keys_are_refused_as_declared")
class DropsDotsAtTheEnd(MemoryStore):
    """Removes dots at the end of a key, so that two keys become one.

    Azure and Windows do this.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key.rstrip("."), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key.rstrip("."), span)


@bug("keys_are_refused_as_declared")
class RefusesUndeclared(MemoryStore):
    """Refuses a key that its server cannot hold, and does not declare it.

    The first user with such a key notices it.
    """

    async def create(self, key: str, data: bytes) -> None:
        if "\\" in key:
            raise Misuse(f"{key!r} has a backslash")
        await super().create(key, data)


@bug("keys_are_refused_as_declared")
class DeclaresAndTakes(MemoryStore):
    """Declares that it cannot hold some keys, and accepts them.

    A rule of an older server was kept in the declaration alone.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, keys_refused=r"\\")


@bug("keys_are_refused_as_declared")
class RefusesInOneCallOnly(MemoryStore):
    """Refuses a key in a put, and not at the beginning of an upload.

    Only one of the ways to write has the check.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, keys_refused=":")

    @staticmethod
    def check(key: str) -> None:
        """Check the rule of this store."""
        if ":" in check_key(key):
            raise Misuse(f"{key!r} has a colon")

    async def put(self, key: str, body: Body) -> None:
        self.check(key)
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        self.check(key)
        await super().create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.check(key)
        return await super().get(key, span)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.check(key)
        await super().delete(keys)
