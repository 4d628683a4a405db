"""From a `file://` URL, or a plain path, to a store.

`file:///srv/tier` is absolute; `file://./tier`, `./tier` and `tier` are relative to the working
folder. `%XX` is decoded in a URL, and not in a plain path.
"""

from __future__ import annotations

from urllib.parse import unquote

from offload.ground.errors import Misuse
from offload_posix.store import PosixStore


def open_url(url: str) -> PosixStore:
    """Return the store that a URL or path names. Raises `Misuse` if it names none."""
    path = url
    if url.lower().startswith("file://"):
        path = unquote(url[len("file://") :])
        if path.startswith("localhost/"):
            path = path.removeprefix("localhost")
    if not path or "\0" in path:
        raise Misuse(f"{url!r} names no folder")
    return PosixStore(root=path)
