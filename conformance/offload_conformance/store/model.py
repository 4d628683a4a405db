"""Random sequences of calls, drawn by Hypothesis, whose answers are compared with those of a dictionary.

Invariants: each example works below a prefix of its own, so it needs no cleaning up. The draws depend on the
seed alone: there is no database of examples and no deadline. No key is also a folder. Other peculiarities of
keys are tested by `keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from offload.contracts.store import Listed, ObjectStore, Span, Suffix, Upload
from offload.ground.errors import AlreadyExists, NotFound, OffloadError
from offload.store.prefix import PrefixStore
from offload.store.spans import clip
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import (
    StoreClauses,
    body_of,
    keys,
    level_like,
    listed,
)

T = TypeVar("T")

KEYS: Final = ("a-b", "a/1", "a/2/x", "a0", "é")
"""Few keys, so that calls meet on one. `-` sorts before `/`, and `0` behind it."""
PREFIXES: Final = ("", "a", "a/", "a/2", "none/", "é")
FOLDERS: Final = ("", "a/", "a/2/", "none/")
LATER_PARTS_SIZE_BYTES_MAX: Final = 2**16
"""If parts may be as small as this, an upload has up to three; else it has one, to keep requests small."""

contents = st.binary(max_size=20)
spans = st.one_of(
    st.none(), st.builds(Span, st.integers(0, 22), st.integers(0, 22)), st.builds(Suffix, st.integers(0, 22))
)


class Ongoing:
    """An upload under way.

    It is `disturbed` if its key was written meanwhile: then the store may refuse it.
    """

    def __init__(self, key: str, upload: Upload, parts: Sequence[bytes]) -> None:
        self.key, self.upload, self.parts = key, upload, parts
        self.put: set[int] = set()
        self.disturbed = False

    async def put_part(self, number: int) -> None:
        """Put a part, perhaps for the second time."""
        await self.upload.put_part(number, self.parts[number - 1])
        self.put.add(number)

    async def complete(self) -> None:
        """Put the missing parts, the last one first, then complete the upload."""
        for number in range(len(self.parts), 0, -1):
            if number not in self.put:
                await self.put_part(number)
        await self.upload.complete()


class Clients:
    """The client in use and the names of examples. One client serves many examples, one after the other."""

    def __init__(self, run: Run, open_client: Callable[[], ObjectStore]) -> None:
        self.run, self._open, self._numbers = run, open_client, count()
        self.client = open_client()

    def place(self) -> str:
        """Return a prefix that no earlier example used."""
        return f"example.{next(self._numbers):06}"

    def reopen(self) -> None:
        """Close the client and open another."""
        self.run(self.client.aclose())
        self.client = self._open()


class StoreMachine(RuleBasedStateMachine):
    """Random calls of a store, and the answers of a dictionary. A subclass binds `clients`."""

    clients: Clients

    uploads: Bundle[Ongoing] = Bundle("uploads")

    @initialize()
    def begin(self) -> None:
        """Begin with an empty prefix."""
        self.place = self.clients.place()
        self.store: ObjectStore = PrefixStore(self.clients.client, self.place)
        self.objects: dict[str, bytes] = {}
        self.ongoing: list[Ongoing] = []
        self.reopened = self.interrupted = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a call. After Ctrl-C its outcome is unknown, and the example is not judged."""
        try:
            return self.clients.run(coroutine)
        except KeyboardInterrupt:
            self.interrupted = True
            raise

    def changed(self, *changed: str) -> None:
        """Note that keys were written or deleted."""
        for each in self.ongoing:
            each.disturbed |= each.key in changed

    @rule(key=st.sampled_from(KEYS), windows=st.lists(contents.filter(bool), max_size=3))
    def put(self, key: str, windows: list[bytes]) -> None:
        """Replace an object, or store a new one."""
        self.run(self.store.put(key, body_of(*windows)))
        self.objects[key] = b"".join(windows)
        self.changed(key)

    @precondition(lambda self: self.store.capabilities.atomic_create)
    @rule(key=st.sampled_from(KEYS), data=contents)
    def create(self, key: str, data: bytes) -> None:
        """Create a key. If it exists, the store must refuse it."""
        if key in self.objects:
            with raises(AlreadyExists, f"a create of {key!r}, which exists"):
                self.run(self.store.create(key, data))
            return
        self.run(self.store.create(key, data))
        self.objects[key] = data
        self.changed(key)

    @rule(key=st.sampled_from(KEYS), span=spans)
    def get(self, key: str, span: Span | Suffix | None) -> None:
        """Read an object or a part of it."""
        if key not in self.objects:
            with raises(NotFound, f"a read of {key!r}, which is absent"):
                self.run(self.store.get(key, span))
            return
        start, end = clip(span, len(self.objects[key]))
        assert self.run(self.store.get(key, span)) == self.objects[key][start:end]

    @rule(prefix=st.sampled_from(PREFIXES), after=st.sampled_from(("", *KEYS, "a", "a/", "a/2", "zz")))
    def list(self, prefix: str, after: str) -> None:
        """List the keys: rows in order, with sizes."""
        self.rows_are_right(prefix, after)

    @rule(prefix=st.sampled_from(FOLDERS))
    def level(self, prefix: str) -> None:
        """Name the keys and folders directly below a folder. A folder without keys may be named too."""
        below = (key[len(prefix) :].partition("/") for key in self.objects if key.startswith(prefix))
        wanted = sorted({prefix + part + slash for part, slash, _ in below}, key=str.encode)
        found = self.run(level_like(self.store, prefix, wanted))
        assert found == sorted({*found}, key=str.encode)
        assert [name for name in found if name in wanted or not name.endswith("/")] == wanted

    @rule(named=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def delete(self, named: Sequence[str]) -> None:
        """Delete a batch, in which keys may be absent or named twice."""
        self.run(self.store.delete(named))
        for key in named:
            self.objects.pop(key, None)
        self.changed(*named)
        # A caller that has listed up to a key continues after it, even if the key is deleted meanwhile.
        self.rows_are_right("", after=named[0])

    @precondition(lambda self: self.store.capabilities.multipart)
    @rule(target=uploads, key=st.sampled_from(KEYS), parts=st.integers(1, 3), last=contents.filter(bool))
    def start_upload(self, key: str, parts: int, last: bytes) -> Ongoing:
        """Start an upload. It is invisible until it is complete."""
        least = max(len(last), self.store.capabilities.part_size_bytes_min)
        before = [bytes([n]) * least for n in range(1, parts)] if least <= LATER_PARTS_SIZE_BYTES_MAX else []
        upload = self.run(self.store.start_upload(key))
        self.ongoing.append(Ongoing(key, upload, [*before, last]))
        return self.ongoing[-1]

    @rule(ongoing=uploads, number=st.integers(0, 2))
    def put_part(self, ongoing: Ongoing, number: int) -> None:
        """Put any part, perhaps for the second time."""
        if ongoing in self.ongoing:
            self.run(ongoing.put_part(1 + number % len(ongoing.parts)))

    @rule(ongoing=consumes(uploads))
    def complete(self, ongoing: Ongoing) -> None:
        """Complete an upload. If its key was written meanwhile, the store may refuse it instead."""
        if ongoing not in self.ongoing:
            return
        self.ongoing.remove(ongoing)
        try:
            self.run(ongoing.complete())
        except OffloadError:
            if not ongoing.disturbed:
                raise
            self.run(ongoing.upload.abort())
            return
        self.objects[ongoing.key] = b"".join(ongoing.parts)
        self.changed(ongoing.key)
        # A create must see a completed upload, even if the store checks creates against an index of its own.
        if self.store.capabilities.atomic_create:
            self.create(ongoing.key, b"")

    @rule(ongoing=consumes(uploads))
    def abort(self, ongoing: Ongoing) -> None:
        """Abort an upload. Its key keeps its object."""
        if ongoing in self.ongoing:
            self.ongoing.remove(ongoing)
            self.run(ongoing.upload.abort())

    @precondition(lambda self: not self.reopened)
    @rule()
    def close_and_open(self) -> None:
        """Continue with another client. Unfinished uploads of the first are aborted."""
        # Uploads belong to the client that started them, and cannot be continued by the next one.
        self.forget_uploads()
        self.clients.reopen()
        self.store = PrefixStore(self.clients.client, self.place)
        self.reopened = True  # once is enough: opening a client of a distant store takes long

    def teardown(self) -> None:
        """Check at the end that every object is as it should be, and that there is no other."""
        # `begin` may have failed before the first assignment; Hypothesis calls this even then.
        if not hasattr(self, "objects") or self.interrupted:
            return
        self.forget_uploads()
        self.rows_are_right("", "")
        for key, data in self.objects.items():
            assert self.run(self.store.get(key)) == data

    def rows_are_right(self, prefix: str, after: str) -> None:
        """Compare a listing with the dictionary."""
        there = [key for key in self.objects if key.startswith(prefix) and key.encode() > after.encode()]
        wanted = sorted(there, key=str.encode)
        rows = self.run(listed(self.store, prefix, after=after, awaiting=wanted))
        if self.store.capabilities.strong_listing:
            assert rows == [Listed(key, len(self.objects[key])) for key in wanted]
        else:  # `listed` waited for the keys, but a late listing may still show an earlier size
            assert keys(rows) == wanted

    def forget_uploads(self) -> None:
        """Abort every upload under way."""
        for each in self.ongoing:
            with suppress(OffloadError):
                self.run(each.upload.abort())
        self.ongoing.clear()


class ModelClauses(StoreClauses):
    """All of the port's promises, in random sequences of calls."""

    model_examples: int = 30
    """The number of sequences of calls."""

    model_calls: int = 35
    """The largest number of calls in a sequence."""

    def test_any_calls_answer_as_a_dictionary_would(
        self, run: Run, open_client: Callable[[], ObjectStore]
    ) -> None:
        """Any calls in any order get the answers that a dictionary of bytes would give."""
        machine = type("Store", (StoreMachine,), {"clients": Clients(run, open_client)})
        drawn = settings(
            max_examples=self.model_examples,
            stateful_step_count=self.model_calls,
            database=None,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            deadline=None,
            suppress_health_check=[*HealthCheck],
        )
        run_state_machine_as_test(machine, settings=drawn)
