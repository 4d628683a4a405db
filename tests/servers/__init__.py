"""Servers that the tests run on loopback: which there are, how each is had, started, used and stopped."""

from servers.catalogue import SERVERS, Running, Server, server
from servers.places import Place
from servers.selection import servers_of

__all__ = ["SERVERS", "Place", "Running", "Server", "server", "servers_of"]
