"""Correct backends with unusual behaviour pass `offload conformance` with default options."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from campaign import CAMPAIGN, campaign, keeping
from conformance_box.installed import Site, box
from contract.unusual_offloaders import ODD_OFFLOADERS
from contract.unusual_stores import ODD_STORES

STORES = """
    import itertools
    from contract.unusual_stores import ODD_STORES

    OBJECTS, CLIENTS = {}, itertools.count()

    def open_url(url):
        return ODD_STORES[url.partition("://")[2]](OBJECTS, next(CLIENTS))
"""

OFFLOADERS = """
    from contract.unusual_offloaders import ODD_OFFLOADERS

    DECLARES = {"kind": "offloader"}

    def open_url(url):
        return next(made for name, made in ODD_OFFLOADERS.items() if f"/{name}/" in f"{url}/")(url)
"""

REFUSING_OFFLOADER = """
    import itertools
    from contract.unusual_stores import RefusingOffloader
    from offload.store.memory import MemoryStore
    from offload.store.prefix import PrefixStore

    OBJECTS, CLIENTS = {}, itertools.count()
    DECLARES = {"kind": "offloader"}

    def open_url(url):
        store = PrefixStore(MemoryStore(objects=OBJECTS), url.partition("://")[2])
        return RefusingOffloader(store, seed=next(CLIENTS))
"""

ASKED: Final = {
    "throttles": "store/create*",
    "sends-losers-away": "store/create*",
    "short-keys": "store/keys*",
    "shorter-keys": "contract/streams_do_not_mix",
    "own-folders": "store/*level*",
    "slow-to-open": "store/puts_*",
}
"""The clauses that `make test` runs on some stores. The campaign runs all: some 5 seconds of CPU for each."""

SEED: Final = "2"
"""With it, `streams_do_not_mix` draws long names."""

CLIENTS_MAX: Final = 8

REFUSING: Final = ("throttles", "sends-losers-away")


@pytest.mark.parametrize("name", keeping(ASKED, ODD_STORES, "odd stores, with all clauses"))
def test_an_odd_store_fails_no_clause(name: str, site: Site) -> None:
    site.install("odd", STORES)

    ran = box(
        f"odd://{name}",
        "--json",
        "--seed",
        SEED,
        *([] if CAMPAIGN or name not in ASKED else ["--select", ASKED[name]]),
    )

    clauses = ran.document["clauses"]
    assert [each for each in clauses if each["outcome"] == "failed"] == []
    assert ran.code == 0
    assert any(each["retries"] for each in clauses if each["layer"] == "store") == (name in REFUSING)
    assert site.objects("odd") == {}


ASKED_OF_OFFLOADERS: Final = {
    "TwoChunks": "contract/copies*",
    "SevenByVersion": "contract/*linear*",
}


@pytest.mark.parametrize("name", keeping(ASKED_OF_OFFLOADERS, ODD_OFFLOADERS, "odd offloaders, all clauses"))
def test_an_odd_offloader_fails_no_clause(name: str, site: Site, tmp_path: Path) -> None:
    site.install("odd", OFFLOADERS)
    asked = [] if CAMPAIGN or name not in ASKED_OF_OFFLOADERS else ["--select", ASKED_OF_OFFLOADERS[name]]

    ran = box(f"odd://{tmp_path}/{name}", "--json", *asked)

    assert [each for each in ran.document["clauses"] if each["outcome"] == "failed"] == []
    assert ran.code == 0


@campaign("the number of clients of a whole command; make test has the lending of each client")
def test_tests_share_their_clients(site: Site) -> None:
    """A store whose clients need half a second to begin is tested in little more time than another."""
    site.install("odd", STORES)

    ran = box("odd://slow-to-open", "--select", "store/listing_*", "--select", "contract/claims*")

    import odd_code

    assert ran.code == 0, ran.stdout
    assert next(odd_code.CLIENTS) <= CLIENTS_MAX


def test_an_offloader_that_refuses_for_now_fails_no_clause(site: Site) -> None:
    site.install("odd", REFUSING_OFFLOADER)

    ran = box("odd://tier", *([] if CAMPAIGN else ["--select", "contract/claims*"]))

    assert ran.code == 0, ran.stdout
    assert any(line.startswith("contract") and not line.endswith("\t0") for line in ran.lines)
