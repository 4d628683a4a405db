"""A multipart upload to S3. Each part has a checksum of its own. Nothing is visible before it completes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from offload_cloud.bodies import WindowsBody

from offload.contracts.store import Upload
from offload.formats.checksums import crc32c
from offload.ground.errors import NotFound
from offload.store.multipart import check_upload_part, part_numbers
from offload_s3.proofs import has_no_content, is_completed, is_tagged

if TYPE_CHECKING:
    from offload_s3.store import S3Store


class S3Upload(Upload):
    """An upload that `S3Store.start_upload` made. `where` has the parameters of all its requests."""

    def __init__(self, store: S3Store, key: str, where: dict[str, Any], *, keyed: dict[str, Any]) -> None:
        self._store, self._key, self._where, self._keyed = store, key, where, keyed
        self._parts: dict[int, dict[str, Any]] = {}

    async def put_part(self, number: int, data: bytes) -> None:
        """Send UploadPart."""
        check_upload_part(self._key, number, data, self._store.capabilities)
        checksum = base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()
        client = await self._store.data_client()
        call = client.upload_part(
            PartNumber=number, Body=WindowsBody([data]), ChecksumCRC32C=checksum, **self._where, **self._keyed
        )
        what = f"store part {number} of {self._key!r}"
        reply = await self._store.ask(call, what, proof=is_tagged, key=self._key, mutation=True)
        self._parts[number] = {"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32C": checksum}

    async def complete(self) -> None:
        """Send CompleteMultipartUpload. An upload without parts becomes an empty object."""
        client = await self._store.client()
        if not self._parts:
            await self.put_part(1, b"")  # an upload without a part cannot be completed
        parts = [self._parts[number] for number in part_numbers(self._parts, self._key)]
        call = client.complete_multipart_upload(
            MultipartUpload={"Parts": parts}, **self._where, **self._keyed
        )
        what = f"complete {self._key!r}"
        await self._store.ask(call, what, proof=is_completed, key=self._key, mutation=True)

    async def abort(self) -> None:
        """Send AbortMultipartUpload. An upload that is gone already counts as aborted."""
        client = await self._store.client()
        try:
            call = client.abort_multipart_upload(**self._where)
            what = f"abort {self._key!r}"
            await self._store.ask(call, what, proof=has_no_content, key=self._key, mutation=True)
        except NotFound:
            pass  # an earlier try ended it, and its reply was lost
