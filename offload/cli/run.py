"""`offload run`: keep the streams of a source on a tier."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offload.cli.kit.advising import Advice, shown_pairs
from offload.cli.kit.arguments import Compress, Encrypt, Keys, Options, SourceOptionPairs
from offload.cli.kit.ending import Usage
from offload.cli.kit.log_lines import log_event, log_events
from offload.cli.kit.output import print_note
from offload.cli.kit.state import CommandContext, run_async
from offload.ground.errors import Misuse, OffloadError
from offload.ground.extras import missing_text
from offload.ground.urls import scheme_of

if TYPE_CHECKING:
    from socket import socket

    from offload.copy.instance import Instance
    from offload.service.assembly import OpenedService
    from offload.service.config import RunConfig
    from offload.service.observability import Observability


OF_THE_PROCESS: Final = {"listen", "instance"}
"""The options that say nothing about streams."""

_log: Final = logging.getLogger(__name__)


class LogFormat(StrEnum):
    """How the lines of the log are written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The levels of the log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


ConfigOrSource = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG|SOURCE",
        help="A configuration in TOML; or, before TIER, the broker's data: rabbitmq:///var/lib/…/stream",
    ),
]
OnTier = Annotated[
    str | None,
    typer.Argument(
        metavar="TIER", help="A folder, or a URL of a backend: s3://bucket/prefix. Not with CONFIG."
    ),
]
MaxLag = Annotated[
    str | None,
    typer.Option(
        "--max-lag",
        metavar="DURATION",
        help="The time after which new data is readable on the tier. At least 1s. Default: 30s.",
    ),
]
OnGapChoice = Annotated[
    str | None,
    typer.Option(
        "--on-gap",
        metavar="pause|new-part",
        help="Pause a stream that SOURCE does not continue, or continue it in a new part. Default: pause.",
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Answer on this address with /metrics, /livez, /readyz and /status. A port alone is open to "
        "this machine only.",
    ),
]
InstanceFile = Annotated[
    str | None,
    typer.Option(
        "--instance",
        metavar="FILE",
        help="The file of this process's identity, made at the first start. With it, a process that was "
        "killed copies again at once when it is started again.",
    ),
]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How lines of the log are written.")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="The least level that is logged.")]
CheckOnly = Annotated[
    bool,
    typer.Option(
        "--check", help="Open everything, say what would be done and what a month of it costs, and end."
    ),
]
CheckJson = Annotated[bool, typer.Option("--json", help="With --check: one JSON object.")]


def run(
    context: typer.Context,
    source: ConfigOrSource,
    tier: OnTier = None,
    max_lag: MaxLag = None,
    on_gap: OnGapChoice = None,
    compress: Compress = None,
    encrypt: Encrypt = None,
    keys: Keys = None,
    listen: Listen = None,
    instance: InstanceFile = None,
    option: Options = None,
    source_option: SourceOptionPairs = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    check: CheckOnly = False,
    json: CheckJson = False,
) -> int:
    """Keep the streams of SOURCE on TIER until the process is stopped."""
    values = {
        "max_lag": max_lag,
        "on_gap": on_gap,
        "compress": compress,
        "encrypt": encrypt,
        "listen": listen,
        "instance": instance,
    }
    pairs = {"options": option, "source_options": source_option}
    state: CommandContext = context.obj
    config = configuration_of(source, tier, keys, values, pairs)
    state.with_keys(config.keys).advice = advice_of(config, source, tier, is_running=not check)
    if check:
        from offload.cli.run_check import check_run

        return check_run(state, config, json=json)
    if json:
        raise Usage("--json belongs to --check; for a log in JSON use --log-format json")
    level = "debug" if state.debug else log_level
    begin_log = partial(log_events, level, is_json=log_format is LogFormat.JSON)
    return _kept(state, config, None if tier is not None else Path(source), begin_log)


def _instance_of(config: RunConfig, path: Path | None, held: ExitStack) -> tuple[Instance | None, str | None]:
    """Return the identity of this process, or a note if it can have none. Raises `Conflict` if held."""
    from offload.service.instance_file import held_instance, instance_path

    place = instance_path(config.instance, path, os.environ)
    if place is None:
        return None, None
    try:
        return held.enter_context(held_instance(place)), None
    except OSError as error:
        why = f"cannot keep the identity of this process in {place}: {error.strerror}"
    if config.instance is not None:
        raise Usage(f"{why}; name a file that it can write, or `off`")
    return None, (
        f"{why}. If it is killed, it waits `takeover` before it copies again; to copy at once, name a file "
        'that it can write: instance = "/var/lib/offload/instance"'
    )


def _kept(state: CommandContext, config: RunConfig, path: Path | None, begin_log: Callable[[], None]) -> int:
    """Follow until a signal. `path` is that of the configuration, if it is a file."""
    with ExitStack() as held:
        instance, note = _instance_of(config, path, held)
        notes = [] if note is None else [note]
        return _followed(state, config, begin_log, instance, notes)


def _followed(
    state: CommandContext,
    config: RunConfig,
    begin_log: Callable[[], None],
    instance: Instance | None,
    notes: list[str],
) -> int:
    """Follow until a signal. The log begins with the `notes`."""
    from offload.service.assembly import open_service, start_notes
    from offload.service.observability import Observability, listener_of

    listener = listener_of(config.address)
    log = partial(log_event, advise=state.advice.of)
    observability = Observability(
        listeners=[log, lambda event: state.session.emit(event)], advice=state.advice
    )

    async def main() -> None:
        try:
            opened = open_service(state.session, config, observability.emit)
        except Misuse as error:
            raise Usage(str(error)) from error
        state.is_quiet = True  # the log has the notes of waiting
        begin_log()
        release = version("ledger-offload")
        _log.info("ledger-offload %s follows %s on %s", release, opened.source.url, config.tier)
        for note in [*notes, *await start_notes(opened)]:
            _log.warning("%s", note)
        await _served(state, config, opened, observability, listener, instance)

    try:
        run_async(main)
    except TimeoutError as error:
        stopped = f"stopped after {config.stop_seconds:g} s, before the uploads in flight were committed"
        raise OffloadError(f"{stopped}; what is committed is safe, and the next start continues") from error
    except asyncio.CancelledError as error:
        stopped = "stopped at once; what is committed is safe, and the next start continues"
        raise OffloadError(stopped) from error
    return 0


async def _served(
    state: CommandContext,
    config: RunConfig,
    opened: OpenedService,
    observability: Observability,
    listener: socket | None,
    instance: Instance | None,
) -> None:
    """Follow the streams until a signal ends the process."""
    from offload.service.commanding import PauseNotes
    from offload.service.observability import door_of
    from offload.service.process import serve

    with door_of(config, os.environ) as door:
        notes = PauseNotes.beside(door)
        dispatcher = opened.dispatcher(observability.emit, instance, notes.of)
        dispatcher.tails, dispatcher.note_tails = dict(notes.tails), notes.note_tails
        upkeep = opened.upkeep(dispatcher, observability.emit)
        beside = observability.side_tasks(
            [dispatcher], upkeep, state.session, listener, os.environ, config.tier, door=door, notes=notes
        )
        await serve(dispatcher, upkeep.run, *beside)


def advice_of(config: RunConfig, source: str, tier: str | None, *, is_running: bool) -> Advice:
    """Return what to advise about the streams of a configuration. SOURCE and TIER are as they were given."""
    options = shown_pairs("-o", [f"{name}={value}" for name, value in config.options.items()])
    pairs = [f"{name}={value}" for name, value in config.source_options.items()]
    source_options = shown_pairs("--source-option", pairs)
    arguments = [source] if tier is None else [source, tier, *options, *source_options]
    return Advice(
        source=config.source,
        tier=config.tier,
        options=options,
        source_options=source_options,
        keys=config.keys,
        encrypt_of=lambda stream: config.of(stream).encrypt,
        check=["offload", "run", "--check", *arguments],
        status=["offload", "status", *arguments],
        config=source if tier is None else None,
        is_running=is_running,
    )


def configuration_of(
    source: str,
    tier: str | None,
    keys: str | None,
    values: dict[str, str | None],
    pairs: dict[str, list[str] | None],
) -> RunConfig:
    """Return the configuration of a file, or that of the arguments. Raises `Usage` if it is wrong."""
    try:
        from offload.service.config_file import config_of_values, load_config
    except ModuleNotFoundError as error:
        raise Misuse(missing_text("offload run", str(error.name), "ledger-offload[run]")) from error
    given = {name: value for name, value in (values | pairs).items() if value}
    try:
        if tier is not None:
            if source.endswith(".toml") and scheme_of(source) is None:
                raise Usage(f"a configuration names the tier itself: leave {tier} out")
            return config_of_values(*_document(source, tier, keys, given))
        if given:
            raise Usage(f"{_option(next(iter(given)))} belongs in the configuration, or TIER is missing")
        if scheme_of(source) is not None:
            raise Usage(f"TIER is missing: offload run {source} TIER")
        if Path(source).is_dir():
            raise Usage(f"{source} is a folder, not a configuration: give SOURCE and then TIER")
        config, warnings = load_config(Path(source), os.environ)
    except Misuse as error:
        raise Usage(str(error)) from error
    for warning in warnings:
        print_note(warning)
    return config if config.keys or not keys else config.model_copy(update={"keys": keys})


def _document(
    source: str, tier: str, keys: str | None, given: dict[str, Any]
) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """Return the document of the arguments, and the option that each of its values comes from."""
    document: dict[str, Any] = {"source": source, "tier": tier, "keys": keys, "streams": {"*": {}}}
    names: dict[tuple[str, ...], str] = {}
    for name, value in given.items():
        if isinstance(value, list):
            document[name] = dict(_pair(each, _option(name)) for each in value)
        elif name in OF_THE_PROCESS:
            document[name] = value
            names[name,] = _option(name)
        else:
            document["streams"]["*"][name] = value
            names["streams", "*", name] = _option(name)
    return document, names


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise Usage(f"{option} takes NAME=VALUE, not {name!r}")
    return name, value


def _option(name: str) -> str:
    return "--" + name.replace("options", "option").replace("_", "-")
