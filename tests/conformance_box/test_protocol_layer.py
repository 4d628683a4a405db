"""`offload conformance --select protocol`: the layer alone, its report, and walks that a seed repeats."""

from __future__ import annotations

import re
from typing import Any

from conformance_box.installed import Site, box, outcomes
from offload_conformance import ProtocolConformance, WalkConformance
from offload_conformance.clauses import clauses_of

STORE = """
    import asyncio
    from offload.store.memory import MemoryStore

    OBJECTS = {}

    def open_url(url):
        return Store(objects=OBJECTS, name=url.partition("://")[2])

    class Store(MemoryStore):
        __slots__ = ()
"""

TORN = """
        async def create(self, key, data):
            await super().create(key, data)
            self.objects[key] = data[:9]
            for _ in range(6):
                await asyncio.sleep(0)
            self.objects[key] = data
"""

OFFLOADER = """
    from offload import ObjectStoreOffloader
    from offload.store.memory import MemoryStore

    DECLARES, PLACES = {"kind": "offloader"}, {}

    def open_url(url):
        return Offloader(MemoryStore(objects=PLACES.setdefault(url, {}), name=url))

    class Offloader(ObjectStoreOffloader):
        def __init__(self, store):  # faults beneath it need a class that takes `env` and `options` too
            super().__init__(store)

        async def delete_offloaded(self, attempt):
            pass
"""


def test_the_layer_can_be_run_alone(site: Site) -> None:
    site.install("sound", STORE)

    ran = box("sound://here", "--select", "protocol", "--json")

    asked = [each for each in ran.document["clauses"] if each["layer"] == "protocol"]
    assert outcomes(ran.document) == {clause.id: "passed" for clause in clauses_of(ProtocolConformance)}
    assert (ran.code, len(asked)) == (0, ran.document["totals"]["passed"])
    assert sum(each["requests"] for each in asked) < 6000, "a distant server takes a hundred in a second"
    assert (site.objects("sound"), ran.document["left"]) == ({}, {})


def test_the_layer_catches_a_bug_that_no_other_layer_sees(site: Site) -> None:
    """The bug leaves half an object after a cancelled create, which no clause of the layer `store` tests."""
    site.install("broken", STORE + TORN)

    ran = box("broken://here", "--seed", "1", "--select", "protocol/cancelled*", "--json")

    assert ran.code == 1
    assert outcomes(ran.document) == {"protocol/cancelled_requests_lose_nothing": "failed"}
    assert site.objects("broken") == {}


def walk_in(document: dict[str, Any]) -> list[str]:
    """Return the steps that the failure shows."""
    [walk] = [each for each in document["clauses"] if each["layer"] == "protocol"]
    assert walk["outcome"] == "failed"
    return re.findall(r"state\.\w+\(.*\)", walk["message"])


def test_a_seed_repeats_the_same_walk(site: Site) -> None:
    site.install("broken", OFFLOADER)

    first, again, other = (
        walk_in(box("broken://here", "--seed", each, "--select", "protocol", "--json").document)
        for each in (1, 1, 10)
    )

    assert len(first) > 2
    assert first == again != other


def test_an_offloader_runs_the_walks(site: Site) -> None:
    site.install("sound", OFFLOADER.partition("        async def delete")[0] + "        pass\n")

    ran = box("sound://here", "--select", "protocol", "--json")

    assert outcomes(ran.document) == {clause.id: "passed" for clause in clauses_of(WalkConformance)}
