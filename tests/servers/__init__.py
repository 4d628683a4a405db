"""Servers that the tests run on loopback: which there are, how each is had, started, used and stopped."""

from servers.catalogue import SERVERS, Running, Server, server
from servers.places import Place
from servers.selection import real_servers, real_servers_of, servers_of

__all__ = ["SERVERS", "Place", "Running", "Server", "real_servers", "real_servers_of", "server", "servers_of"]
