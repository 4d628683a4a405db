"""Addresses of RabbitMQ's stream listeners, and URLs of streams: `rabbitmq-stream://HOST[:PORT]/[VHOST/]STREAM`.

With TLS the scheme is `rabbitmq-stream+tls`. The virtual host is `/` if none is named. VHOST and STREAM are
percent-encoded as in any URL. The login comes from the environment, because URLs are shown and logged.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from offload.ground.errors import Misuse

PLAIN_SCHEME: Final = "rabbitmq-stream"
TLS_SCHEME: Final = "rabbitmq-stream+tls"
PORTS: Final = {PLAIN_SCHEME: 5552, TLS_SCHEME: 5551}
USER: Final = "OFFLOAD_BROKER_USER"
PASSWORD: Final = "OFFLOAD_BROKER_PASSWORD"  # noqa: S105 - the name of a variable
GUEST: Final = "guest"
"""The user and the password of a new broker, which it accepts from its own machine only."""

NAMES_SIZE_BYTES_MAX: Final = 234
"""A broker makes a folder VHOST_STREAM_TIMESTAMP, and a folder's name has 255 bytes at most.

RabbitMQ 3.10.8 declares a longer stream all the same, and tries to start it until it has no memory left.
"""

EXAMPLE: Final = f"{PLAIN_SCHEME}://host:5552/stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    """The address of a stream listener, a virtual host, and a login."""

    host: str
    port: int
    virtual_host: str
    user: str
    password: str = field(repr=False)
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        """The address for messages, without the login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{PLAIN_SCHEME if self.tls is None else TLS_SCHEME}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """A stream of a broker."""

    endpoint: BrokerEndpoint
    stream: str

    @property
    def url(self) -> str:
        """The URL, without the login."""
        vhost = "" if self.endpoint.virtual_host == "/" else quote(self.endpoint.virtual_host, safe="") + "/"
        return f"{self.endpoint.url}/{vhost}{quote(self.stream, safe='')}"

    def at(self, host: str, port: int) -> StreamPlace:
        """Return the same stream and login at another node."""
        return replace(self, endpoint=replace(self.endpoint, host=host, port=port))


def tls_of(scheme: str) -> ssl.SSLContext | None:
    """Return what checks a broker's certificate: the authorities of the system, or of SSL_CERT_FILE."""
    return ssl.create_default_context() if scheme == TLS_SCHEME else None


def parse_place(url: str) -> StreamPlace:
    """Return the place that a URL names, with the login of the environment.

    Raises `Misuse` if the URL names no stream, or has a login.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError) as exc:
        raise Misuse(f"this is no URL of a stream: use {EXAMPLE}") from exc
    if "@" in parts.netloc:
        raise Misuse(f"the URL of a stream has no login: set {USER} and {PASSWORD} in the environment")
    path = [unquote(part) for part in parts.path.removeprefix("/").split("/")]
    if not parts.hostname or not all(path) or len(path) > 2 or parts.query or parts.fragment:
        raise Misuse(f"{url!r} is no URL of a stream: use {EXAMPLE}, or .../vhost/stream")
    vhost = path[0] if len(path) == 2 else "/"
    if len(f"{vhost}{path[-1]}".encode()) > NAMES_SIZE_BYTES_MAX:
        raise Misuse(
            f"a virtual host and its stream have names of {NAMES_SIZE_BYTES_MAX} bytes at most together: the "
            "broker names a folder after them"
        )
    endpoint = BrokerEndpoint(
        host=parts.hostname,
        port=port,
        virtual_host=vhost,
        user=os.environ.get(USER, GUEST),
        password=os.environ.get(PASSWORD, GUEST),
        tls=tls_of(parts.scheme),
    )
    return StreamPlace(endpoint=endpoint, stream=path[-1])
