"""The command `offload mqtt archive`: keep what an MQTT broker delivers in a folder, as streams."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from offload.cli.kit.ending import Usage
from offload.cli.kit.log_lines import log_events
from offload.cli.kit.output import counted, one_line
from offload.cli.kit.quantities import parse_size
from offload.cli.kit.state import CommandContext, run_async
from offload.ground.errors import Misuse
from offload.service.process import signals
from offload_mqtt.address import parse_address
from offload_mqtt.topics import TopicFilter

STREAM: Final = "mqtt"
"""The stream of filters that name none."""

MqttUrl = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="The broker: mqtt://HOST[:PORT], or mqtts:// with TLS. The login is in OFFLOAD_MQTT_USER and "
        "OFFLOAD_MQTT_PASSWORD.",
    ),
]
ArchiveFolder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The folder that gets a folder for each stream.")
]
ArchiveFilters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="FILTER", help=f"Archive these topics in the stream {STREAM}."),
]
ArchiveRoutes = Annotated[
    list[str] | None,
    typer.Option("--route", metavar="STREAM=FILTER", help="Archive these topics in STREAM."),
]
MqttPasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="PATH", help="The password is the first line of this file."),
]
ClientId = Annotated[
    str | None,
    typer.Option(
        "--client-id",
        metavar="ID",
        help="The name of the session at the broker, for this archive alone. Default: that of FOLDER.",
    ),
]
RollSize = Annotated[
    str,
    typer.Option("--roll-size", metavar="SIZE", help="Begin a new segment at this size."),
]
Keep = Annotated[
    str | None,
    typer.Option(
        "--keep",
        metavar="SIZE",
        help="Delete the oldest segments of a stream above this size. Default: keep all.",
    ),
]


def archive(
    context: typer.Context,
    url: MqttUrl,
    folder: ArchiveFolder,
    filters: ArchiveFilters = None,
    route: ArchiveRoutes = None,
    client_id: ClientId = None,
    password_file: MqttPasswordFile = None,
    roll_size: RollSize = "500MB",
    keep: Keep = None,
) -> int:
    """Keep the messages of an MQTT broker in FOLDER until the process is stopped.

    A message of QoS 1 is acknowledged when it is on the disk.
    """
    from offload_mqtt.archive import MqttArchive, MqttRoute, check_routes, open_archive

    state: CommandContext = context.obj
    try:
        address = parse_address(url, os.environ, password_file=password_file)
        routes = [MqttRoute(STREAM, TopicFilter.parse(each)) for each in filters or ()]
        for each in route or ():
            stream, equals, text = each.partition("=")
            if not equals:
                raise Misuse(f"--route takes STREAM=FILTER, not {each!r}")
            routes.append(MqttRoute(stream, TopicFilter.parse(text)))
        check_routes(routes)
    except Misuse as error:
        raise Usage(str(error)) from error
    roll_size_bytes = parse_size(roll_size, option="--roll-size")
    keep_size_bytes = None if keep is None else parse_size(keep, option="--keep")

    async def main() -> MqttArchive:
        log_events("debug" if state.debug else "info", is_json=False)
        stopping = asyncio.Event()
        async with open_archive(
            folder,
            routes,
            client_id=client_id,
            roll_size_bytes=roll_size_bytes,
            keep_size_bytes=keep_size_bytes,
            env=state.session.env,
        ) as opened:
            with signals(stopping):
                await opened.run(address, stopping)
        return opened

    done = run_async(main)
    for stream, log in done.logs.items():
        stored = counted(done.stored.get(stream, 0), "message")
        print(f"{one_line(stream)}: {stored} archived, in offsets [{log.first_offset}, {log.next_offset})")
    return 0
