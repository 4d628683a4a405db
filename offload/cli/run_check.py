"""`offload run --check`: what a configuration would do, whether it can, and what a month of it costs."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from offload.cli.check import check_stores, stores_as_json, summary_of
from offload.cli.kit.ending import Usage
from offload.cli.kit.output import counted, one_line, print_json, print_table, size_text
from offload.cli.kit.state import CommandContext, run_async
from offload.contracts.broker import LeadingNode
from offload.contracts.source import SourceStream
from offload.follow.vouched import VouchedSource
from offload.ground.errors import Misuse, OffloadError
from offload.model.own_names import labels_of, with_own_names
from offload.model.prices import GIB
from offload.opening.given_options import GivenOptions
from offload.service.assembly import OpenedService, open_service, unmatched
from offload.service.config import RunConfig, StreamConfig
from offload.service.costs import MonthlyCost, cost_of, work_as_json
from offload.service.preview import StreamPreview, as_json, preview_stream, try_keys
from offload.upkeep.check import CheckReport

SNAPSHOTS_AT_ONCE = 8
PREVIEW_DROP = (
    "growth per day", "lag size", "source end", "tier end", "rules", "unused", "leader", "stored", "process",
)  # fmt: skip
"""The columns that a narrow table leaves out, the first one first."""
NO_PRICES = "this store has no price here; [prices] of the configuration sets prices"
NOTHING_SEEN = "no stream could be compared with the tier"
PREVIEW_HEADS = (
    "stream", "source end", "tier end", "lag records", "lag size", "lag seconds", "growth per day",
)  # fmt: skip


@dataclass(kw_only=True)
class _Findings:
    stores: list[CheckReport] = field(default_factory=list)
    streams: list[StreamPreview] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    leaders: dict[str, LeadingNode] = field(default_factory=dict)
    """The node that leads each stream, if the broker says it."""

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_run(state: CommandContext, config: RunConfig, *, json: bool) -> int:
    """Check a configuration, print what was found, and return the exit code."""
    with ExitStack() as cleanup:
        found = run_async(lambda: _found(state, config, cleanup, json=json))
    can = summary_of(found.stores)
    # Without a store that can be read, nothing else was tried, which shows nothing.
    says = "the store cannot {}" if can["read"] else "nobody could try whether the store can {}"
    found.problems += ["the store cannot read"] * (not can["read"])
    found.problems += [says.format(each) for each in ("write", "commit") if not can[each]]
    if held := found.stores[0].foreign_object:
        taken = f"{found.stores[0].url} is no tier and not empty: it holds {held!r}"
        found.problems.append(f"the tier: {taken}; name an empty place")
    found.problems += [
        each.problem + state.advice.of(each.stream, each.error) for each in found.streams if each.error
    ]
    found.notes += [
        f"stream {each.stream!r}: the source does not continue it, so a new part begins"
        for each in found.streams
        if each.begins_part
    ]
    cost = cost_of(config, found.streams)
    if json:
        print_json(_document(config, found, cost), indent=2)
    else:
        _show(config, found, cost)
    return 1 if found.problems else 0


async def _found(state: CommandContext, config: RunConfig, cleanup: ExitStack, *, json: bool) -> _Findings:
    found = _Findings()
    try:
        opened = open_service(state.session, config, state.session.emit)
        given = GivenOptions.of(config.options, state.session.limits)
    except Misuse as error:
        raise Usage(str(error)) from error
    found.stores = await check_stores(state, config.tier, given, cleanup, read_only=False, json=json)
    try:
        found.keys = await try_keys(state.session, config)
    except OffloadError as error:
        found.problems.append(f"the key service: {error}; see: offload help key-services")
    try:
        streams = await opened.source.streams()
    except OffloadError as error:
        found.problems.append(f"the source: {error}; see: offload help run#run-it")
        return found
    names = [stream.name for stream in streams]
    notes, problems = unmatched(config, names)
    found.notes, found.problems = [*notes, *opened.source.notes], found.problems + problems
    if opened.asked is not None:
        await _ask_broker(found, opened.asked, [each for each in streams if config.of(each.name).follow])
    found.left_out = [name for name in names if not config.of(name).follow]
    followed = [each for each in streams if config.of(each.name).follow]
    if summary_of(found.stores)["read"]:
        found.streams = await previews_of(opened, followed)
    else:  # each stream would wait for the store, so nothing is known of them
        found.streams = [
            StreamPreview(stream=each.name, glob=config.glob_of(each.name), not_asked="the store cannot read")
            for each in followed
        ]
    return found


async def previews_of(opened: OpenedService, streams: list[SourceStream]) -> list[StreamPreview]:
    """Return the previews of streams that are followed, several at once.

    If the tier does not answer for one of them, it is not asked for the next ones. Each would wait as long.
    """
    turns, unanswered = asyncio.Semaphore(SNAPSHOTS_AT_ONCE), list[OffloadError]()

    async def preview(stream: SourceStream) -> StreamPreview:
        async with turns:
            if unanswered:
                glob = opened.config.glob_of(stream.name)
                return StreamPreview(stream=stream.name, glob=glob, error=unanswered[0], is_unanswered=True)
            seen = await preview_stream(opened, stream)
            if seen.is_unanswered and seen.error is not None:
                unanswered.append(seen.error)
            return seen

    return await asyncio.gather(*map(preview, streams))


async def _ask_broker(found: _Findings, asked: VouchedSource, streams: list[SourceStream]) -> None:
    """Ask for the leader of each stream, until the broker itself fails."""
    for stream in streams:
        try:
            found.leaders[stream.name] = await asked.broker.leader(stream.broker_name)
        except OffloadError as error:
            if asked.broker.error is not None:
                found.problems.append(f"the broker: {error}; see: offload help run#ask-the-broker")
                return
            found.notes.append(f"stream {stream.name!r}: the broker does not say who leads: {error}")


def _show(config: RunConfig, found: _Findings, cost: MonthlyCost | None) -> None:
    if config.keys is not None:
        tried = ", ".join(found.keys) or "no master key was tried"
        print(f"keys: {one_line(config.keys)}: {tried}")
    for glob, rules in config.streams.items():
        matching = [each for each in found.streams if each.glob == glob]
        number = len(matching) if rules.follow else sum(config.glob_of(n) == glob for n in found.left_out)
        print(one_line(f'"{glob}": {counted(number, "stream")}, {_rules_text(rules)}'))
    labels = labels_of(each.stream for each in found.streams)
    rows = [[*preview_row(each, labels), f'"{each.glob}"'] for each in found.streams]
    heads = [*PREVIEW_HEADS, "rules"]
    if config.broker is not None:
        heads.append("leader")
        for row, each in zip(rows, found.streams, strict=True):
            row.append(_leader_text(found.leaders.get(each.stream)))
    print_table(heads, rows, drop=PREVIEW_DROP)
    print(_upkeep_text(config))
    print(cost_text(cost))
    for note in found.notes:
        print(f"note: {with_own_names(one_line(note))}")
    for problem in found.problems:
        print(f"PROBLEM: {with_own_names(one_line(problem))}")
    print(f"ready: {'NO' if found.problems else 'yes'}")


def preview_row(seen: StreamPreview, labels: dict[str, str]) -> tuple[object, ...]:
    """Return the cells below `PREVIEW_HEADS`."""
    if not seen.is_known:
        return (labels[seen.stream], *(["not known"] * (len(PREVIEW_HEADS) - 1)))
    tier_end = "-" if seen.committed_offset is None else seen.committed_offset
    return (
        labels[seen.stream],
        seen.source_next_offset,
        tier_end,
        seen.lag_records,
        size_text(seen.lag_size_bytes),
        f"{seen.lag_seconds:.0f}",
        size_text(round(86_400 * seen.growth.bytes_per_second)),
    )


def _leader_text(leader: LeadingNode | None) -> str:
    if leader is None:
        return "not known"
    return f"{leader.address} (this node)" if leader.is_asked else leader.address


def _rules_text(rules: StreamConfig) -> str:
    if not rules.follow:
        return "left out"
    kept = [
        "" if rules.age_seconds_max is None else _duration_text(rules.age_seconds_max),
        "" if rules.size_bytes_max is None else size_text(rules.size_bytes_max),
    ]
    return ", ".join(
        (
            f"lag at most {_duration_text(rules.max_lag_seconds)}",
            f"kept for at most {' and '.join(filter(None, kept))}" if any(kept) else "kept for ever",
            "compressed as the tier's default"
            if rules.compress is None
            else f"compressed as {rules.compress}",
            "not encrypted unless it has a key" if rules.encrypt is None else f"encrypted by {rules.encrypt}",
            "continues in a new part after a gap" if rules.on_gap == "new-part" else "pauses at a gap",
            *(f"indexed by {spec}" for spec in rules.index),
        )
    )


def _upkeep_text(config: RunConfig) -> str:
    jobs = {
        name.removesuffix("_seconds"): value for name, value in config.upkeep if name.endswith("_seconds")
    }
    return "upkeep: " + ", ".join(
        f"{name} off" if seconds is None else f"{name} every {_duration_text(seconds)}"
        for name, seconds in jobs.items()
    )


def _duration_text(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


def cost_text(cost: MonthlyCost | None) -> str:
    """Return a line on what a month costs."""
    if cost is None:
        return f"cost: not known, because {NO_PRICES}"
    if cost.is_unknown:
        return f"cost: not known, because {NOTHING_SEEN}"
    price, work = cost.price, cost.work
    where = ", ".join(filter(None, (price.provider, price.region)))
    least = "at least " if cost.unknown else ""
    unknown = f"; not known for {counted(cost.unknown, 'stream')}" if cost.unknown else ""
    return (
        f"cost of a month: {least}{cost.requests + cost.storage:,.2f} at the prices of {where}{unknown}\n"
        f"  requests {cost.requests:,.2f}: {work.fragments:,.0f} fragments of 1 put, "
        f"{work.commits:,.0f} commits of 1 create and 1 listing\n"
        f"  storage {cost.storage:,.2f}: {cost.stored_gib:,.2f} GiB, as stored a month from now, of which "
        f"{work.roots_stored_bytes / GIB:,.2f} GiB are old roots until a sweep\n"
        f"  prices: {'; '.join(map(one_line, filter(None, (price.source, price.known))))}\n"
        "  without readers, upkeep, and processes that stand by; if the streams grow as in the last hour"
    )


def _document(config: RunConfig, found: _Findings, cost: MonthlyCost | None) -> dict[str, Any]:
    return {
        "ready": not found.problems,
        "problems": found.problems,
        "notes": found.notes,
        "source": config.source,
        "tier": config.tier,
        "stores": stores_as_json(found.stores),
        "can": summary_of(found.stores),
        "keys": found.keys,
        "globs": {glob: each.model_dump(mode="json", by_alias=True) for glob, each in config.streams.items()},
        "broker": config.broker,
        "leaders": {stream: asdict(leader) for stream, leader in found.leaders.items()},
        "streams": [as_json(each) | work_as_json(each, config) for each in found.streams],
        "left_out": found.left_out,
        "upkeep": config.upkeep.model_dump(mode="json", by_alias=True),
        **cost_as_json(cost),
    }


def cost_as_json(cost: MonthlyCost | None) -> dict[str, Any]:
    """Return the cost for programs. If it is not known, it is None, and there is a reason."""
    if cost is None or cost.is_unknown:
        return {"cost_per_month": None, "cost_unknown": NO_PRICES if cost is None else NOTHING_SEEN}
    return {"cost_per_month": _known_cost_as_json(cost), "cost_unknown": None}


def _known_cost_as_json(cost: MonthlyCost) -> dict[str, Any]:
    return {
        "requests": round(cost.requests, 4),
        "storage": round(cost.storage, 4),
        "fragments": round(cost.work.fragments),
        "commits": round(cost.work.commits),
        "stored_gib": round(cost.stored_gib, 4),
        "roots_gib": round(cost.work.roots_stored_bytes / GIB, 4),
        "unknown_streams": cost.unknown,
        "price": asdict(cost.price),
    }
