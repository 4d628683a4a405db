"""The conformance suite on a Redis server: the contract of a store and, as a tier, that of an offloader."""

import os

from offload_conformance import StoreBackend
from offload_redis.store import open_url
from redis import Redis

SERVER = os.environ.get("OFFLOAD_REDIS", "redis://127.0.0.1:6379/0")


class TestRedis(StoreBackend):
    def open_backend(self):
        return open_url(f"{SERVER}/{self.name}")

    def keys_in_store(self):
        with Redis.from_url(SERVER) as server:
            return {key.decode().partition(":object:")[2] for key in server.keys(f"{self.name}:object:*")}
