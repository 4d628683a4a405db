"""The plugin: it declares the backend, and imports no client."""

from __future__ import annotations

from collections.abc import Sequence

from offload import Backend, Capabilities, hookimpl

CAPABILITIES = Capabilities(
    atomic_create=True,
    strong_listing=True,
    multipart=False,
    put_size_bytes_max=512 * 1024 * 1024,
    durable=False,  # the server's configuration decides that: see the README
)


@hookimpl
def offload_backends() -> Sequence[Backend]:
    """Declare Redis servers, by `redis://HOST:PORT/DATABASE/NAME`."""
    return [
        Backend(
            name="redis", schemes=("redis",), target="offload_redis.store:open_url", capabilities=CAPABILITIES
        )
    ]
