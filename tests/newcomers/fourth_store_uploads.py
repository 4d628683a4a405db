"""Fourth set, stores: uploads in parts."""

from __future__ import annotations

from collections.abc import Mapping

from newcomers.fourth_sound import Client
from newcomers.registry import Open, bug
from newcomers.service import ServiceUpload
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Upload, check_key
from offload.ground.errors import Misuse


async def _small_parts(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(1, b"one")
    await upload.put_part(2, b"two")
    await upload.complete()
    assert await store.get("k") == b"onetwo"


@bug(_small_parts)
class PartsHaveALeastSize(Client):
    """The service takes no parts below 64 KiB but the last, and the client does not declare it.

    Breaks "A number is a limit that the store really has": `part_size_bytes_min` is 1. Costs an upload that
    fails at its end.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_metadata(metadata, self.capabilities)

        class Strict(ServiceUpload):
            async def complete(self) -> None:
                if any(size < 64 * 1024 for size in [*self.sizes.values()][:-1]):
                    raise Misuse(f"{self.key!r}: a part is too small")
                await super().complete()

        return Strict(self, key, await self.ask(self.service.begin, check_key(key)))
