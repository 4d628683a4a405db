"""What an author means a store to do, in five states, and how that is held against what was found.

```text
says       what the store itself declares when it runs: yes or no
declared   what its author or plugin means: one of five states
found      what a probe saw
```

`COMPLAINTS` is the whole judgement: a state and a finding that it names do not fit. What works without being
declared is a failure of the declaration. Knows no pytest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import dropwhile
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.errors import Misuse

NAMES: Final = ("atomic_create", "strong_listing", "multipart", "server_checksum", "durable")
"""The capabilities that have a state. The others are limits, not abilities."""


class State(Enum):
    """What is meant of one capability. The fifth, `since`, becomes one of these when the version is known."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    NOT_YET = "not yet"
    UNKNOWN = "unknown"


SUPPORTED: Final = State.SUPPORTED
UNSUPPORTED: Final = State.UNSUPPORTED
NOT_YET: Final = State.NOT_YET
UNKNOWN: Final = State.UNKNOWN


@dataclass(frozen=True, slots=True)
class Since:
    """Supported by servers of this version and later."""

    version: str

    def __post_init__(self) -> None:
        _numbers(self.version)

    def on(self, server_version: str | None) -> State:
        """What that is on a server of this version: unknown, where the version is."""
        if server_version is None:
            return UNKNOWN
        return SUPPORTED if _numbers(server_version) >= _numbers(self.version) else UNSUPPORTED


def since(version: str) -> Since:
    """Supported from this version of the server on."""
    return Since(version)


class Finding(Enum):
    """What a probe saw."""

    WORKS = "works"
    ABSENT = "absent, as documented"
    BROKEN = "fails otherwise than documented"
    UNDECIDED = "no lack was seen"
    """All that can be known where only the lack shows: a listing that was late once is late."""


COMPLAINTS: Final[Mapping[tuple[State, Finding], str]] = {
    (SUPPORTED, Finding.ABSENT): "it is not there",
    (SUPPORTED, Finding.BROKEN): "it does not work",
    (UNSUPPORTED, Finding.WORKS): "it works: declare it",
    (UNSUPPORTED, Finding.BROKEN): "it fails otherwise than documented",
    (NOT_YET, Finding.WORKS): "it works by now: declare it",
    (NOT_YET, Finding.BROKEN): "it fails otherwise than documented",
}
"""What is wrong, where a state and a finding do not fit. All other pairs do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What is meant of each capability. Where nothing is given, what the store itself says is meant."""

    atomic_create: State | Since | None = None
    strong_listing: State | Since | None = None
    multipart: State | Since | None = None
    server_checksum: State | Since | None = None
    durable: State | Since | None = None
    server_version: str | None = None
    """Of the server that is tested. Where it is not known, neither is what `since` says."""

    def __post_init__(self) -> None:
        if self.server_version is not None:
            _numbers(self.server_version)

    @classmethod
    def of(
        cls, states: Mapping[str, str], *, stated: Capabilities | None, server_version: str | None
    ) -> Declared:
        """From the words of a plugin; what they leave out is as in `stated`. Raises `Misuse`."""
        meant: dict[str, State | Since] = {}
        if stated is not None:
            meant |= {name: plain(getattr(stated, name)) for name in NAMES}
        for name, words in states.items():
            if name not in NAMES:
                raise Misuse(f"{name!r} is no capability with a state; those are {', '.join(NAMES)}")
            meant[name] = parsed(words)
        return cls(**meant, server_version=server_version)

    def words(self, name: str) -> str:
        """What is declared of a capability, as the plugin writes it; empty where nothing is."""
        match getattr(self, name):
            case Since(version):
                return f"since {version}"
            case State() as state:
                return state.value
        return ""


def parsed(words: str) -> State | Since:
    """A state from its words: `not yet`, `since 2.3`. Raises `Misuse`."""
    kind, _, version = words.partition(" ")
    if kind == "since":
        return Since(version)
    try:
        return State(words)
    except ValueError as exc:
        known = ", ".join(state.value for state in State)
        raise Misuse(f"{words!r} is no state of a capability; those are {known} and `since VERSION`") from exc


def plain(declares: object) -> State:
    """What a yes or no means, or the name of a checksum."""
    return SUPPORTED if declares else UNSUPPORTED


def words_of(meant: Capabilities | Declared | None, name: str, *, says: bool) -> str:
    """What is declared of one capability, for messages and the report."""
    if isinstance(meant, Declared) and (words := meant.words(name)):
        return words
    return state_of(meant, name, says=says).value


def state_of(meant: Capabilities | Declared | None, name: str, *, says: bool) -> State:
    """What is meant of one capability, here and now. `says` is the word of the store itself."""
    match meant:
        case Capabilities():
            return plain(getattr(meant, name))
        case Declared():
            declared: State | Since | None = getattr(meant, name)
            if isinstance(declared, Since):
                return declared.on(meant.server_version)
            return declared or plain(says)
    return plain(says)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, in order. 2.3 and 2.3.0 are one. Raises `Misuse` where it has none."""
    numbers = [int(number) for number in re.findall(r"[0-9]{1,18}", version)]
    if not numbers:
        raise Misuse(f"{version!r} is no version: it has no number")
    return tuple(reversed([*dropwhile(lambda number: number == 0, reversed(numbers))]))
