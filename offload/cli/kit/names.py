"""Names of streams in arguments: the queue's own name, or that of the stream on the tier."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.catalogue import Catalogue
from offload.ground.errors import Misuse, OffloadError
from offload.model.own_names import named_so, own_name

__all__ = ["known_name", "known_names", "meant"]


async def known_name(catalogue: Catalogue, stream: str) -> str:
    """Return the stream of a tier that a person means. If there is none, return the name as it is.

    Costs a listing of the tier's streams, unless the name is that of a broker's folder. Raises `Misuse` if
    several streams have this own name.
    """
    [name] = await known_names(catalogue, [stream])
    return name


async def known_names(catalogue: Catalogue, streams: Sequence[str]) -> list[str]:
    """Return the streams that a person means, as `known_name` does, by one listing."""
    if all(own_name(each) != each for each in streams):
        return [*streams]
    try:
        found = await catalogue.streams()
    except OffloadError:  # the command finds that out too, and says more
        return [*streams]
    return [meant(found, each) for each in streams]


def meant(streams: Sequence[str], name: str) -> str:
    """Return the one of these streams that a name means; the name itself if none of them is called so.

    Raises `Misuse` if there are several.
    """
    found = named_so(streams, name)
    if found[1:]:
        raise Misuse(f"{len(found)} streams are called {name!r}: name one of {', '.join(found)}")
    return found[0] if found else name
