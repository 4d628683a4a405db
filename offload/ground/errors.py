"""The errors of this framework, arranged by what the caller does next.

```text
OffloadError
├── TryAgain             nothing was committed; the same call may succeed
│   ├── Throttled        the store wants fewer requests: also send them more slowly from now on
│   └── AlreadyRunning   the same work runs already: wait for it
├── Conflict             another writer moved the root: load it again and decide again
├── Fenced               another writer holds the stream: this writer stops for good
│   └── StreamDeleted    the stream was deleted: stop, or begin a new incarnation (is also NotOffloaded)
├── OutcomeUnknown       the store may or may not have applied it: read back before retrying
├── NotOffloaded         no such stream, ledger, attempt or tier (is also a LookupError)
│   ├── BeingRebuilt     the stream has no manifest until its rebuild ends: wait
│   └── NotFound         no such object in a store
├── AlreadyExists        create-if-absent found an object; a store's answer, never a commit's verdict
├── Diverged             source and tier have different histories: a person must decide
├── Denied               a person must grant something; trying again will not help
│   ├── NoSuchKey        the key service lacks a master key
│   └── StoreDenied      the store refuses every request: also stop work on other streams
├── NoSpace              a person must make room; trying again will not help
├── Misuse               the call itself is wrong: an unknown scheme, a malformed key
├── UnsupportedFormat    written by a newer version: upgrade
└── Corrupt              stored bytes break the format; carries what, where, expected, found
    ├── Absent           a manifest names an object that is gone: damage, if the newest one names it too
    ├── RootsLost        roots of a stream are gone, and its data proves it: stop, and rebuild the manifest
    └── AnchorLost       an anchor is gone or damaged, and its objects are there: rebuild it
```

A class is added only if some caller would act differently on it. `Fenced` is not a kind of `Conflict`,
because callers that retry after a `Conflict` must not retry after `Fenced`. A backend translates its SDK's
exceptions in one place and always chains them (`raise ... from exc`).
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import Any

__all__ = [
    "Absent",
    "AlreadyExists",
    "AlreadyRunning",
    "AnchorLost",
    "BeingRebuilt",
    "Conflict",
    "Corrupt",
    "Denied",
    "Diverged",
    "Divergence",
    "Fenced",
    "Misuse",
    "NoSpace",
    "NoSuchKey",
    "NotFound",
    "NotOffloaded",
    "OffloadError",
    "OutcomeUnknown",
    "RootsLost",
    "StoreDenied",
    "StreamDeleted",
    "Throttled",
    "TryAgain",
    "UnsupportedFormat",
]


class OffloadError(Exception):
    """Any error that this framework raises on purpose. Its text is one line, written for a person.

    It can be sent between processes: pickling keeps its class, text and attributes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild the error without its constructor.

        `Exception` would call the class with `args`, which is the finished text. Most constructors here take
        other arguments and build the text from them.
        """
        return _remade, (type(self), self.args), self.__dict__


class TryAgain(OffloadError):
    """The store or the source refuses for now. No change was committed; the same call may succeed.

    If a store's mutation raises it, the mutation may still have been applied. A caller that must know reads
    the object back.
    """


class Throttled(TryAgain):
    """A `TryAgain` that asks for fewer requests. Code that bounds requests also lowers its bound."""

    def __init__(self, message: str, pause_seconds: float | None = None) -> None:
        super().__init__(message)
        self.pause_seconds = pause_seconds
        """The pause that the store asks for (Retry-After), in seconds. None if it does not ask for one."""


class AlreadyRunning(TryAgain):
    """The same work runs in this process already, and is not begun a second time. Wait until it has ended."""


class Conflict(OffloadError):
    """Another writer moved the root, and the change no longer fits. Load the root and decide again."""


class Fenced(OffloadError):
    """Another writer holds the stream, under a newer epoch. This writer stops for good, and deletes nothing.

    A new claim may take the stream back. A command makes a new claim when it is run again.
    """

    def __init__(self, message: str, *, epoch: int | None = None) -> None:
        super().__init__(message)
        self.epoch = epoch
        """The epoch of the writer that took over. None if it is not known."""


class OutcomeUnknown(OffloadError):
    """The store may or may not have applied the request. Read back before doing anything else."""


class NotOffloaded(OffloadError, LookupError):
    """The tier, stream, ledger or attempt was never offloaded, or is gone."""


class StreamDeleted(Fenced, NotOffloaded):
    """The stream was deleted, perhaps during the call. Its tombstone stays, and a new claim begins it again.

    A writer stops, as after any `Fenced`. A reader treats the stream as gone, as after any `NotOffloaded`.
    """

    def __init__(self, message: str, *, epoch: int | None = None, source_epoch: int = 0) -> None:
        super().__init__(message, epoch=epoch)
        self.source_epoch = source_epoch
        """The leader epoch that the tombstone keeps. A source with a lower one is fenced. 0: not known."""


class BeingRebuilt(NotOffloaded):
    """The stream is there, and a rebuild of its manifest has not ended: wait, or run the rebuild again."""


class NotFound(NotOffloaded):
    """A store has no object under this key."""

    def __init__(self, key: str, *, store: str = "") -> None:
        super().__init__(f"{store or 'the store'} has no object {key!r}")
        self.key = key


class AlreadyExists(OffloadError):
    """Create-if-absent found an object under the key.

    It may be the caller's own object, from an earlier request whose reply was lost.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} exists")
        self.key = key


class Divergence(StrEnum):
    """The way in which a source does not continue a stream. Only a gap and a fork are final."""

    GAP = "gap"
    """The source begins behind the end of the tier."""
    FORK = "fork"
    """The source has other data where the last chunk of the tier is."""
    BEHIND = "behind"
    """The source ends before the tier: it is a replica that lags, or its log was cut."""


class Diverged(OffloadError):
    """Source and tier have different histories of a stream. Nothing was changed; a person must decide."""

    def __init__(self, message: str, *, kind: Divergence | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        """None if two tiers were compared, or only their ends."""


class Denied(OffloadError):
    """Permission is missing, or the place is read-only. A person must change something."""


class NoSuchKey(Denied):
    """The key service has no master key of this label, or is about to destroy it."""


class StoreDenied(Denied):
    """The store refuses every request: the credentials, bucket, endpoint or machine's clock is wrong.

    It is a `Denied` that also stops a job over several streams, because every other stream would fail in the
    same way.
    """


class NoSpace(OffloadError):
    """The store is full, or over its quota. A person must make room."""


class Misuse(OffloadError, ValueError):
    """The call is wrong in every state of the store: an unknown scheme, a malformed key or name."""


class UnsupportedFormat(OffloadError):
    """The object has a version of the format that this program does not know. Upgrade to read it."""


class Corrupt(OffloadError):
    """Stored bytes break their format.

    `what` names the field or check that failed. `where` names the object or file, and `position` the byte
    within it at which the broken part begins. `expected` and `found` are the values that the check compared.
    `stream` is set if the reader knows it. `plain_position` is set in a compressed object: the byte at which
    the broken part would begin if nothing were compressed, as tables of chunks count.
    """

    def __init__(
        self,
        what: str,
        where: str,
        *,
        expected: object,
        found: object,
        position: int = 0,
        stream: str | None = None,
        plain_position: int | None = None,
    ) -> None:
        super().__init__(f"{where} at byte {position}: {what}: expected {expected}, found {found}")
        self.what = what
        self.where = where
        self.position = position
        self.expected = expected
        self.found = found
        self.stream = stream
        self.plain_position = plain_position

    def within(self, where: str, *, offset: int = 0, stream: str | None = None) -> Corrupt:
        """Return the same damage, located in object `where`. The checked bytes begin at `offset` of it."""
        return Corrupt(
            self.what,
            where,
            expected=self.expected,
            found=self.found,
            position=self.position + offset,
            stream=stream or self.stream,
            plain_position=self.plain_position,
        )


class Absent(Corrupt):
    """The object `where` is gone, and the loaded manifest names it.

    It is damage if the newest manifest names the object too. Otherwise its data was trimmed, replaced or
    deleted after the manifest was loaded, and the object has been swept since.
    """

    def __init__(self, where: str, stream: str | None = None, *, tier: str | None = None) -> None:
        """Pass `tier` only if it is known to be damage. The text then ends with the command to repair it."""
        super().__init__("object", where, expected="present", found="absent", stream=stream)
        if tier is not None and stream is not None:
            repair, rebuild = repair_command(tier, stream), rebuild_command(tier, stream)
            self.args = (f"{self.args[0]}. If it is a fragment, run: {repair}. Otherwise, run: {rebuild}",)

    def within(self, where: str, *, offset: int = 0, stream: str | None = None) -> Corrupt:
        """Return this error: it already names its object, and its stream if that is known."""
        return self


class RootsLost(Corrupt):
    """All roots of a stream's manifest are gone, or the newest are. An object proves that they existed.

    The caller must commit nothing to the stream and delete none of its objects: the lost roots may name
    objects that the remaining ones do not. `offload rebuild` rebuilds the manifest from the data.
    """

    def __init__(
        self,
        evidence: str,
        where: str,
        *,
        stream: str,
        tier: str,
        expected: int,
        found: int | None,
        begun_again: bool = False,
    ) -> None:
        """`evidence` is a clause that shows that root `expected` existed. `found` is the newest root, if any.

        `begun_again` says that, after the loss, the stream began again at root 1, and `found` belongs to that
        new life of the stream.
        """
        at_least = f"root {expected} or newer"
        super().__init__("root sequence", where, expected=at_least, found=found, stream=stream)
        lost = "all roots" if found is None else "the newest roots"
        newest = "no root is there" if found is None else f"the newest root is {found}"
        text = f"{lost} of the manifest are lost: {evidence}, but {newest}. Nothing was deleted. "
        if begun_again:
            text = f"roots are lost, and the stream was begun again: {evidence}. Nothing was deleted. "
        what_to_do = "Stop every writer and sweep of the stream, then run: "
        command = rebuild_command(tier, stream)
        self.args = (text + what_to_do + command,)

    def within(self, where: str, *, offset: int = 0, stream: str | None = None) -> Corrupt:
        """The same error: it names its object and its stream already."""
        return self


class AnchorLost(Corrupt):
    """The anchor of a stream or a tier is gone or damaged, but its objects exist.

    `offload rebuild` restores it. Without a `stream` it is that of the tier, and every command on the tier
    fails in the same way.
    """

    def __init__(
        self, where: str, *, tier: str, stream: str | None = None, damage: Corrupt | None = None
    ) -> None:
        """`damage` is what was found in its place; None if nothing was."""
        super().__init__(
            "anchor" if damage is None else damage.what,
            where,
            expected="present" if damage is None else damage.expected,
            found="absent" if damage is None else damage.found,
            stream=stream,
        )
        command = rebuild_command(tier, *([] if stream is None else [stream]))
        self.args = (f"{self.args[0]}. To restore it, run: {command}",)

    def within(self, where: str, *, offset: int = 0, stream: str | None = None) -> Corrupt:
        """The same error: it names its object and its stream already."""
        return self


def rebuild_command(*arguments: str) -> str:
    """Return the shell command that rebuilds a tier, or one stream of it: `arguments` are its operands."""
    # A stream may be named like an option, for example `-x`.
    ends_options = ["--"] if any(each.startswith("-") for each in arguments) else []
    return shlex.join(("offload", "rebuild", *ends_options, *arguments))


def repair_command(tier: str, stream: str) -> str:
    """Return the shell command that repairs a stream. PLACE is for the operator to fill in."""
    ends_options = ["--"] if stream.startswith("-") else []
    return shlex.join(("offload", "repair", "--from", "PLACE", *ends_options, tier, stream))


def _remade(kind: type[OffloadError], args: tuple[Any, ...]) -> OffloadError:
    return kind.__new__(kind, *args)
