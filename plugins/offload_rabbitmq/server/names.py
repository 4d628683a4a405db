"""The stream of a tier that a client means.

RabbitMQ names the folder of a stream after the virtual host, the queue and the time of creation, for example
`__orders_1795238998890203020`: every character but letters, digits, `-`, `_` and `=` becomes `_`. A tier has
these names. So in virtual host V, the name S means

    the stream S of the tier, if there is one
    the newest stream with the folder of V and S otherwise. Older lives have their full names

The streams of the super stream S are `S-0`, `S-1` and so on, as RabbitMQ names them by default.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Final

from offload.contracts.listener import ServedStreams
from offload.ground.env import Env
from offload.ground.errors import NotOffloaded, OffloadError

LOOK_AGAIN_SECONDS: Final = 1.0
"""The age of a list of names. Each client asks several times while it connects."""

KNOWN_SECONDS: Final = 60.0
"""The age of a list that has the very name that is asked for. No newer stream has it."""

NAME_SIZE_BYTES_MAX: Final = 255
_REPLACED: Final = re.compile(r"[^A-Za-z0-9_\-=]")
_NUMBER: Final = re.compile(r"[0-9]{1,20}", re.ASCII)


class TierNames:
    """The names of a tier, for clients."""

    def __init__(self, streams: ServedStreams, env: Env) -> None:
        self._streams, self._env = streams, env
        self._looked_at = -inf
        self._names: frozenset[str] = frozenset()
        self._lives: dict[str, list[tuple[int, str]]] = {}
        """By folder: the times of creation, and the names. One request may ask for many thousand names."""

    async def resolve(self, virtual_host: str, name: str) -> str:
        """Return the name on the tier.

        Raises `NotOffloaded` if there is none, and `OffloadError` if two streams are equally new.
        """
        await self._look(KNOWN_SECONDS if name in self._names else LOOK_AGAIN_SECONDS)
        if name in self._names:
            return name
        lives = self._lives.get(_REPLACED.sub("_", f"{virtual_host}_{name}"), ())
        if not name or not lives:
            raise NotOffloaded(f"there is no stream {name[:NAME_SIZE_BYTES_MAX]!r}")
        newest = max(lives)[0]
        found = sorted(each for number, each in lives if number == newest)
        if len(found) > 1:
            raise OffloadError(f"it may be one of {', '.join(found)}: read each by its full name")
        return found[0]

    async def partitions(self, virtual_host: str, name: str) -> Sequence[str]:
        """Return the streams of a super stream, in order. Raises `NotOffloaded` if there is none."""
        found = list[str]()
        try:
            while True:
                await self.resolve(virtual_host, f"{name}-{len(found)}")
                found.append(f"{name}-{len(found)}")
        except NotOffloaded:
            if not found:
                raise
        return found

    async def learn(self) -> None:
        """List the names before the first client asks for one."""
        with suppress(OffloadError):  # the client is told
            await self._look(LOOK_AGAIN_SECONDS)

    async def _look(self, age_seconds: float) -> None:
        now = self._env.monotonic()
        if now - self._looked_at < age_seconds:
            return
        names, lives = frozenset(await self._streams.names()), dict[str, list[tuple[int, str]]]()
        for each in names:
            folder, _, number = each.rpartition("_")
            if _NUMBER.fullmatch(number):
                lives.setdefault(folder, []).append((int(number), each))
        self._names, self._lives, self._looked_at = names, lives, now
