"""Tests of a portal that answers single requests with status 200 in the server's place, on real servers.

tests/cloud/test_foreign_replies.py shows that no verb believes such a reply. These tests show that each verb
is tried again, and what is stored afterwards.
"""

from __future__ import annotations

import asyncio

import pytest
from faults.rig import bare_store, guarded
from servers import Running, servers_of
from servers.proxy import Fault, Plan, Rule, proxied

from offload import Body, ObjectStore, Span, Suffix

EVERY_SERVER = [*servers_of("s3"), *servers_of("gcs"), *servers_of("azure")]


async def use(store: ObjectStore, plan: Plan, fault: Fault) -> None:
    """Call every verb, each with a fault at its first request, and compare what it does."""

    def again() -> None:
        plan.rules = [Rule(fault, nth=1)]

    again()
    await store.put("a/1", Body.of(b"0123456789"))
    for span, expected in ((None, b"0123456789"), (Span(2, 3), b"234"), (Suffix(2), b"89")):
        again()
        assert bytes(await store.get("a/1", span)) == expected
    again()
    assert [row.key async for row in store.list("")] == ["a/1"]
    again()
    assert [name async for name in store.level("")] == ["a/"]
    again()
    assert await store.metadata_of("a/1") in ({}, None)
    again()
    await store.stored_crc32c("a/1")
    again()
    await store.retained("a/1")
    if store.capabilities.multipart:
        again()
        upload = await store.start_upload("a/2")
        again()
        await upload.put_part(1, b"part")
        again()
        await store.unfinished_uploads("a/")
        plan.rules = []
        await upload.complete()  # never repeated: the upload may be gone because it was completed
        again()
        await (await store.start_upload("a/3")).abort()
    again()
    await store.delete(["a/1", "a/2"])
    plan.rules = []
    assert [row.key async for row in store.list("")] == []


@pytest.mark.parametrize("fault", [Fault.PAGE, Fault.EMPTY], ids=["page", "empty"])
@pytest.mark.parametrize("running_server", EVERY_SERVER, indirect=True)
def test_every_verb_is_tried_again_after_a_page(running_server: Running, fault: Fault) -> None:
    place, plan = running_server.place(), Plan()

    async def main(options: dict[str, str]) -> None:
        store = guarded(bare_store(place.url, options))
        try:
            await use(store, plan, fault)
        finally:
            await store.aclose()

    with proxied(running_server.endpoint, plan) as proxy:
        asyncio.run(main(proxy.options(place.options)))

        assert proxy.counts[fault.name.lower()] >= 9
