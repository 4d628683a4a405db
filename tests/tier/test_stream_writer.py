"""How a writer gathers uploads into commits."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from offload_conformance.ledgers import ledger_of

from offload import ObjectStoreOffloader, StreamWriter, TierOptions
from offload.env import Env
from offload.events import Event, ManifestCommitted
from offload.store.memory import MemoryStore


def test_a_commit_names_so_many_fragments_and_no_more() -> None:
    """Every chunk is a fragment here, so a ledger of a hundred chunks names a hundred at once."""
    sizes: list[int] = []
    before = 0

    def hear(event: Event) -> None:
        nonlocal before
        if isinstance(event, ManifestCommitted) and event.change == "append":
            sizes.append(event.manifest.fragments - before)
            before = event.manifest.fragments

    async def main() -> int:
        stands_still = replace(Env(), monotonic=lambda: 0.0)
        offloader = ObjectStoreOffloader(
            MemoryStore(), options=TierOptions(fragment_size_bytes=1), emit=hear, env=stands_still
        )
        writer = await StreamWriter.claim(offloader, "orders", env=stands_still)
        at, ledgers = 0, []
        for _ in range(6):
            ledgers.append(ledger_of(100, first_offset=at))
            at = ledgers[-1].next_offset
        await writer.offload(ledgers)
        return writer.manifest.fragments

    total = asyncio.run(main())

    assert total == sum(sizes) == 600
    assert max(sizes) <= 256
    assert sizes.count(200) >= 2, f"uploads that are there go together: {sizes}"
