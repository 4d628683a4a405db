"""`offload ctl`: tell a process of `offload run` what to do with its streams."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offload.cli.kit.ending import Usage
from offload.cli.kit.output import one_line, print_error, print_json
from offload.cli.run import configuration_of
from offload.follow.rules import Verb
from offload.ground.errors import OffloadError

if TYPE_CHECKING:
    from offload.service.config import RunConfig


VerbArgument = Annotated[
    Verb,
    typer.Argument(
        metavar="retry|copy|pause|resume",
        help="retry: try the stream now. copy: copy what it has now, and do not wait for more. pause: copy "
        "nothing of it until resume. resume: copy it again.",
    ),
]
ToldStreams = Annotated[
    list[str] | None,
    typer.Argument(metavar="[STREAM...]", help="The streams, by their names in `offload status`."),
]
All = Annotated[bool, typer.Option("--all", help="All streams that the process follows.")]
Config = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        help="The configuration of the process. Default: the only process on this machine.",
    ),
]
Socket = Annotated[
    str | None,
    typer.Option("--socket", metavar="PATH", help="The socket of the process, as its log names it."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object for each stream.")]

WORDS: Final = {"leading": "copies", "standby": "stands by", "paused": "paused"}


def ctl(
    verb: VerbArgument,
    streams: ToldStreams = None,
    every: All = False,
    config: Config = None,
    socket: Socket = None,
    json: Json = False,
) -> int:
    """Tell the process of `offload run` to retry, copy, pause or resume streams, without a restart.

    A pause by a person is kept when the process is restarted, as long as the folder of its socket is kept. It
    counts for this process alone: another machine may take the stream over.
    """
    from offload.service.client import tell_process

    if bool(streams) == every:
        raise Usage("name streams, or give --all")
    door = _door(config, socket)
    rows = tell_process(door, verb, None if every else streams)
    for row in rows:
        if json:
            print_json(row)
        else:
            print(one_line(f"{row['stream']}: {_said(row)}"))
    failed = [row for row in rows if verb is not Verb.PAUSE and _is_stopped(row)]
    for row in failed:
        print_error(OffloadError(f"stream {row['stream']!r} is paused: {row.get('error')}"))
    return 1 if failed else 0


def door_near(config: RunConfig) -> Path | None:
    """Return where the process of a configuration has its door. None if it has none, or nobody knows."""
    from offload.service.door import default_name, find_doors
    from offload.service.observability import door_path

    if config.control is not None:
        return door_path(config, os.environ)
    name = default_name(config.source, config.tier)
    with suppress(StopIteration):
        return next(each for each in find_doors(os.environ) if each.name == name)
    return None


def _door(config: str | None, socket: str | None) -> Path:
    """Return the door that the arguments name, or the only one. Raises `Usage` if it is not known."""
    if socket is not None:
        return Path(socket)
    if config is not None:
        if (found := door_near(configuration_of(config, None, None, {}, {}))) is None:
            lacking = f"no process of {config} answers `offload ctl` on this machine"
            raise OffloadError(f"{lacking}; to see more: {_status(config)}")
        return found
    from offload.service.door import find_doors

    doors = find_doors(os.environ)
    if not doors:
        raise OffloadError(
            "no process of `offload run` of this user is found on this machine: add --config CONFIG, or "
            "--socket PATH as the log of the process names it"
        )
    if doors[1:]:
        known = ", ".join(f"--socket {shlex.quote(str(each))}" for each in doors)
        raise Usage(f"several processes run: add --config CONFIG, or one of {known}")
    return doors[0]


def _status(config: str) -> str:
    return shlex.join(["offload", "status", config])


def _is_stopped(row: dict[str, Any]) -> bool:
    return row["state"] == "paused" and row.get("waits") != "resume"


def _said(row: dict[str, Any]) -> str:
    if row["state"] == "paused":
        return (
            "paused until `offload ctl resume`"
            if row.get("waits") == "resume"
            else f"paused: {row.get('error')}"
        )
    lacking = row.get("lag_records")
    behind = "" if lacking is None else f", {lacking} records behind"
    error = f", tried again: {row['error']}" if row.get("error") else ""
    return f"{WORDS.get(row['state'], row['state'])}{behind}{error}"
