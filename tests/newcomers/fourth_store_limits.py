"""Fourth set, stores: limits, creates and deletes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from newcomers.fourth_sound import CREATE_MAX, Gateway, same
from newcomers.proofs import fill, names
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.store import Body, check_key
from offload.ground.errors import Misuse


async def _create_of_the_greatest_size(open_: Open) -> None:
    store = open_()
    await store.create("k", bytes(CREATE_MAX))
    assert len(await store.get("k")) == CREATE_MAX


@bug(_create_of_the_greatest_size)
class LimitIsExclusive(Gateway):
    """The declared limit of `create` is compared with "less than".

    Breaks "The largest object that `create` accepts, at least `CREATE_SIZE_BYTES_LEAST`". Costs a root of
    exactly that size.
    """

    async def create(self, key: str, data: bytes) -> None:
        if len(data) >= CREATE_MAX:
            raise Misuse(f"{key!r} is too large")
        await super().create(key, data)


async def _absent_ones_do_not_matter(open_: Open) -> None:
    store = open_()
    await fill(store, ["a", "b", "c"])
    await store.delete(["a", "absent", "b", "c"])
    assert await names(store) == []


@bug(_absent_ones_do_not_matter)
class BatchEndsAtTheFirstAbsent(SharedMemory):
    """The server works through a batch until a key is absent. The client ignores that answer, as of one key.

    Breaks "Deleting an absent object succeeds" and "Delete these objects". Costs the keys behind the absent
    one: they stay, and the call succeeds.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        present = [key for key in keys if key in self.objects]
        ends = next((at for at, key in enumerate(keys) if key not in self.objects), len(keys))
        await super().delete([key for key in keys[:ends] if key in present])


@bug(same(lambda store: _put_and_described(store), {"author": "one"}))
class SmallPutsAreCreates(SharedMemory):
    """Objects below 4 KiB go into a table of small objects, which has no column for labels.

    Breaks "Names and values that the store keeps with the object". Costs the labels of every small object.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        return found if len(self.objects[key]) >= 4096 else {}


async def _put_and_described(store: SharedMemory) -> Mapping[str, str]:
    await store.put("k", Body.of(b"x", metadata={"author": "one"}))
    return await store.metadata_of("k")
