"""The URL of a listener: `rabbitmq-stream://HOST:PORT?OPTION=VALUE&…`.

    advertised-host, advertised-port   the address that clients dial, if it is another one than HOST and PORT
    cert, key                          the files of the certificate, with `rabbitmq-stream+tls`
    connections-max                    1,000 by default
    offsets                            the file of the offsets that consumers store (`server.offsets`)
    users                              the file of the users that may log in (`server.users`)

Without `users` nobody proves who they are, so only loopback addresses listen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from offload.ground.errors import Misuse
from offload.ground.outside import number_outside
from offload_rabbitmq.stream_place import PORTS, TLS_SCHEME

OPTIONS: Final = ("advertised-host", "advertised-port", "cert", "connections-max", "key", "offsets", "users")
NUMBERS: Final = {"advertised-port": 65_535, "connections-max": 1_000_000}
"""The options that are numbers, each with its greatest value."""

EXAMPLE: Final = "rabbitmq-stream://localhost:5552"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOptions:
    """The parts of the URL."""

    scheme: str
    host: str
    port: int
    query: Mapping[str, str]

    @classmethod
    def of(cls, url: str) -> ListenerOptions:
        """Parse a URL. Raises `Misuse` if it is none of a listener, or its options are wrong."""
        try:
            parts = urlsplit(url)
            port = PORTS[parts.scheme] if parts.port is None else parts.port
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except (ValueError, KeyError) as exc:
            raise Misuse(f"{url!r} is no address of a listener: use {EXAMPLE}") from exc
        if not parts.hostname or parts.path.strip("/") or parts.fragment:
            raise Misuse(f"{url!r} is no address of a listener: use {EXAMPLE}")
        for name, value in pairs:
            if name not in OPTIONS:
                raise Misuse(f"a listener has no option {name!r}; it has {', '.join(OPTIONS)}")
            if not value:
                raise Misuse(f"the option {name!r} of a listener has no value")
        found = cls(scheme=parts.scheme, host=parts.hostname, port=port, query=dict(pairs))
        found._check()
        return found

    @property
    def is_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.scheme == TLS_SCHEME

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False

    def number(self, name: str, default: int) -> int:
        """Return the value of an option that is a number."""
        return int(self.query.get(name, default))

    def _check(self) -> None:
        for name in ("cert", "key"):
            if self.is_tls != (name in self.query):
                needs = "needs" if self.is_tls else "takes no"
                raise Misuse(f"{self.scheme}:// {needs} option {name!r}")
        for name, most in NUMBERS.items():
            if name in self.query and not 0 < (number_outside(self.query[name]) or 0) <= most:
                raise Misuse(f"{name} is a number from 1 to {most}, not {self.query[name]!r}")
        if not self.is_loopback and "users" not in self.query:
            raise Misuse(
                f"{self.host} is open to other machines, and nobody logs in: "
                "add users=FILE, or listen on localhost"
            )
