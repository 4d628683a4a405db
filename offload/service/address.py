"""The address on which a process answers: `HOST:PORT`, or a port alone, open to this machine only."""

from __future__ import annotations

import socket
from typing import Final

from offload.ground.errors import Misuse
from offload.ground.outside import number_outside

__all__ = ["address_from", "address_of", "listen"]


LOOPBACK: Final = "127.0.0.1"
OFF: Final = "off"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Port 0 takes any free port.

    Raises `Misuse` if the address is not this machine's, or is in use.
    """
    address = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Misuse(f"cannot listen on {address}: {error.strerror or error}") from error
    try:
        # A restart must not wait until the connections of the process before are forgotten.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(where)
        opened.listen(128)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        text = f"cannot listen on {address}: {error.strerror}; choose another address, or `off`"
        raise Misuse(text) from error
    return opened


def address_of(listener: socket.socket) -> str:
    """Return the URL at which a socket answers."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def address_from(text: str) -> tuple[str, int] | None:
    """Return the host and port of an address; None for "off". Raises `Misuse` if the text is none."""
    if text == OFF:
        return None
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    number = number_outside(port)
    if not host or number is None or number >= 65536:
        raise Misuse(f'expected "HOST:PORT", a port alone, which is open to this machine, or "{OFF}"')
    return host, number
