"""A RabbitMQ of one node, with the plugins for streams and MQTT or without, from unpacked Debian packages.

Streams live in `mnesia/tier@localhost/stream` of the scratch folder, one folder each. The Erlang machine gets
one scheduler, unless more are asked for, and does not spin, so that a sidecar on two cores has its own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from servers.processes import NotReady, end_of, free_port, process
from servers.recipes import DebianPackages

NODE: Final = "tier@localhost"
READY_SECONDS: Final = 120.0

ERLANG: Final = (
    *("base", "asn1", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
    *("runtime-tools", "snmp", "ssl", "syntax-tools", "tftp", "tools", "xmerl"),
)
"""What RabbitMQ needs of Erlang. Each is named, so that it is fetched although the machine has it, because
Erlang looks for its applications in its own folder alone."""

RECIPE: Final = DebianPackages("rabbitmq", ("rabbitmq-server", *(f"erlang-{name}" for name in ERLANG)))

CONFIGURATION: Final = """\
listeners.tcp.default = 127.0.0.1:{amqp_port}
log.console = true
log.file = false
"""

STREAMS: Final = """\
stream.listeners.tcp.1 = 127.0.0.1:{stream_port}
stream.advertised_host = 127.0.0.1
"""

MQTT: Final = """\
mqtt.listeners.tcp.default = 127.0.0.1:{mqtt_port}
mqtt.allow_anonymous = true
"""

TLS: Final = """\
stream.listeners.ssl.1 = 127.0.0.1:{tls_port}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
"""

ERL: Final = """\
#!/bin/sh
export ROOTDIR={erlang} BINDIR={erts}/bin EMU=beam PROGNAME=erl
exec {erts}/bin/erlexec "$@"
"""
"""The packaged `erl` looks for its machine below /usr."""


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A running broker. The user and the password are `guest`."""

    stream_port: int
    streams: Path
    """The folder with a folder for each stream: a source is `rabbitmq://` and this path."""
    version: str
    amqp_port: int
    running: subprocess.Popen[bytes]
    tls_port: int | None = None
    mqtt_port: int | None = None

    @property
    def node(self) -> Path:
        """The folder of the node: a source of classic queues is `rabbitmq-queues://` and this path."""
        return self.streams.parent

    def kill(self) -> None:
        """End the broker at once, as a lost machine would."""
        os.killpg(self.running.pid, signal.SIGKILL)
        self.running.wait()


@contextmanager
def rabbitmq(
    scratch: Path,
    tls: tuple[Path, Path] | None = None,
    *,
    has_streams: bool = True,
    has_mqtt: bool = False,
    schedulers: int = 1,
    ports: tuple[int, int, int] | None = None,
) -> Iterator[Broker]:
    """Yield a broker whose files are in `scratch`, an existing folder. On exit it has ended.

    `tls` is a certificate and its key. With them the broker also has a port with TLS. Without streams, nobody
    listens on `stream_port`. `ports` are those for AMQP, streams and MQTT, if a broker is started again.
    Raises `NotReady` if it does not start. The packages must be installed (`RECIPE.install()`).
    """
    program = RECIPE.folder
    erlang = program / "usr/lib/erlang"
    erts = next(erlang.glob("erts-*"))
    home = next(program.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*"))
    amqp_port, stream_port, mqtt_port = ports or (free_port(), free_port(), free_port())
    epmd_port = free_port()
    tls_port = None if tls is None else free_port()
    wrapper = scratch / "bin" / "erl"
    wrapper.parent.mkdir(exist_ok=True)  # a broker may be started again on its files
    wrapper.write_text(ERL.format(erlang=erlang, erts=erts))
    wrapper.chmod(0o755)
    plugins = ["rabbitmq_stream"] * has_streams + ["rabbitmq_mqtt"] * has_mqtt
    (scratch / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
    settings = CONFIGURATION.format(amqp_port=amqp_port)
    if has_streams:
        settings += STREAMS.format(stream_port=stream_port)
    if has_mqtt:
        settings += MQTT.format(mqtt_port=mqtt_port)
    if tls is not None:
        settings += TLS.format(tls_port=tls_port, certificate=tls[0], key=tls[1])
    (scratch / "rabbitmq.conf").write_text(settings)
    env = {
        "PATH": f"{wrapper.parent}:{erts / 'bin'}:/usr/bin:/bin",
        "HOME": str(scratch),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_HOME": str(home),
        "RABBITMQ_NODENAME": NODE,
        "RABBITMQ_MNESIA_BASE": str(scratch / "mnesia"),
        "RABBITMQ_LOG_BASE": str(scratch / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(scratch / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(scratch / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_PID_FILE": str(scratch / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+S {schedulers}:{schedulers} +sbwt none",
    }
    log = scratch / "rabbitmq.out"
    with ExitStack() as processes:
        processes.enter_context(
            process(erts / "bin/epmd", "-port", str(epmd_port), log=scratch / "epmd.out", env=env)
        )
        broker = processes.enter_context(
            process(home / "sbin/rabbitmq-server", log=log, env=env, cwd=scratch)
        )
        deadline = time.monotonic() + READY_SECONDS
        awaited = [amqp_port, *[stream_port] * has_streams, *[mqtt_port] * has_mqtt]
        while not all(map(_listens, awaited)):
            if broker.poll() is not None or time.monotonic() > deadline:
                raise NotReady(f"RabbitMQ did not start: {end_of(log)}")
            time.sleep(0.2)
        yield Broker(
            stream_port=stream_port,
            streams=scratch / "mnesia" / NODE / "stream",
            version=RECIPE.version,
            amqp_port=amqp_port,
            running=broker,
            tls_port=tls_port,
            mqtt_port=mqtt_port if has_mqtt else None,
        )


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
