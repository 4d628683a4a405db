"""The servers that tests run on loopback: this package installs, starts, uses and stops them."""

from servers.catalogue import SERVERS, Running, Server, server
from servers.places import Place
from servers.selection import one_server_of, servers, servers_at_risk, servers_of

__all__ = [
    "SERVERS",
    "Place",
    "Running",
    "Server",
    "one_server_of",
    "server",
    "servers",
    "servers_at_risk",
    "servers_of",
]
