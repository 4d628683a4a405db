"""Fourth set, stores: names and metadata, mistaken on the way through gateways and databases."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from newcomers.fourth_sound import KEY_MAX, METADATA_MAX, Gateway, checked, described
from newcomers.proofs import apart, names, raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Span, Suffix, Upload, check_key
from offload.ground.errors import Misuse
from offload.store.memory import _Described

# Metadata


@bug(described({f"label{number}": str(number) for number in range(20)}))
class TenTags(SharedMemory):
    """Metadata is kept as tags, of which the service keeps ten, and the others are left out in silence.

    Breaks "The store keeps them as they are", and the 32 pairs that every store which keeps metadata takes.
    Costs the labels behind the tenth.
    """

    async def put(self, key: str, body: Body) -> None:
        checked(self, key, body)
        data = b"".join([window async for window in body.windows()])
        body.check_size(len(data))
        await super().put(key, Body.of(data, metadata=body.metadata))
        kept = self.objects.get(key)
        if isinstance(kept, _Described):
            self.objects[key] = _Described.of(data, dict([*kept.metadata.items()][:10]))


async def _limit_counts_each_pair(open_: Open) -> None:
    store = open_()
    metadata = {f"n{number:02}": "v" * 65 for number in range(30)}  # 30 * 68 = 2040 bytes, and 30 * 16 more
    await raises(Misuse, store.put("k", Body.of(b"x", metadata=metadata)))
    assert await names(store) == []


@bug(_limit_counts_each_pair)
class LimitOfBareText(Gateway):
    """The limit of metadata is compared with the text alone, without the 16 bytes of each pair.

    Breaks "The most metadata of one object, as `object_metadata.metadata_size` counts. More is `Misuse`".
    Costs a caller the error at the place where the labels are chosen: a stricter store refuses the copy
    later.
    """

    async def put(self, key: str, body: Body) -> None:
        self.checked(key)
        named = check_metadata(body.metadata, replace(self.capabilities, metadata_size_bytes_max=2**20))
        if sum(len(name) + len(value) for name, value in named.items()) > METADATA_MAX:
            raise Misuse(f"the gateway keeps {METADATA_MAX} bytes of metadata")
        data = b"".join([window async for window in body.windows()])
        body.check_size(len(data))
        await asyncio.sleep(0)
        self.objects[key] = _Described.of(data, named) if named else data


# Keys


class Renames(SharedMemory):
    """A base class without a mistake: a store that writes a key under another name."""

    def stored(self, key: str) -> str:
        return check_key(key)

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.stored(key), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(self.stored(key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.stored(key), span)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        return await super().metadata_of(self.stored(key))

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.stored(key) for key in keys])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return await super().start_upload(self.stored(key), metadata=metadata)


@bug(apart("a;v=1/b", "a/b"))
class PathParameters(Renames):
    """The web server drops what follows a semicolon in a part of a path.

    Breaks "Keys are whole names". Costs the object whose name differs only by that.
    """

    def stored(self, key: str) -> str:
        parts = check_key(key).split("/")
        return "/".join(part[0] + part[1:].partition(";")[0] for part in parts)


async def _limit_is_in_bytes(open_: Open) -> None:
    await raises(Misuse, open_().put("/".join(["ü" * 60] * 5), Body.of(b"x")))


@bug(_limit_is_in_bytes)
class LimitInCharacters(Gateway):
    """The declared limit of 512 bytes is compared with the number of characters.

    Breaks "The longest key in UTF-8. A longer one is `Misuse`". Costs a caller that trusts the limit: the
    gateway behind this one refuses the key.
    """

    def is_too_long(self, key: str) -> bool:
        return len(key) > KEY_MAX


async def _refused_anywhere(open_: Open) -> None:
    await raises(Misuse, open_().put("a/b:c", Body.of(b"x")))


@bug(_refused_anywhere)
class RefusedAtTheStart(Gateway):
    """The declared pattern is compared with the beginning of a key only.

    Breaks "A key in which it matches is `Misuse`". Costs a caller the error: the name means a drive or a
    stream to the file system behind the gateway.
    """

    def is_refused(self, key: str) -> bool:
        return key[0] in ":\\"
