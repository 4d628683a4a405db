"""The addresses of a host, without a wait of the event loop or of the end of the process.

asyncio looks a name up in a thread of its small pool. Access to files shares the pool, and a process that
stops waits for its threads. A resolver that does not answer may hold a thread for minutes. So each look-up
has a thread of its own here, which ends with the process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the addresses of a host, in the order in which they are to be tried. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str], error: OSError | None) -> None:
        if found.done():  # it was given up
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def look_up() -> None:
        addresses, error = list[str](), None
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(address[0]) for *_, address in answers]
        except OSError as exc:
            error = exc
        except UnicodeError as exc:  # a label of the name is empty or too long
            error = OSError(f"{host[:80]!r} is no name of a host: {exc}")
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, addresses, error)

    threading.Thread(target=look_up, name="offload-look-up", daemon=True).start()
    return await found
