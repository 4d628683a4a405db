"""Tests that no commit is lost or doubled on a network and a server that fail in every way we know.

In each round a writer offloads one ledger through a proxy that breaks requests at random, creates above all.
Over TLS, the proxy also cuts handshakes and records.
Sometimes the writer is new, and sometimes two rivals write at once. The result is read past the proxy and
judged. `OFFLOAD_SEED` repeats the faults of a run. `OFFLOAD_CAMPAIGN=1` runs 1,000 rounds per server.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from campaign import CAMPAIGN, keeping
from faults.rig import (
    SEED,
    Audit,
    Writer,
    assert_sound,
    bare_store,
    guarded,
    read_all,
)
from protocol_world import CHUNK_RECORDS, Ledger, source
from servers import Place, Running, servers_at_risk
from servers.proxy import Fault, Plan, Proxy, Rule, proxied
from servers.proxy_tls import Tls

from offload import ObjectStoreOffloader, StreamWriter
from offload.contracts.store import ObjectStore
from offload.ground.errors import Conflict, Denied, Fenced, NotOffloaded, OutcomeUnknown, TryAgain

ROUNDS = 1000 if CAMPAIGN else 6
TLS_ROUNDS = 500 if CAMPAIGN else 4
ROUNDS_PER_STREAM = 20 if CAMPAIGN else 6
MORE_MAX = 10
"""The limit on extra rounds, as a multiple of the planned ones, if too little happened by chance."""

READS_MAX = 20
PLACES = 50 if CAMPAIGN else 2
TRIES_MAX = 30

DOCUMENTED = (TryAgain, OutcomeUnknown, Conflict, Fenced)
"""The errors that a caller must expect if the store fails. Any other error is a bug."""

CHANCES = {
    Fault.CUT_AFTER: 0.03,
    Fault.ERROR_AFTER: 0.03,
    Fault.REFUSE: 0.03,
    Fault.PAGE: 0.02,
    Fault.EMPTY: 0.02,
    Fault.RESET: 0.03,
    Fault.LATE: 0.02,
    Fault.TRICKLE: 0.02,
    Fault.TRUNCATE: 0.03,
    Fault.HANG_UP: 0.03,
}
TLS_CHANCES = {**CHANCES, Fault.CUT_RECORD: 0.03}
HANDSHAKE_CUT_CHANCE = 0.05
CREATE_CHANCES = {
    Fault.CUT_AFTER: 0.15,
    Fault.ERROR_AFTER: 0.15,
    Fault.LATE: 0.10,
    Fault.RESET: 0.10,
    Fault.REFUSE: 0.10,
    Fault.PAGE: 0.05,
}


@dataclass
class Campaign:
    """Rounds on one bucket, judged past the proxy by `direct`."""

    place: Place
    proxy: Proxy
    direct: ObjectStore
    name: str
    rounds: int = 0
    offloaded: int = 0
    roots: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    async def run(self, rounds: int) -> None:
        """Run so many rounds on new streams, and more until enough has happened."""
        while self.rounds < rounds or not self.is_enough(rounds):
            assert self.rounds < MORE_MAX * rounds, f"too little happens: {self}, {dict(self.proxy.counts)}"
            stream = f"orders-{self.rounds // ROUNDS_PER_STREAM}"
            clients = [bare_store(self.place.url, self.options) for _ in range(2)]
            try:
                await Rounds(self, stream, clients).run(ROUNDS_PER_STREAM)
            except BaseException:
                print(f"round {self.rounds}, on {stream}; the last requests:", *self.proxy.log, sep="\n")
                raise
            finally:
                for client in clients:
                    await client.aclose()
        await assert_sound(self.direct, self.place)

    def is_enough(self, rounds: int) -> bool:
        """Return True if every fault happened, and an average number of ledgers and roots was committed."""
        went_right = self.offloaded > rounds / 2 and self.roots > 2 * rounds
        expected = [fault.name.lower() for fault in self.chances]
        if self.proxy.tls is not None:
            expected.append("handshake_cut")
        return went_right and all(self.proxy.counts[name] for name in expected)

    @property
    def chances(self) -> dict[Fault, float]:
        """Return the chances of faults, with those of records if there are records."""
        return CHANCES if self.proxy.tls is None else TLS_CHANCES

    @property
    def options(self) -> dict[str, str]:
        """Return the options that lead through the proxy."""
        return self.proxy.options(self.place.options)

    def chance(self, what: str) -> random.Random:
        """Return random values that the seed and this name repeat."""
        return random.Random(f"{SEED} {self.name} {what}")

    def break_requests(self, what: str) -> None:
        """Draw faults from the seed and this name from now on."""
        self.proxy.plan = Plan(
            chances=self.chances,
            create_chances=CREATE_CHANCES,
            handshake_cut_chance=HANDSHAKE_CUT_CHANCE,
            seed=f"{SEED} {self.name} {what}",
            forget=[self.place.name],
            late_seconds=0.05,
            retry_after_seconds_max=0,
        )

    def mend(self) -> None:
        """End the faults, and let late requests land."""
        self.proxy.plan = Plan()
        self.proxy.settle()


class Rounds:
    """The rounds on one stream."""

    def __init__(self, campaign: Campaign, stream: str, clients: Sequence[ObjectStore]) -> None:
        self.campaign, self.stream, self.clients = campaign, stream, clients
        self.audit = Audit(campaign.direct, stream)
        self.written = 0
        """The number of writers so far."""

        self.holder = self._fresh()

    async def run(self, rounds: int) -> None:
        """Run so many rounds with faults, and a last one without."""
        for number in range(rounds):
            self.campaign.break_requests(f"{self.stream}/{number}")
            await self._round(self.campaign.chance(f"{self.stream}/{number}"))
            self.campaign.rounds += 1
        await self._read_through_faults()
        self.campaign.mend()
        offloaded, self.holder = self.campaign.offloaded, self._fresh()
        await self._round(self.campaign.chance(f"{self.stream}/last"))
        assert self.campaign.offloaded > offloaded
        if CAMPAIGN:
            await self.audit.look_again()
        self.campaign.roots += self.audit.newest

    async def _round(self, chance: random.Random) -> None:
        """Run one writer, or two at once, each with one ledger. Then read the bucket and judge."""
        what = chance.choices(["go on", "fresh", "rivals"], [5, 2, 3])[0]
        if what == "fresh":
            self.holder = self._fresh()
        writers = [self.holder] + [self._fresh()] * (what == "rivals")
        sizes = [chance.randint(1, 3) for _ in writers]
        forget = chance.random() < 0.7

        told = await asyncio.gather(*map(self._offload, writers, sizes))

        self.campaign.proxy.settle()
        await self.audit.look()
        for writer, next_offset in zip(writers, told, strict=True):
            self.audit.hear(writer.name, writer.commits_told())
            assert next_offset is None or next_offset <= self.audit.next_offset, f"{writer.name} was misled"
            if next_offset is None and forget:
                writer.writer = None  # it claims again; otherwise it continues with its manifest
        self.holder = writers[-1]

    async def _offload(self, writer: Writer, chunks: int) -> int | None:
        """Offload a ledger. Return the offset behind it, or None after an error."""
        try:
            holder = writer.writer or await writer.claim(self.stream)
            first = holder.manifest.next_offset
            await holder.offload([Ledger(first, first + chunks * CHUNK_RECORDS)])
        except DOCUMENTED as error:
            self.campaign.errors[type(error).__name__] += 1
            if isinstance(error, Fenced):
                writer.writer = None
            return None
        self.campaign.offloaded += 1
        return first + chunks * CHUNK_RECORDS

    async def _read_through_faults(self) -> None:
        """Check that a reader gets the right bytes, or `TryAgain`, and soon the bytes.

        If no writer has committed a root, the reader gets `NotOffloaded`.
        """
        expected = source(0, self.audit.next_offset)
        for _ in range(READS_MAX):
            try:
                read = await read_all(guarded(self.clients[0]), self.stream)
            except TryAgain:
                continue
            except NotOffloaded:
                assert not self.audit.newest, "a stream with a root was called absent"
                return
            assert read == expected
            return
        raise AssertionError(f"could not be read in {READS_MAX} tries")

    def _fresh(self) -> Writer:
        self.written += 1
        name = f"{self.stream}/writer-{self.written}"
        client = self.clients[self.written % len(self.clients)]
        return Writer(name, client, chance=self.campaign.chance(name))


@pytest.mark.parametrize("tls", ["plain", "TLS"], indirect=True)
@pytest.mark.parametrize("running_server", servers_at_risk(), indirect=True)
def test_faults_neither_lose_nor_double_a_commit(running_server: Running, tls: Tls | None) -> None:
    print(f"OFFLOAD_SEED={SEED}")

    async def run(proxy: Proxy) -> Campaign:
        place = running_server.place()
        direct = bare_store(place.url, place.options)
        campaign = Campaign(place=place, proxy=proxy, direct=direct, name=running_server.server.name)
        try:
            await campaign.run(ROUNDS if tls is None else TLS_ROUNDS)
        finally:
            await direct.aclose()
        return campaign

    with proxied(running_server.endpoint, tls=tls) as proxy:
        campaign = asyncio.run(run(proxy))

    print(f"{campaign.rounds} rounds, {campaign.offloaded} ledgers, {campaign.roots} roots")
    print(f"errors: {dict(campaign.errors)}; the proxy: {dict(proxy.counts)}")


@pytest.mark.parametrize(
    "tls", keeping({"plain"}, ("plain", "TLS"), "a new place over TLS: plain in make test"), indirect=True
)
@pytest.mark.parametrize("running_server", servers_at_risk(), indirect=True)
def test_a_new_place_becomes_a_tier_despite_faults(running_server: Running, tls: Tls | None) -> None:
    """The probe, the anchors and the first claim succeed if a new writer tries again after each error."""
    print(f"OFFLOAD_SEED={SEED}")
    name = f"{running_server.server.name} new"

    async def run(proxy: Proxy) -> None:
        for number in range(PLACES):
            place = running_server.place()
            direct = bare_store(place.url, place.options)
            campaign = Campaign(place=place, proxy=proxy, direct=direct, name=name)
            client = bare_store(place.url, campaign.options)
            campaign.break_requests(f"place {number}")
            try:
                await claim_until_it_holds(client)
                campaign.mend()
                await assert_sound(direct, place)
            except BaseException:
                print(f"place {number}; the last requests:", *proxy.log, sep="\n")
                raise
            finally:
                await client.aclose()
                await direct.aclose()

    async def claim_until_it_holds(client: ObjectStore) -> None:
        for _ in range(TRIES_MAX):
            try:
                await StreamWriter.claim(ObjectStoreOffloader(guarded(client)), "orders")
            except DOCUMENTED:
                continue
            return
        raise AssertionError(f"no tier after {TRIES_MAX} tries")

    with proxied(running_server.endpoint, tls=tls) as proxy:
        asyncio.run(run(proxy))
        print(f"the proxy: {dict(proxy.counts)}")


@pytest.mark.parametrize("running_server", servers_at_risk(), indirect=True)
def test_a_server_that_never_hears_the_precondition_is_refused(running_server: Running) -> None:
    """If the request's signature covers the precondition, the server itself refuses the request."""
    place = running_server.place()

    async def run(proxy: Proxy) -> None:
        client = bare_store(place.url, proxy.options(place.options))
        try:
            with pytest.raises(Denied):
                await StreamWriter.claim(ObjectStoreOffloader(guarded(client)), "orders")
        finally:
            await client.aclose()

    with proxied(running_server.endpoint, Plan(rules=[Rule(Fault.IGNORE_PRECONDITION)])) as proxy:
        asyncio.run(run(proxy))

    assert proxy.counts["ignore_precondition"] == proxy.counts["creates"] > 0
    assert not place.keys()
