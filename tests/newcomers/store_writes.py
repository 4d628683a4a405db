"""Mistakes in puts: retries, sizes, parts, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from newcomers import proofs
from newcomers.registry import bug
from newcomers.service import ServiceStore, gathered
from offload.contracts.store import Body, check_key
from offload.ground.errors import Corrupt, Misuse, TryAgain


@bug(proofs.keeps(*range(1, 60)))
class RetriesAppendToTheBuffer(ServiceStore):
    """Every twentieth put is refused at first (503), and the retry appends the body to the same buffer again.

    Breaks "Puts are whole": the object is stored twice in a row under one key.
    """

    turn: ClassVar = 0

    async def put(self, key: str, body: Body) -> None:
        check_key(key)
        type(self).turn += 1
        data = bytearray(await gathered(body, key))
        if self.turn % 20 == 0:
            data += await gathered(body, key)
        await self.ask(self.service.put, key, bytes(data))


@bug(proofs.keeps(*range(1, 60)))
class TimeoutsAreOnlyLogged(ServiceStore):
    """A put that times out is logged and reported as a success. One in thirty does.

    Breaks "When `put` returns, a power cut does not undo it": the object was never stored.
    """

    turn: ClassVar = 0

    async def ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        if request == self.service.put:
            type(self).turn += 1
            if self.turn % 30 == 0:
                return None
        return await super().ask(request, *arguments)


@bug(proofs.body_that_fails(Corrupt("chunk", "source", expected=1, found=2)))
class BodysErrorIsCalledTryAgain(ServiceStore):
    """Any error in a put becomes `TryAgain`, even an error of the body.

    Breaks "An error from `body`": damage at the source is retried for ever, and nobody notices.
    """

    async def put(self, key: str, body: Body) -> None:
        try:
            await super().put(key, body)
        except Misuse:
            raise
        except Exception as exc:
            raise TryAgain(f"{self.url}: {exc}") from exc


@bug(proofs.body_of_another_size(100_001, 100_000))
class ShortBodiesArePadded(ServiceStore):
    """The object is allocated at its announced size, and a body that ends early leaves zeros.

    Breaks "`Misuse` is also raised for a body whose windows are not `size_bytes` long".
    """

    async def put(self, key: str, body: Body) -> None:
        data = b"".join([window async for window in body.windows()])
        if len(data) > body.size_bytes:
            raise Misuse("the body is too long")
        await self.ask(self.service.put, check_key(key), data.ljust(body.size_bytes, b"\0"))


@bug(proofs.keeps(2**20, 2**20 + 1, 3 * 2**20))
class LastPieceOfAWholeNumberIsAllOfIt(ServiceStore):
    """Objects are cut into pieces of a mebibyte, and the rest is `data[-rest:]`: for a rest of zero that is
    everything.

    Breaks "Store an object whole", at exact multiples of a mebibyte.
    """

    async def put(self, key: str, body: Body) -> None:
        data = await gathered(body, check_key(key))
        size = 2**20
        pieces = [data[at * size : (at + 1) * size] for at in range(len(data) // size)]
        rest = len(data) % size
        await self.ask(self.service.put, key, b"".join([*pieces, data[-rest:] if len(data) else b""]))


@bug(proofs.keeps(5 * 2**20 + 3, 17 * 2**20))
class PartsOfAPutAreJoinedAsTheyEnd(ServiceStore):
    """A put of more than 5 MiB is sent in four parts at the same time, and joined in the order in which they
    end.

    Breaks "Store an object whole": the smallest part, the last one, comes first.
    """

    async def put(self, key: str, body: Body) -> None:
        data = await gathered(body, check_key(key))
        if len(data) <= 5 * 2**20:
            await self.ask(self.service.put, key, data)
            return
        done: list[bytes] = []

        async def send(part: bytes) -> None:
            for _ in range(len(part) // 2**18):
                await asyncio.sleep(0)
            done.append(part)

        size = -(-len(data) // 4) + 1
        await asyncio.gather(*(send(data[at : at + size]) for at in range(0, len(data), size)))
        await self.ask(self.service.put, key, b"".join(done))
