"""The cost of a month of `offload run`: the data that it writes and keeps, and the price of that.

Everything is computed from the growth of the streams (`service.preview`) and their rules:

    copies      one for each look at the source, `max_lag` / 5, or one for each chunk if chunks are rarer. If
                nothing is held back, one for each second look, unless a whole fragment comes within a look
    fragments   for each copy its bytes / 64 MiB, rounded up; and one more for each ledger that begins
    commits     one for each copy, and one more for each copy in which a ledger begins
    requests    for each fragment 1 put, for each commit 1 create and 1 listing
    storage     what is stored a month from now: what there is, what is missing, and a month of growth, in the
                ratio of what is stored now, and at most what retention leaves; and the old roots
    old roots   each commit leaves one. The first sweep after it notes it, and the next one deletes it

The leading process does this. Readers, upkeep, processes that stand by, and bytes that leave the provider are
not included. Invariant: `tests/service/test_costs.py` compares the requests with those that a follower sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from offload.follow.rules import FollowRules
from offload.formats.anchor import TierAnchor
from offload.ground.urls import scheme_of
from offload.model.entry import ENTRY_DTYPE
from offload.model.prices import GIB, Price, price_of
from offload.service.config import PricesConfig, RunConfig
from offload.service.preview import Growth, StreamPreview

__all__ = [
    "MonthlyCost",
    "MonthlyWork",
    "cost_of",
    "root_size_bytes",
    "work_as_json",
    "work_of",
    "writes_per_second",
]


MONTH_SECONDS: Final = 30 * 86_400

ROOT_LIFE_SWEEPS: Final = 1.5
"""How long an old root is stored, in intervals of the sweep: half of one until it is noted, and one more."""

OWN_PRICES: Final = Price(
    schemes=(), hosts=(), provider="the configuration", region="", write_per_1000=0, list_per_1000=0,
    read_per_1000=0, storage_per_gib_month=0, list_keys_max=1000, known="",
    source="[prices]; a price that it leaves out is 0",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyWork:
    """The data that is written in a month, and the data that is stored at its end."""

    fragments: float = 0.0
    """Objects with data. Each is 1 put."""

    commits: float = 0.0
    """Each is 1 create and 1 listing."""

    data_stored_bytes: float = 0.0
    """Fragments, as they are stored."""

    roots_stored_bytes: float = 0.0
    """Old roots that wait for a sweep."""

    def as_json(self) -> dict[str, Any]:
        """Return the counts for programs."""
        return {"fragments_per_month": round(self.fragments), "commits_per_month": round(self.commits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyCost:
    """The cost of a month, and its parts."""

    price: Price
    work: MonthlyWork
    unknown: int = 0
    """The streams that could not be read. Their costs are missing here."""

    known: int = 0
    """The streams whose costs are here."""

    @property
    def is_unknown(self) -> bool:
        """Whether there are streams, and the cost of none of them is known. Then no number says anything."""
        return self.unknown > 0 and not self.known

    @property
    def requests(self) -> float:
        """The cost of the requests."""
        commits = self.work.commits
        return self.price.of(writes=self.work.fragments + commits, lists=commits, reads=0)

    @property
    def stored_gib(self) -> float:
        """The data that is stored a month from now."""
        return (self.work.data_stored_bytes + self.work.roots_stored_bytes) / GIB

    @property
    def storage(self) -> float:
        """The cost of a month of what is stored a month from now."""
        return self.price.of(writes=0, lists=0, reads=0, gib_months=self.stored_gib)


def work_of(seen: StreamPreview, config: RunConfig) -> MonthlyWork:
    """Return the work of a month for one stream, if it grows as it did."""
    rules, asks_broker = config.of(seen.stream).rules, config.broker is not None
    per_second = writes_per_second(seen.growth, rules, asks_broker=asks_broker)
    fragments, commits = (MONTH_SECONDS * each for each in per_second)
    return MonthlyWork(
        fragments=fragments,
        commits=commits,
        data_stored_bytes=_data_stored_bytes(seen, config),
        roots_stored_bytes=_roots_stored_bytes(fragments, commits, config.upkeep.sweep_seconds),
    )


def work_as_json(seen: StreamPreview, config: RunConfig) -> dict[str, Any]:
    """Return the work of a month for programs. A number that is not known is None."""
    numbers = work_of(seen, config).as_json()
    return numbers if seen.is_known else dict.fromkeys(numbers)


def writes_per_second(growth: Growth, rules: FollowRules, *, asks_broker: bool) -> tuple[float, float]:
    """Return the fragments and the commits of one stream in a second."""
    if not growth.chunks_per_second:
        return 0.0, 0.0
    looks_of_copy = 1
    # A look that copies leaves what came just before it, if that is held back. So the next look copies too.
    if asks_broker or not rules.hold_back_seconds:
        is_whole = growth.bytes_per_second * rules.look_seconds >= rules.fragment_size_bytes
        looks_of_copy = 1 if is_whole else 2
    copies = min(growth.chunks_per_second, 1 / (looks_of_copy * rules.look_seconds))
    fragments_of_copy = max(1, math.ceil(growth.bytes_per_second / copies / rules.fragment_size_bytes))
    fragments = copies * fragments_of_copy + growth.ledgers_per_second
    return fragments, copies + min(copies, growth.ledgers_per_second)


def root_size_bytes(fragments: float) -> float:
    """Return the mean size of the roots of a stream of so many fragments. Their heads are not counted."""
    # The entries of a root grow to this number, and then move into a group. So it has half of them.
    return ENTRY_DTYPE.itemsize * min(fragments, TierAnchor().branching_factor) / 2


def cost_of(config: RunConfig, streams: Iterable[StreamPreview]) -> MonthlyCost | None:
    """Return the cost of a month. None if nothing has a price: a folder, or a server of one's own."""
    price = _price(config)
    if price is None:
        return None
    seen = list(streams)
    known = [each for each in seen if each.is_known]
    return MonthlyCost(
        price=price,
        work=_sum([work_of(each, config) for each in known]),
        unknown=len(seen) - len(known),
        known=len(known),
    )


def _price(config: RunConfig) -> Price | None:
    """Return the prices of the configuration, and for what it leaves out those of the list."""
    endpoint = config.options.get("endpoint_url")
    listed = price_of(scheme_of(config.tier), None if endpoint is None else str(endpoint))
    own = {name: value for name, value in config.prices.model_dump().items() if value is not None}
    if not own:
        return listed
    if listed is None or len(own) == len(PricesConfig.model_fields):
        return replace(OWN_PRICES, **own)
    return replace(listed, provider=f"{OWN_PRICES.provider} and {listed.provider}", **own)


def _sum(works: Sequence[MonthlyWork]) -> MonthlyWork:
    names = MonthlyWork.__dataclass_fields__
    return MonthlyWork(**{name: sum(getattr(each, name) for each in works) for name in names})


def _data_stored_bytes(seen: StreamPreview, config: RunConfig) -> float:
    rules = config.of(seen.stream)
    ratio = seen.stored_size_bytes / seen.data_size_bytes if seen.data_size_bytes else 1.0
    data = seen.data_size_bytes + seen.lag_size_bytes + MONTH_SECONDS * seen.growth.bytes_per_second
    if rules.age_seconds_max is not None and rules.age_seconds_max < MONTH_SECONDS:
        data = min(data, rules.age_seconds_max * seen.growth.bytes_per_second)
    if rules.size_bytes_max is not None:
        data = min(data, rules.size_bytes_max)
    return ratio * data


def _roots_stored_bytes(fragments: float, commits: float, sweep_seconds: float | None) -> float:
    lives_seconds = MONTH_SECONDS if sweep_seconds is None else ROOT_LIFE_SWEEPS * sweep_seconds
    return commits * min(1.0, lives_seconds / MONTH_SECONDS) * root_size_bytes(fragments)
