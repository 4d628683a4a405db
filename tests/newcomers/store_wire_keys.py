"""Mistakes with keys on their way to a service and back, and with the check of keys."""

from __future__ import annotations

from newcomers import proofs
from newcomers.registry import bug
from newcomers.service import ServiceStore
from offload.contracts.store import Body, check_key
from offload.ground.errors import Misuse


@bug(proofs.key_round(("é" * 100 + "/") * 5 + "a" * 19))
class KeyOfMaximalLengthIsRefused(ServiceStore):
    """A key of exactly 1,024 bytes is refused: `>=` where `>` is meant.

    Breaks "Keys are non-empty strings of at most 1,024 bytes".
    """

    async def put(self, key: str, body: Body) -> None:
        if len(check_key(key).encode()) >= 1024:
            raise Misuse(f"{key[:40]!r} is too long")
        await super().put(key, body)
