"""The report of `operations.py`: rows of requests, their cost at list prices, and the cost of a month."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass

from machine import processor
from tally import Tally

from offload.model.prices import GIB, PRICES, Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation, measured."""

    operation: str
    fragments: int
    tally: Tally
    seconds: float
    cpu_seconds: float
    peak_mib: float | None = None

    def cost(self, price: Price, times: float = 1.0) -> float:
        """Return the cost in dollars of so many of these operations."""
        lists = self.tally.lists if price.list_keys_max == 1000 else self.tally.azure_lists
        return price.of(writes=self.tally.writes * times, lists=lists * times, reads=self.tally.reads * times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of a month of 30 days."""

    streams: int = 100
    bytes_per_second: int = 10 * 2**20
    """The rate of each stream."""
    fragment_bytes: int = 2**26
    days_kept: int = 7
    syncs_per_hour: int = 6
    """The syncs of each stream. Each claims the stream, and commits after every 8 fragments, which is about a
    broker's segment."""
    trims_per_hour: int = 1
    sweeps_per_hour: int = 1
    verifies_per_day: int = 1
    """The verifies at the level of the manifest."""
    reads: float = 1.0
    """The reads of each byte, by readers that open the tier again for every `READ_BYTES`."""

    @property
    def bytes_per_month(self) -> int:
        """The bytes that all streams produce in a month."""
        return self.streams * self.bytes_per_second * 30 * 86_400

    @property
    def fragments_per_month(self) -> float:
        """The fragments that all streams produce in a month."""
        return self.bytes_per_month / self.fragment_bytes

    @property
    def fragments_kept(self) -> float:
        """The fragments that all streams keep."""
        return self.fragments_per_month * self.days_kept / 30


def month(rows: list[Row], price: Price, work: Workload) -> dict[str, float]:
    """Return the dollars by purpose. A sweep and a verify count as equally expensive for each object."""

    def of(operation: str, times: float, *, per_fragment: bool = False) -> float:
        alike = [row for row in rows if row.operation.startswith(operation)]
        near = min(alike, key=lambda row: abs(row.fragments - work.fragments_kept / work.streams))
        return near.cost(price, times / near.fragments if per_fragment else times)

    hours = 30 * 24
    read = next(row for row in rows if "and read" in row.operation)
    read_gib = int(read.operation.split()[-2]) / 1024
    stored_gib = work.fragments_kept * work.fragment_bytes / GIB
    return {
        "store what is kept": price.of(writes=0, lists=0, reads=0, gib_months=stored_gib),
        "copy": of("copy 8 fragments", work.fragments_per_month / 8),
        "claim": of("claim", work.streams * work.syncs_per_hour * hours),
        "trim": of("trim 1,000", work.streams * work.trims_per_hour * hours),
        "sweep": of(
            "sweep, an hour later", work.fragments_kept * work.sweeps_per_hour * hours, per_fragment=True
        ),
        "verify --level manifest": of(
            "verify --level manifest", work.fragments_kept * work.verifies_per_day * 30, per_fragment=True
        ),
        "read once": read.cost(price, work.reads * work.bytes_per_month / GIB / read_gib),
    }


def print_report(rows: list[Row], *, as_json: bool) -> None:
    """Print the tables, or one JSON object."""
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "processor": processor(),
    }
    work = Workload()
    is_whole = len({row.operation.partition(",")[0] for row in rows} & {"claim", "open", "sweep"}) == 3
    months = {price.provider: month(rows, price, work) for price in PRICES} if is_whole else {}
    if as_json:
        print(
            json.dumps(
                {
                    "machine": machine,
                    "prices": [asdict(price) for price in PRICES],
                    "rows": [
                        asdict(row) | {"dollars": {price.provider: row.cost(price) for price in PRICES}}
                        for row in rows
                    ],
                    "workload": asdict(work),
                    "month": months,
                },
                indent=2,
            )
        )
        return
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    _print_requests(rows)
    _print_costs(rows)
    if months:
        print(f"\ndollars in 30 days: {work}")
        _table(["for", *(price.provider for price in PRICES)], _month_rows(months))
    print("\nprices, to be checked on the provider's page:")
    for price in PRICES:
        print(f"{price.provider}, {price.region}: {price.known}; {price.source}")


def _print_requests(rows: list[Row]) -> None:
    heads = ["operation", "fragments", "PUT", "GET", "LIST", "LIST, Azure", "DELETE", "keys deleted"]
    heads += ["bytes up, no fragments", "bytes down", "seconds", "CPU s", "peak MiB"]
    lines = []
    for row in rows:
        tally = row.tally
        counts = (tally.writes, tally.reads, tally.lists, tally.azure_lists, tally.deletes, tally.deleted)
        bytes_moved = tally.other_bytes_up, tally.bytes_down
        peak = "" if row.peak_mib is None else f"{row.peak_mib:.1f}"
        numbers = [f"{number:,}" for number in (row.fragments, *counts, *bytes_moved)]
        lines.append([row.operation, *numbers, f"{row.seconds:.3f}", f"{row.cpu_seconds:.3f}", peak])
    print()
    _table(heads, lines)


def _print_costs(rows: list[Row]) -> None:
    print("\ndollars for a million of each operation, and for one of those that go over all objects:")
    lines = []
    for row in rows:
        times = 1 if row.peak_mib is not None or "nothing" in row.operation else 10**6
        costs = [f"{row.cost(price, times):,.4f}" for price in PRICES]
        lines.append([row.operation, f"{row.fragments:,}", f"{times:,}", *costs])
    _table(["operation", "fragments", "times", *(price.provider for price in PRICES)], lines)


def _month_rows(months: dict[str, dict[str, float]]) -> list[list[str]]:
    purposes = list(next(iter(months.values())))
    lines = [[purpose, *(f"{dollars[purpose]:,.2f}" for dollars in months.values())] for purpose in purposes]
    return [*lines, ["all", *(f"{sum(dollars.values()):,.2f}" for dollars in months.values())]]


def _table(heads: list[str], lines: list[list[str]]) -> None:
    """Print a table as Markdown, for use in a page."""
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")
