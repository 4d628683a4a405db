"""The answers of a RabbitMQ broker, as a client understands them: refusals, and the leader of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offload.ground.errors import Corrupt, Denied, Misuse, NotOffloaded, OffloadError, TryAgain
from offload_rabbitmq.stream_frames import Code, Frame

_REFUSALS: Final[dict[int, tuple[type[OffloadError], str]]] = {
    Code.OK: (TryAgain, "it gives no reason"),
    Code.NO_STREAM: (NotOffloaded, "it has no such stream"),
    Code.STREAM_EXISTS: (OffloadError, "the stream exists"),
    Code.STREAM_NOT_AVAILABLE: (TryAgain, "the stream has no leader now"),
    Code.NO_MECHANISM: (Denied, "it does not offer a login by name and password"),
    Code.AUTHENTICATION_FAILED: (Denied, "the user or the password is wrong"),
    Code.SASL_ERROR: (Denied, "the login failed"),
    Code.ONLY_LOOPBACK: (Denied, "this user may log in only from the broker's own machine"),
    Code.NO_VIRTUAL_HOST: (Denied, "the user may not use this virtual host, or there is no such host"),
    Code.UNKNOWN_FRAME: (OffloadError, "it does not know the command"),
    Code.FRAME_TOO_LARGE: (
        Misuse,
        "a message is larger than its frames: raise stream.frame_max in its configuration",
    ),
    Code.INTERNAL_ERROR: (TryAgain, "an internal error"),
    Code.ACCESS_REFUSED: (
        Denied,
        "the user may not do this: grant the permission read, and for a restore also configure and write",
    ),
    Code.PRECONDITION_FAILED: (Misuse, "the arguments contradict those of the existing stream"),
    Code.NO_PUBLISHER: (TryAgain, "it no longer knows the publisher, because the stream's leader moved"),
}
"""The codes of a refusal: the error class, and the reason as a clause."""


def refusal(code: int, doing: str, where: str) -> OffloadError:
    """Return the error for a response code."""
    kind, reason = _REFUSALS.get(code, (OffloadError, "an unknown reason"))
    return kind(f"{where} refused to {doing}: {reason} (code {code})")


def moved(update: Frame, stream: str, where: str) -> TryAgain | None:
    """Return the error for a `METADATA_UPDATE` if it is about `stream`, else None.

    The broker has then ended all publishers and subscriptions of the stream without another word.
    """
    if update["stream"] != stream:
        return None
    return TryAgain(f"{where}: the leader of stream {stream!r} moved, or the stream was deleted")


@dataclass(frozen=True, slots=True)
class Leader:
    """The address of a node, as the broker tells it to clients."""

    host: str
    port: int


def leader_of(metadata: Frame, stream: str, where: str) -> Leader:
    """Return the leader of `stream` from a response to `METADATA`. Raises the error of the stream's code."""
    nodes = {reference: Leader(host, port) for reference, host, port in metadata["nodes"]}
    for name, code, reference, _ in metadata["streams"]:
        if name != stream:
            continue
        if code != Code.OK:
            raise refusal(code, f"use stream {stream!r}", where)
        if reference not in nodes:
            raise TryAgain(f"{where}: stream {stream!r} has no leader now")
        return nodes[reference]
    raise Corrupt("metadata of the broker", where, expected=f"stream {stream!r}", found="other streams")
