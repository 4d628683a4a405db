"""Declarations of capabilities in five states, and their comparison with what a test finds.

```text
says       the store's own answer when it runs: yes or no
declared   the declaration of its author or plugin: one of five states
found      the finding of a probe
```

`COMPLAINTS` contains the whole judgement: it lists the pairs of a state and a finding that contradict each
other. A capability that works although it is declared absent is a wrong declaration. Knows no pytest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import dropwhile
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.ground.errors import Misuse

NAMES: Final = ("atomic_create", "strong_listing", "multipart", "server_checksum", "durable")
"""The capabilities that have a state. The others are limits, not abilities."""


class State(Enum):
    """A declared state of one capability. The fifth, `since`, becomes one of these for a known version."""

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
        """Return the state on a server of this version, or `UNKNOWN` if the version is None."""
        if server_version is None:
            return UNKNOWN
        return SUPPORTED if _numbers(server_version) >= _numbers(self.version) else UNSUPPORTED


def since(version: str) -> Since:
    """Declare a capability as supported from this version of the server on."""
    return Since(version)


class Finding(Enum):
    """The finding of a probe."""

    WORKS = "works"
    ABSENT = "absent, as documented"
    BROKEN = "fails otherwise than documented"
    UNDECIDED = "no lack was seen"
    """The best finding for a capability of which only a lack can be seen, such as a late listing."""


COMPLAINTS: Final[Mapping[tuple[State, Finding], str]] = {
    (SUPPORTED, Finding.ABSENT): "it is not there",
    (SUPPORTED, Finding.BROKEN): "it does not work",
    (UNSUPPORTED, Finding.WORKS): "it works: declare it",
    (UNSUPPORTED, Finding.BROKEN): "it fails otherwise than documented",
    (NOT_YET, Finding.WORKS): "it works by now: declare it",
    (NOT_YET, Finding.BROKEN): "it fails otherwise than documented",
}
"""The complaint for each state and finding that contradict each other. All other pairs agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The declared state of each capability. If it is None, the store's own answer is the declaration."""

    atomic_create: State | Since | None = None
    strong_listing: State | Since | None = None
    multipart: State | Since | None = None
    server_checksum: State | Since | None = None
    durable: State | Since | None = None
    server_version: str | None = None
    """The version of the tested server. If it is None, every `since` is `unknown`."""

    def __post_init__(self) -> None:
        if self.server_version is not None:
            _numbers(self.server_version)

    @classmethod
    def of(
        cls, states: Mapping[str, str], *, stated: Capabilities | None, server_version: str | None
    ) -> Declared:
        """Return the declaration of a plugin. States that it omits are as in `stated`. Raises `Misuse`."""
        meant: dict[str, State | Since] = {}
        if stated is not None:
            meant |= {name: plain(getattr(stated, name)) for name in NAMES}
        for name, words in states.items():
            if name not in NAMES:
                raise Misuse(f"{name!r} is not a capability with a state: expected one of {', '.join(NAMES)}")
            meant[name] = parsed(words)
        return cls(**meant, server_version=server_version)

    def words(self, name: str) -> str:
        """Return the declaration of a capability as a plugin writes it, or "" if there is none."""
        match getattr(self, name):
            case Since(version):
                return f"since {version}"
            case State() as state:
                return state.value
        return ""


def parsed(words: str) -> State | Since:
    """Return a state from its words, such as `not yet` or `since 2.3`. Raises `Misuse`."""
    kind, _, version = words.partition(" ")
    if kind == "since":
        return Since(version)
    try:
        return State(words)
    except ValueError as exc:
        known = ", ".join(state.value for state in State)
        raise Misuse(f"{words!r} is not a state: expected {known} or `since VERSION`") from exc


def plain(declares: object) -> State:
    """Return the state of a capability that is declared by yes or no, or by the name of a checksum."""
    return SUPPORTED if declares else UNSUPPORTED


def words_of(meant: Capabilities | Declared | None, name: str, *, says: bool) -> str:
    """Return the declaration of one capability, for messages and the report."""
    if isinstance(meant, Declared) and (words := meant.words(name)):
        return words
    return state_of(meant, name, says=says).value


def state_of(meant: Capabilities | Declared | None, name: str, *, says: bool) -> State:
    """Return the declared state of one capability. `says` is the store's own answer."""
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
    """Return the numbers of a version. 2.3 and 2.3.0 are equal. Raises `Misuse` if it has no number."""
    numbers = [int(number) for number in re.findall(r"[0-9]{1,18}", version)]
    if not numbers:
        raise Misuse(f"{version!r} is not a version: it contains no number")
    return tuple(reversed([*dropwhile(lambda number: number == 0, reversed(numbers))]))
