"""An upload to Azure in blocks. Nothing is seen of it before its list of blocks is put.

All uploads of one key share the blocks that are not yet in a list. So a block's name begins with what
only this upload has, and no upload can take in another's; all names have one length, as the service
wants it. The first list that is put drops every other block of the key: the list of an upload that ran
beside it is then refused (InvalidBlockList), and nothing of it is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from azure.storage.blob import BlobBlock

from offload.store.parts import in_order
from offload.store.port import Upload
from offload_azure.sums import md5_of

if TYPE_CHECKING:
    from offload_azure.store import AzureStore


class AzureUpload(Upload):
    """Made by `AzureStore.start_upload`."""

    def __init__(self, store: AzureStore, key: str) -> None:
        self._store, self._key = store, key
        self._uid = uuid4().hex
        self._numbers: set[int] = set()

    async def put_part(self, number: int, data: bytes) -> None:
        """Put Block."""
        md5 = await md5_of(data)
        blob = await self._store.blob(self._key)
        call = blob.stage_block(
            self._name(number), data, length=len(data), headers={"Content-MD5": md5}, **self._store.encrypted
        )
        await self._store.ask(call, f"store part {number} of {self._key!r}", mutation=True)
        self._numbers.add(number)

    async def complete(self) -> None:
        """Put Block List. An upload without parts becomes an empty object."""
        blob = await self._store.blob(self._key)
        names = [BlobBlock(self._name(number)) for number in in_order(self._numbers, self._key)]
        call = blob.commit_block_list(names, **self._store.encrypted, **self._store.kept)
        await self._store.ask(call, f"store {self._key!r} of its parts", mutation=True)

    async def abort(self) -> None:
        """Nothing to do: the service drops blocks that no list names, after a week at the latest."""

    def _name(self, number: int) -> str:
        return f"{self._uid}{number:08}"
