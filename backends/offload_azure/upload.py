"""An upload to Azure in blocks. Nothing of it is visible before its list of blocks is put.

All uploads of one key share the blocks that are in no list yet. So the name of a block begins with a UUID of
its upload, and no upload can include another's blocks. All names have one length, as the service demands.
The first list that is put drops every other block of the key. The list of a second upload of the key is then
refused (InvalidBlockList), and nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.storage.blob import BlobBlock

from offload.contracts.store import Upload
from offload.store.multipart import check_upload_part, part_numbers
from offload_azure.sums import md5_of

if TYPE_CHECKING:
    from offload_azure.store import AzureStore


class AzureUpload(Upload):
    """An upload that `AzureStore.start_upload` made."""

    def __init__(self, store: AzureStore, key: str, described: Mapping[str, Any]) -> None:
        """`described` has the settings of the object, for the request that makes it."""
        self._store, self._key, self._described = store, key, described
        self._uid = store.env.uuid().hex
        self._numbers: set[int] = set()

    async def put_part(self, number: int, data: bytes) -> None:
        """Send Put Block."""
        check_upload_part(self._key, number, data, self._store.capabilities)
        what = f"store part {number} of {self._key!r}"
        await _put_block(self._store, self._key, self._name(number), data, what=what)
        self._numbers.add(number)

    async def complete(self) -> None:
        """Send Put Block List. An upload without parts becomes an empty object."""
        blob = await self._store.blob(self._key)
        # The list has the blocks in the order of their numbers, whatever order they arrived in.
        names = [BlobBlock(self._name(number)) for number in part_numbers(self._numbers, self._key)]
        call = blob.commit_block_list(names, **self._store.encrypted, **self._described)
        await self._store.ask(call, f"store {self._key!r} of its parts", mutation=True)

    async def abort(self) -> None:
        """Do nothing: the service drops blocks that are in no list, after a week at the latest."""

    def _name(self, number: int) -> str:
        return f"{self._uid}{number:08}"


async def create_of_a_block(store: AzureStore, key: str, data: bytes) -> None:
    """Send Put Block, and Put Block List with `If-None-Match: *`. Drops blocks of unfinished uploads."""
    what = f"create {key!r}"
    name = store.env.uuid().hex + "0" * 8  # all names of a key's blocks must have one length
    await _put_block(store, key, name, data, what=what)
    blob = await store.blob(key)
    call = blob.commit_block_list(
        [BlobBlock(name)], match_condition=MatchConditions.IfMissing, **store.encrypted
    )
    await store.ask(call, what, key=key, mutation=True)


async def _put_block(store: AzureStore, key: str, name: str, data: bytes, *, what: str) -> None:
    md5 = await md5_of([data])
    blob = await store.blob(key)
    call = blob.stage_block(name, data, length=len(data), headers={"Content-MD5": md5}, **store.encrypted)
    await store.ask(call, what, mutation=True)
