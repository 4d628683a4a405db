"""What can go wrong, arranged by what the caller does next.

```text
OffloadError
├── TryAgain             nothing was committed; the same call may succeed
│   └── Throttled        the store wants fewer requests: also ask more slowly from now on
├── Conflict             another writer moved the root: re-read it and decide anew
├── Fenced               another writer holds the stream: this one stops, for good
│   └── StreamDeleted    the stream was deleted: stop, or begin a new incarnation (is also NotOffloaded)
├── OutcomeUnknown       the store may or may not have applied it: read back before retrying
├── NotOffloaded         no such stream, ledger, attempt or tier (is also a LookupError)
│   └── NotFound         no such object in a store
├── AlreadyExists        create-if-absent met an object; a store's answer, never a commit's verdict
├── Diverged             source and tier tell different histories: a person must decide
├── Denied               a person must grant something; trying again will not help
│   └── StoreDenied      the store refuses every request: also stop asking it about other streams
├── NoSpace              a person must make room; trying again will not help
├── Misuse               the call itself is wrong: an unknown scheme, a key that is no key
├── UnsupportedFormat    written by a newer version: upgrade
└── Corrupt              stored bytes break the format; carries what, where, expected, found
    ├── Absent           a manifest names an object that is gone: damage, unless a newer one lets go of it
    └── RootsLost        roots of a stream are gone, and its data proves it: stop, and rebuild the manifest
```

A class is added only where some caller would act differently on it. `Fenced` is no kind of
`Conflict`, or the retry loop would swallow it. A backend translates its SDK's exceptions in one
place and always chains them (`raise ... from exc`).
"""

from __future__ import annotations

import shlex
from typing import Any

__all__ = [
    "Absent",
    "AlreadyExists",
    "AnchorLost",
    "Conflict",
    "Corrupt",
    "Denied",
    "Diverged",
    "Fenced",
    "Misuse",
    "NoSpace",
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
    """Anything this framework raises on purpose. Its text is one line, fit for a person.

    It crosses processes: pickled and back it has the same class, text and attributes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Past the constructors, which take other arguments than the text they make of them."""
        return _remade, (type(self), self.args), self.__dict__


class TryAgain(OffloadError):
    """The store, or the source, refuses for now. No change was committed; the same call may succeed.

    From a store's mutation it does not say that nothing was applied: whoever must know reads back.
    """


class Throttled(TryAgain):
    """The store wants fewer requests. As `TryAgain`; whoever bounds requests also lowers the bound."""

    def __init__(self, message: str, pause_seconds: float | None = None) -> None:
        super().__init__(message)
        self.pause_seconds = pause_seconds
        """How long the store asks to be left alone (Retry-After), where it says so."""


class Conflict(OffloadError):
    """Another writer moved the root and the change no longer fits. Load it and decide anew."""


class Fenced(OffloadError):
    """Another writer holds the stream, under a newer epoch. This writer stops for good, and deletes nothing.

    A new claim may take the stream back, as a command does that is run again.
    """

    def __init__(self, message: str, *, epoch: int | None = None) -> None:
        super().__init__(message)
        self.epoch = epoch
        """The epoch that took over, where it is known."""


class OutcomeUnknown(OffloadError):
    """The store may or may not have applied the request. Read back before doing anything else."""


class NotOffloaded(OffloadError, LookupError):
    """What was asked for was never offloaded, or is gone: a tier, stream, ledger or attempt."""


class StreamDeleted(Fenced, NotOffloaded):
    """The stream was deleted, perhaps under the caller; its tombstone stays. A new claim begins it anew.

    A writer stops, as at any `Fenced`; to a reader it is gone, as with any `NotOffloaded`.
    """


class NotFound(NotOffloaded):
    """A store has no object under this key."""

    def __init__(self, key: str, *, store: str = "") -> None:
        super().__init__(f"{store or 'the store'} has no object {key!r}")
        self.key = key


class AlreadyExists(OffloadError):
    """Create-if-absent found an object under the key. It may be the caller's own, its reply lost."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object {key!r} exists")
        self.key = key


class Diverged(OffloadError):
    """Source and tier tell different histories of a stream. Nothing was changed; a person must decide."""


class Denied(OffloadError):
    """Permission is missing, or the place is read-only. A person must change something."""


class StoreDenied(Denied):
    """The store refuses whatever it is asked: the credentials, bucket, endpoint or machine's clock is wrong.

    As `Denied`. A job over several streams stops too, because every other stream would fail in the same way.
    """


class NoSpace(OffloadError):
    """The store is full, or over its quota. A person must make room."""


class Misuse(OffloadError, ValueError):
    """The call is wrong whatever the state of the store: an unknown scheme, a malformed key or name."""


class UnsupportedFormat(OffloadError):
    """Written by a version of this format that this program does not know. Upgrade to read it."""


class Corrupt(OffloadError):
    """Stored bytes break their format.

    `what` names the field or check, `where` the object or file, `position` the byte within it at
    which the broken part begins; `expected` and `found` are as the check saw them. `stream` is
    set where the reader knows it.
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
    ) -> None:
        super().__init__(f"{where} at byte {position}: {what}: expected {expected}, found {found}")
        self.what = what
        self.where = where
        self.position = position
        self.expected = expected
        self.found = found
        self.stream = stream

    def within(self, where: str, *, offset: int = 0, stream: str | None = None) -> Corrupt:
        """The same damage, named by someone who knows the object and how far into it the bytes began."""
        return Corrupt(
            self.what,
            where,
            expected=self.expected,
            found=self.found,
            position=self.position + offset,
            stream=stream or self.stream,
        )


class Absent(Corrupt):
    """The object `where` is gone, and the manifest that was looked at names it.

    It is damage if the newest manifest names the object too. Otherwise what it held was trimmed or deleted
    after the manifest was loaded, and swept since.
    """

    def __init__(self, where: str, stream: str | None = None, *, tier: str | None = None) -> None:
        """`tier` is given by whoever knows that it is damage, and says what to do."""
        super().__init__("object", where, expected="present", found="absent", stream=stream)
        if tier is not None and stream is not None:
            command = rebuild_command(tier, stream)
            self.args = (f"{self.args[0]}. Restore it from a copy of the tier, or run: {command}",)

    def within(self, where: str, *, offset: int = 0, stream: str | None = None) -> Corrupt:
        """The same error: it names its object, and its stream if that is known."""
        return self


class RootsLost(Corrupt):
    """Roots of a stream's manifest are gone, all of them or the newest. An object proves that they existed.

    Whoever meets this commits nothing to the stream and deletes nothing of it: the lost roots may name what
    the remaining ones do not. `offload rebuild` makes the manifest again from the data.
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
        """`evidence` is a sentence that shows that root `expected` existed. `found` is the newest root.

        `begun_again` says that it is of a life of the stream that began after the loss, from root 1 on.
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
    """The anchor of a stream or a tier is gone, and its objects are not. `offload rebuild` restores it."""

    def __init__(self, where: str, *, tier: str, stream: str | None = None) -> None:
        super().__init__("anchor", where, expected="present", found="absent", stream=stream)
        command = rebuild_command(tier, *([] if stream is None else [stream]))
        self.args = (f"{self.args[0]}. To restore it, run: {command}",)

    def within(self, where: str, *, offset: int = 0, stream: str | None = None) -> Corrupt:
        """The same error: it names its object and its stream already."""
        return self


def rebuild_command(*arguments: str) -> str:
    """The command line that rebuilds this tier, or this stream of it, as a shell takes it."""
    ends_options = ["--"] if any(each.startswith("-") for each in arguments) else []
    return shlex.join(("offload", "rebuild", *ends_options, *arguments))


def _remade(kind: type[OffloadError], args: tuple[Any, ...]) -> OffloadError:
    return kind.__new__(kind, *args)
