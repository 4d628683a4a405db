"""Deletions: idempotent, limited to the named keys, and of any number of keys."""

from __future__ import annotations

from offload.contracts.store import Body, ObjectStore
from offload.ground.errors import NotFound
from offload_conformance.asynchronous import Run
from offload_conformance.raising import raises
from offload_conformance.store.base import DIGITS, StoreClauses, make_sure_of
from offload_conformance.store.listings import MANY

BATCH = 100
"""The number of keys that some stores delete in one request. Others take 1,000."""

EQUAL = DIGITS * 1_000
"""The bytes of several objects, long enough for a store that keeps equal bytes once."""


class DeletionClauses(StoreClauses):
    """The clauses on `delete`: it is idempotent."""

    def test_deletion_is_idempotent(self, run: Run, store: ObjectStore, other: ObjectStore) -> None:
        """Deleting absent keys, a key twice, or no key at all succeeds and deletes nothing else.

        The objects that stay keep their bytes, even if those that are deleted had the same.
        """
        for key in ("a/1", "a/2", "a/22", "b"):
            run(store.put(key, Body.of(EQUAL)))

        for _ in range(2):
            run(store.delete(["a/2", "b", "never", "a", "none/key", "b", "a/1/below", "a/22/below/it"]))
        run(store.delete([]))

        assert self.keys_in_store() == {"a/1", "a/22"}
        for key in ("a/1", "a/22"):
            make_sure_of(
                run(other.get(key)), EQUAL, f"{key!r}, after an object of the same bytes was deleted"
            )
        with raises(NotFound, "a read of a deleted key"):
            run(other.get("b"))

    def test_deletion_takes_any_number_of_keys(self, run: Run, store: ObjectStore) -> None:
        """A delete of any number of keys has deleted all of them when it returns, also the last one."""
        named = [f"many/{n:05}" for n in range(MANY)]
        there = {named[n] for n in (0, 1, 99, 100, 255, 256, 499, 500, 998, 999, 1000, 1001, MANY - 1)}
        for key in there:
            run(store.create(key, b""))
        run(store.create("many/99999", b""))

        run(store.delete(named))

        assert self.keys_in_store() == {"many/99999"}
        for count in {BATCH + 1, 1_001, min(store.capabilities.delete_batch_max or BATCH, MANY - 1) + 1}:
            run(store.create(named[count - 1], b""))
            run(store.delete(named[:count]))
            assert self.keys_in_store() == {"many/99999"}, f"after a delete of {count} keys one is left"

    def test_deletion_is_done_when_it_returns(self, run: Run, store: ObjectStore) -> None:
        """A delete of keys with special characters deletes every one of them, or raises an error."""
        named = ["a&b", "a<b>", 'a"b', "a'b", "a b", "a%20b", "a+b", "é", "\U0001f4be", "a;b", "plain"]
        for key in named:
            run(store.put(key, Body.of(b"")))

        run(store.delete(named))

        assert self.keys_in_store() == set()
