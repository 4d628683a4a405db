"""The health of a process that follows streams: what its routes and its operators want to know.

Everything here is read from memory. No request is sent to a store or a source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Protocol

from offload.follow.dispatcher import Dispatcher
from offload.follow.rules import FollowState, FollowStatus, Wait
from offload.follow.vouched import VouchedSource
from offload.ground.errors import OffloadError
from offload.model.own_names import labels_of, own_name, with_own_names
from offload.model.position import iso_of
from offload.service.upkeep import Upkeep

__all__ = ["NO_ADVICE", "Advises", "Health", "ShownHealth"]

WAITS: Final = {
    Wait.MORE: "for more records",
    Wait.BROKER: "until the broker has committed it, or `hold_back` is over",
    Wait.TURN: "for the copies of other streams",
    Wait.COPY: "for the copy that is under way",
    Wait.RESUME: "until a person resumes it",
    Wait.LEADER: "for the leading process; this one takes over if nothing is committed for `takeover`",
}
"""The cause for which the oldest record waits, in words. An error says it itself."""


class Advises(Protocol):
    """Knows what to run, and what to read, after an error. The texts are ends of lines, or empty."""

    def of(self, stream: str, error: OffloadError | None) -> str:
        """Return it for a stream: after an error, or without one because it is late."""

    def of_source(self) -> str:
        """Return it for a source whose streams cannot be listed."""


class _Silent:
    def of(self, stream: str, error: OffloadError | None) -> str:
        return ""

    def of_source(self) -> str:
        return ""


NO_ADVICE: Final[Advises] = _Silent()
"""Advises nothing, for a process that nobody started by a command line."""


class ShownHealth(Protocol):
    """The health of a process, as the routes show it. `Health` documents the methods."""

    def problems(self) -> list[str]:
        """Return a line for each reason to call the process not ready."""

    def notes(self) -> list[str]:
        """Return lines that ask for nothing."""

    def summary(self) -> str:
        """Return a sentence on what the process does."""

    def as_json(self) -> dict[str, Any]:
        """Return everything for `/status`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a process, from its own memory."""

    dispatchers: list[Dispatcher]
    upkeep: Upkeep | None = None
    advice: Advises = NO_ADVICE

    @property
    def asked(self) -> list[VouchedSource]:
        """The sources whose broker is asked."""
        return [each.source for each in self.dispatchers if isinstance(each.source, VouchedSource)]

    def statuses(self) -> list[FollowStatus]:
        """Return the statuses of all streams, in order of names."""
        found = (status for each in self.dispatchers for status in each.statuses)
        return sorted(found, key=lambda status: status.stream)

    def lost_tails(self) -> dict[str, int]:
        """Return how many of their last records streams lack that were deleted before these were copied."""
        return {name: lost for each in self.dispatchers for name, lost in sorted(each.lost_tails.items())}

    def problems(self) -> list[str]:
        """Return a line for each reason to call the process not ready. Names cannot break a line."""
        found = [
            *self.lost_sources(),
            *(line + self._next(status) for status in self.statuses() for line in _problem(status)),
        ]
        return self._shown(found)

    def notes(self) -> list[str]:
        """Return lines that ask for nothing: the process may still be ready.

        One for each kind of error that is tried again, from the first failed try on, one for each stream
        that a person has paused, and one if nobody has looked at some streams yet.
        """
        held = [status for status in self.statuses() if status.waits is Wait.RESUME]
        found: dict[type, list[FollowStatus]] = {}
        for status in self.statuses():
            if status.waits is Wait.RETRY:
                found.setdefault(type(status.error), []).append(status)
        retried = [_retried(each) + self._next(each[0]) for each in found.values()]
        return self._shown([*retried, *map(_held, held), *self._unseen()])

    def _unseen(self) -> Iterator[str]:
        """Yield a line about what is not known yet. That nothing is late may be for this reason alone."""
        unseen = [each for each in self.statuses() if each.lag_records is None and each.waits is Wait.NOTHING]
        if unseen:
            more = f" (and {len(unseen) - 1} more)" if unseen[1:] else ""
            yield f"stream {unseen[0].stream!r}{more}: its lag is not known, because nobody has looked yet"

    def _next(self, status: FollowStatus) -> str:
        return self.advice.of(status.stream, status.error)

    def labels(self) -> dict[str, str]:
        """Return the name by which each stream is shown."""
        return labels_of(status.stream for status in self.statuses())

    def _shown(self, lines: list[str]) -> list[str]:
        labels = self.labels()
        return [_printable(with_own_names(line, labels)) for line in lines]

    def summary(self) -> str:
        """Return a sentence on what this process leads. A standby says that it stands by."""
        states = [status.state for status in self.statuses()]
        if not states:
            return "no stream to follow yet"
        leads = states.count(FollowState.LEADING)
        stands_by = states.count(FollowState.STANDBY)
        return f"leads {leads} of {len(states)} streams, stands by for {stands_by}"

    def as_json(self) -> dict[str, Any]:
        """Return everything for `/status`."""
        problems, labels = self.problems(), self.labels()
        return {
            "version": version("ledger-offload"),
            "ready": not problems,
            "summary": self.summary(),
            "problems": problems,
            "notes": self.notes(),
            "streams": [self._row(status, labels) for status in self.statuses()],
            "lost_tails": self.lost_tails(),
            "brokers": [broker_as_json(each) for each in self.asked],
            "upkeep": [] if self.upkeep is None else self.upkeep.as_json(),
        }

    def _row(self, status: FollowStatus, labels: dict[str, str]) -> dict[str, Any]:
        said = "" if status.error is None else self._next(status).removeprefix("; ")
        return status_as_json(status) | {"name": labels[status.stream], "next": said or None}

    def lost_sources(self) -> list[str]:
        """Return a line for each source whose streams cannot be listed."""
        lost = [(each.source.url, each.error) for each in self.dispatchers if each.error is not None]
        return [f"source {url}: {error}{self.advice.of_source()}" for url, error in lost]


def status_as_json(status: FollowStatus) -> dict[str, Any]:
    """Return what is known of one stream, for programs."""
    return {
        "stream": status.stream,
        "state": status.state.value,
        "late": status.is_late,
        "lag_records": status.lag_records,
        "lag_seconds": None if status.lag_seconds is None else round(status.lag_seconds, 3),
        "alarm_seconds": status.alarm_seconds,
        "source_next_offset": status.source_next_offset,
        "dispatched_offset": status.dispatched_offset,
        "committed_offset": status.committed_offset,
        "waits": status.waits.value,
        "waits_since": iso_of(status.waits_since_ms) if status.waits_since_ms else None,
        "gaps": status.gaps,
        "lost_records": status.lost_records,
        "error": None if status.error is None else str(status.error),
    }


def broker_as_json(source: VouchedSource) -> dict[str, Any]:
    """Return what is known of a broker, for programs."""
    error = source.broker.error
    return {
        "url": source.broker.url,
        "answers": error is None,
        "error": None if error is None else str(error),
        "held_back": source.held_back,
    }


def _problem(status: FollowStatus) -> Iterator[str]:
    if status.is_stopped:
        yield f"stream {status.stream!r} is paused: {status.error}"
    if status.is_behind:
        source, tier = status.source_next_offset, status.committed_offset
        ends = f"its source ends at offset {source}, but the tier holds it up to {tier}"
        why = "the source was cut, or is a replica that lags"
        yield f"stream {status.stream!r} cannot be copied: {ends}; {why}"
    elif status.is_late:
        yield f"stream {status.stream!r} is late: {_lag(status)}{_waiting(status)}"


def _lag(status: FollowStatus) -> str:
    alarm = f"the alarm is at {status.alarm_seconds:.0f} s"
    if status.lag_seconds is None:
        return f"its lag is not known, it has waited here for {status.waited_seconds:.0f} s, and {alarm}"
    return f"its oldest record that is not on the tier is {status.lag_seconds:.0f} s old, and {alarm}"


def _waiting(status: FollowStatus) -> str:
    if status.waits is Wait.RETRY:
        return f"; tried again since {iso_of(status.waits_since_ms)}: {status.error}"
    if (what := WAITS.get(status.waits)) is None:
        return ""
    return f"; it waits since {iso_of(status.waits_since_ms)} {what}"


def _retried(statuses: list[FollowStatus]) -> str:
    """Return a line about streams that wait for the next try after errors of one class."""
    first = min(statuses, key=lambda status: status.waits_since_ms)
    more = f" (and {len(statuses) - 1} more)" if statuses[1:] else ""
    return f"stream {first.stream!r}{more} is tried again since {iso_of(first.waits_since_ms)}: {first.error}"


def _held(status: FollowStatus) -> str:
    since = iso_of(status.waits_since_ms)
    command = f"offload ctl resume {own_name(status.stream)}"
    return f"stream {status.stream!r} was paused by a person at {since}: {command}"


def _printable(text: str) -> str:
    """Escape what a terminal would obey, and characters that have no bytes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
