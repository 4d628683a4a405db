"""The faults of the proxy (`servers.proxy`), and the plan that decides which request gets which.

Rules, or chance from a seed, decide once per request. Invariant: the decision depends on the seed, on the
request and on the earlier requests of its kind, and not on time or on other clients.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from servers.proxy_messages import Request


class Fault(Enum):
    """The fault of one request."""

    CUT_AFTER = "the server has answered; the client's connection ends before any byte of the reply"
    ERROR_AFTER = "the server has answered; the client gets 500 instead"
    REFUSE = "the server gets no request; the client gets 503, with Retry-After"
    PAGE = "the server gets no request; the client gets a web page with status 200"
    EMPTY = "the server gets no request; the client gets status 200 and no body"
    RESET = "half of the body, if there is one, reaches the server; then both connections are reset"
    LATE = "the client's connection ends; the server gets the whole request some time later"
    TRICKLE = "the reply's body arrives in small pieces, with pauses"
    TRUNCATE = "the reply's body ends half-way, and so does the connection"
    DEAF = "nobody reads the request's body, and nobody answers; the connection stays open"
    STALL = "the server has answered; a part of the reply arrives; then the open connection is silent"
    HANG_UP = "the whole reply arrives; then the connection ends, over TLS without close_notify"
    CUT_RECORD = "over TLS: the reply's body ends within its last record, and so does the connection"
    FLIP = "one bit in the middle of the reply's body is flipped"
    IGNORE_PRECONDITION = "the server gets the request without its create-if-absent condition"

    def fits(self, request: Request) -> bool:
        """Return True if this request can have the fault. Conditions on the reply are checked later."""
        if self is Fault.IGNORE_PRECONDITION:
            return request.creates
        return self not in _OF_BODIES or request.method == "GET"


_OF_BODIES: Final = (Fault.TRICKLE, Fault.TRUNCATE, Fault.CUT_RECORD, Fault.FLIP)


class HandshakeFault(Enum):
    """The fault of one handshake of TLS."""

    CUT = "half of the server's first message arrives; then the connection ends"
    SILENT = "the connection stays open, and the server says nothing"


@dataclass(slots=True)
class Rule:
    """Fault the requests whose method and target (path and query) match, both as shell patterns.

    `nth` counts the matching requests from 1 and picks a single one; without it all are hit.
    """

    fault: Fault
    method: str = "*"
    target: str = "*"
    nth: int | None = field(default=None, kw_only=True)
    creates: bool = field(default=False, kw_only=True)
    """True to match only requests that create if absent."""

    seconds: float | None = field(default=None, kw_only=True)
    """The time that the rule lasts, from the first matching request on."""

    matched: int = field(default=0, init=False)
    begun: float = field(default=0.0, init=False)

    def hits(self, request: Request) -> bool:
        """Count this request if it matches, and return True if it must fail."""
        if not (fnmatchcase(request.method, self.method) and fnmatchcase(request.target, self.target)):
            return False
        if (self.creates and not request.creates) or not self.fault.fits(request):
            return False
        self.matched += 1
        now = time.monotonic()
        self.begun = self.begun or now
        return self.nth in (None, self.matched) and (self.seconds is None or now - self.begun < self.seconds)


@dataclass(kw_only=True)
class Plan:
    """The plan of faults for requests. It may be changed at any time.

    Random choices depend on the seed, the request's method and target, and the number of earlier requests
    of that kind. So the faults of one client do not depend on other clients. `forget` lists names that
    differ from run to run and are ignored, such as the name of the bucket.
    """

    rules: Sequence[Rule] = ()
    chances: Mapping[Fault, float] = field(default_factory=dict)
    """The chances of faults for requests that no rule hits."""

    create_chances: Mapping[Fault, float] = field(default_factory=dict)
    """The chances for requests that create if absent, instead."""

    seed: object = 0
    forget: Sequence[str] = ()
    delay_seconds: float = 0.0
    """The delay of each request before it is sent to the server."""

    retry_after_seconds_max: int | None = 1
    """The longest pause that a refusal asks for, drawn from `retry_after_seconds_min` on. None: no pause."""

    retry_after_seconds_min: int = 0
    stall_after_bytes: int = 0
    """The number of bytes of a body before it stalls. 0: not even the reply's head is sent."""

    late_seconds: float = 0.2
    pause_seconds: float = 0.005
    """The pause between the pieces of a trickle."""

    handshakes: deque[HandshakeFault] = field(default_factory=deque)
    """The faults of the next handshakes, in this order."""

    handshake_cut_chance: float = 0.0
    """The chance that a handshake is cut, after those of `handshakes`."""

    asked: Counter[str] = field(default_factory=Counter, init=False)

    def decide_handshake(self) -> HandshakeFault | None:
        """Return the fault of the next handshake, or None."""
        if self.handshakes:
            return self.handshakes.popleft()
        self.asked["handshake"] += 1
        draw = random.Random(f"{self.seed} handshake {self.asked['handshake']}").random()
        return HandshakeFault.CUT if draw < self.handshake_cut_chance else None

    def decide(self, request: Request) -> Fault | None:
        """Return the fault of this request, or None."""
        hits = [rule.fault for rule in self.rules if rule.hits(request)]  # every rule counts the request
        if hits:
            return hits[0]
        chances = self.create_chances if request.creates and self.create_chances else self.chances
        if not chances:
            return None
        draw = self.draw(request).random()
        for fault, chance in chances.items():
            if fault.fits(request):
                if draw < chance:
                    return fault
                draw -= chance
        return None

    def draw(self, request: Request) -> random.Random:
        """Draw the fault of this request by chance."""
        name = f"{request.method} {request.target}"
        for forgotten in self.forget:
            name = name.replace(forgotten, "")
        self.asked[name] += 1
        return random.Random(f"{self.seed} {name} {self.asked[name]}")
