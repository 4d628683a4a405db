"""moto with puts one at a time: `python moto_in_turn.py PORT`.

moto checks if a key exists and then stores, in two steps: of eight processes that created one key, two have
won. And it answers 500 to some of the puts that replace one object at the same time. No store that we
recommend for commits does that. So a lock in front of moto's own application serializes puts. It is a layer
of the tests, and the closing table says so.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple


class InTurn:
    """A WSGI application in front of another one."""

    def __init__(self, inner: Callable[..., Iterable[bytes]]) -> None:
        self._inner = inner
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Pass requests on. Pass a put on alone, and only after its whole body has arrived."""
        if environ["REQUEST_METHOD"] != "PUT" or not environ.get("CONTENT_LENGTH"):
            return self._inner(environ, start)
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = io.BytesIO(body)
        with self._turn:
            return list(self._inner(environ, start))


if __name__ == "__main__":
    application = InTurn(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)
