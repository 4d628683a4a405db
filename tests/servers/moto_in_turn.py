"""moto, with conditional puts taken in turn: `python moto_in_turn.py PORT`.

moto looks whether a key is there, and stores, in two steps: of eight processes that create one key, two have
been seen to win. No store that we name as able to hold commits does that, so before moto's own application
stands a lock, for requests with `If-None-Match` alone. It is a layer of the tests; the closing table says so.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

BODY_SIZE_BYTES_MAX = 16 * 2**20
"""Of a conditional put: they are small."""


class InTurn:
    """A WSGI application before another one."""

    def __init__(self, inner: Callable[..., Iterable[bytes]]) -> None:
        self._inner = inner
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Pass on; a conditional request alone, and once its whole body is here."""
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._inner(environ, start)
        size_bytes = min(int(environ.get("CONTENT_LENGTH") or 0), BODY_SIZE_BYTES_MAX)
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(size_bytes))
        with self._turn:
            return list(self._inner(environ, start))


if __name__ == "__main__":
    application = InTurn(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
