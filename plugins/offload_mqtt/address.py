"""Addresses of MQTT brokers: `mqtt://HOST[:PORT]`, and `mqtts://` with TLS.

An address has no login, because addresses are shown and logged. The user and the password come from the
environment, and the password perhaps from a file. TLS trusts the authorities of the system, or those in the
file that SSL_CERT_FILE names.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from offload.ground.errors import Misuse
from offload.ground.outside import Unreadable, text_outside
from offload.ground.urls import refuse_login

__all__ = ["PASSWORD", "USER", "BrokerAddress", "parse_address"]

PLAIN: Final = "mqtt"
TLS: Final = "mqtts"
PORTS: Final = {PLAIN: 1883, TLS: 8883}
USER: Final = "OFFLOAD_MQTT_USER"
PASSWORD: Final = "OFFLOAD_MQTT_PASSWORD"  # noqa: S105 - the name of a variable
EXAMPLE: Final = "mqtt://host:1883"
PASSWORD_SIZE_BYTES_MAX: Final = 65_535
"""The size of a password has 16 bits in MQTT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """The address of a broker, and a login. The password is in no text of it."""

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The address for messages, without the login."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{PLAIN if self.tls is None else TLS}://{host}:{self.port}"


def parse_address(
    url: str, environ: Mapping[str, str], *, password_file: Path | None = None
) -> BrokerAddress:
    """Return the address of a URL, with the login of the environment. Raises `Misuse` if it is none.

    The first line of `password_file`, if there is one, is the password.
    """
    refuse_login(url, of="an MQTT broker", where=f"in {USER} and {PASSWORD}, or by --password-file")
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError) as exc:
        raise Misuse(f"{url!r} is no address of an MQTT broker: use {EXAMPLE}, or mqtts:// with TLS") from exc
    if not parts.hostname or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise Misuse(f"{url!r} is no address of an MQTT broker: use {EXAMPLE}, without a path")
    user, password = environ.get(USER), environ.get(PASSWORD)
    if password_file is not None:
        password = _first_line(password_file)
    if password is not None and user is None:
        raise Misuse(f"a password belongs to a user: set {USER}")
    tls = _tls_context() if parts.scheme == TLS else None
    return BrokerAddress(host=parts.hostname, port=port, user=user, password=password, tls=tls)


class _Socket(ssl.SSLSocket):
    """A socket that closes if its handshake fails: paho forgets it then."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


def _tls_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = _Socket
    return context


def _first_line(path: Path) -> str:
    try:
        password = text_outside(path).partition("\n")[0].rstrip("\r")
    except (OSError, Unreadable) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise Misuse(f"the file of the password {str(path)!r} cannot be read: {why}") from exc
    if not password or len(password.encode()) > PASSWORD_SIZE_BYTES_MAX:
        raise Misuse(
            f"the first line of {str(path)!r} is no password of 1 to {PASSWORD_SIZE_BYTES_MAX} bytes"
        )
    return password
