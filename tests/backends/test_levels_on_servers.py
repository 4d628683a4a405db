"""Tests of level listings: a page has a thousand names or more, however many objects are below each name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from servers import Running, servers
from servers.proxy import Proxy, proxied

from offload import Body, Plugins
from offload.opening.by_url import open_store

FOLDERS = [f"{number:02}/" for number in range(30)]
BELOW = {"s3": 40, "gcs": 40, "azure": 2}
"""The objects in a folder: in all more than the 1,000 of a page. Azure has pages of 5,000, so few will do."""


@pytest.mark.parametrize("running_server", servers(), indirect=True)
def test_thirty_streams_with_any_number_of_objects_are_found_by_one_request(running_server: Running) -> None:
    place, below = running_server.place(), BELOW[running_server.server.protocol]

    async def run(proxy: Proxy) -> tuple[list[str], int]:
        direct = open_store(place.url, plugins=Plugins.find(), storage_options=place.options)
        for folder in FOLDERS:
            await asyncio.gather(*(direct.put(f"{folder}{n}", Body.of(b"")) for n in range(below)))
        await direct.aclose()
        options: dict[str, Any] = {**proxy.options(place.options)}
        store = open_store(place.url, plugins=Plugins.find(), storage_options=options)
        begun = proxy.counts["requests"]
        try:
            return [name async for name in store.level("")], proxy.counts["requests"] - begun
        finally:
            await store.aclose()

    with proxied(running_server.endpoint) as proxy:
        names, requests = asyncio.run(run(proxy))

    assert names == FOLDERS
    assert requests == 1
