"""`offload serve`: serve the streams of a tier to the clients of a broker, by the broker's own protocol."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Final

import typer

from offload.cli.kit.arguments import EncryptedOnly, Keys, Options, Tier
from offload.cli.kit.ending import Usage
from offload.cli.kit.log_lines import log_event, log_events
from offload.cli.kit.reading import AskedBroker, Beside, HoldBack
from offload.cli.kit.state import CommandContext, run_async
from offload.cli.run import LogFormat, LogFormatOption, LogLevel, LogLevelOption
from offload.contracts.events import Event
from offload.contracts.listener import Listener
from offload.ground.errors import Misuse
from offload.model.quantities import size_bytes_from
from offload.two_sides.choice import ReadPriority

CACHE: Final = "128MiB"
STOP_SECONDS: Final = 10.0

_log: Final = logging.getLogger(__name__)

Listeners = Annotated[
    list[str],
    typer.Option(
        "--listen",
        metavar="URL",
        help="Serve at this address: rabbitmq-stream://127.0.0.1:5552. May be repeated.",
    ),
]
ServedSource = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="URL",
        help="Also serve what is on the disk of the broker and not yet on TIER: rabbitmq:///var/lib/…/stream.",
    ),
]
CacheSize = Annotated[
    str,
    typer.Option("--cache", metavar="SIZE", help="The memory for data that consumers share."),
]
StopSeconds = Annotated[
    float,
    typer.Option(
        metavar="N", min=0, max=3600, help="At the end, close connections that last longer than this."
    ),
]
MetricsAddress = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Answer on this address with /metrics, /livez, /readyz and /status. A port alone is open to "
        "this machine only.",
    ),
]


def serve(
    context: typer.Context,
    tier: Tier,
    listen: Listeners,
    source: ServedSource = None,
    broker: AskedBroker = None,
    hold_back: HoldBack = None,
    cache: CacheSize = CACHE,
    stop_seconds: StopSeconds = STOP_SECONDS,
    metrics: MetricsAddress = None,
    keys: Keys = None,
    encrypted_only: EncryptedOnly = False,
    option: Options = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
) -> int:
    """Serve the streams of TIER to the clients of a broker, until the process is stopped."""
    state: CommandContext = context.obj.with_keys(keys, encrypted_only=encrypted_only)
    beside = Beside.of(source, ReadPriority.LOCAL_FIRST, hold_back, broker)
    try:
        state.cache_size_bytes = size_bytes_from(cache)
    except Misuse as error:
        raise Usage(f"--cache {error}") from error

    def begin_log() -> None:
        state.is_quiet = True  # the log has the notes of waiting
        log_events("debug" if state.debug else log_level, is_json=log_format is LogFormat.JSON)

    run_async(lambda: _served(state, tier, option, listen, beside, metrics, stop_seconds, begin_log))
    return 0


async def _served(
    state: CommandContext,
    tier: str,
    option: list[str] | None,
    listen: list[str],
    beside: Beside | None,
    metrics: str | None,
    stop_seconds: float,
    begin_log: Callable[[], None],
) -> None:
    """Take all ports, and then serve until a signal."""
    from offload.service.serving import ServedTier, metrics_beside, serve_listeners

    listeners = [_listening(state, url) for url in listen]
    try:
        answering = metrics_beside(metrics, listeners, state.session)
    except Misuse as error:
        raise Usage(str(error)) from error
    async with state.opened_to_read(tier, option) as catalogue:
        await catalogue.open()
        source = None if beside is None else beside.opened(state, os.environ)

        def emit(event: Event) -> None:
            log_event(event)
            state.session.emit(event)

        served = ServedTier(
            state.session,
            catalogue,
            source,
            hold_back_seconds=0.0 if beside is None else beside.hold_back_seconds,
            emit=emit,
        )
        begin_log()
        at = ", ".join(each.url for each in listeners)
        _log.info("ledger-offload %s serves %s at %s", version("ledger-offload"), catalogue.url, at)
        await serve_listeners(listeners, served, *answering, stop_seconds=stop_seconds)


def _listening(state: CommandContext, url: str) -> Listener:
    listener = state.listener(url)
    listener.listen()
    return listener
