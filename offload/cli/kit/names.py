"""Names of streams in arguments: the queue's own name, or that of the stream on the tier."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.catalogue import Catalogue
from offload.ground.errors import Misuse, NotOffloaded, OffloadError
from offload.model.own_names import matches_glob, named_so, own_name
from offload.parts.whole_stream import grouped

__all__ = ["known_name", "known_names", "meant", "streams_meant"]


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


async def streams_meant(catalogue: Catalogue, stream: str) -> list[str]:
    """Return the streams that STREAM means: one, or all that a glob matches, each with its parts.

    Raises `NotOffloaded` if a glob matches none, and `Misuse` as `known_name`.
    """
    known = await catalogue.streams()
    if stream in known or not {*stream} & {*"*?["}:
        return [await known_name(catalogue, stream)]
    found = [each.name for each in await grouped(catalogue, names=known) if matches_glob(each.name, stream)]
    if not found:
        raise NotOffloaded(f"{catalogue.url} has no stream that {stream!r} matches")
    return found


def meant(streams: Sequence[str], name: str) -> str:
    """Return the one of these streams that a name means; the name itself if none of them is called so.

    Raises `Misuse` if there are several.
    """
    found = named_so(streams, name)
    if found[1:]:
        raise Misuse(f"{len(found)} streams are called {name!r}: name one of {', '.join(found)}")
    return found[0] if found else name
