"""Capabilities: the store's answer, the author's declaration and the finding agree (see `declared`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offload.contracts.store import ObjectStore
from offload_conformance.asynchronous import Run
from offload_conformance.declared import COMPLAINTS, NAMES, SUPPORTED, UNKNOWN, Declared, state_of, words_of
from offload_conformance.findings import FINDINGS
from offload_conformance.probes import PROBES, found_by
from offload_conformance.store.base import StoreClauses


class CapabilityClauses(StoreClauses):
    """Declared capabilities must work, and capabilities declared absent must fail as documented."""

    @pytest.fixture
    def findings(self, request: pytest.FixtureRequest) -> dict[str, dict[str, object]]:
        """Return the mapping into which a test writes its findings, for the report."""
        node: pytest.Item = request.node
        return node.stash.setdefault(FINDINGS, {})

    def test_capabilities_are_those_stated(self, store: ObjectStore) -> None:
        """The store itself declares exactly the capabilities that its author or plugin states."""
        if not isinstance(self.capabilities, Declared):
            stated, own = self.capabilities, store.capabilities
            if stated is not None and own.key_size_bytes_max < stated.key_size_bytes_max:
                stated = replace(stated, key_size_bytes_max=own.key_size_bytes_max)  # the place has a prefix
            assert stated in (None, own)
            return
        for name in NAMES:
            says = bool(getattr(store.capabilities, name))
            state = state_of(self.capabilities, name, says=says)
            words = words_of(self.capabilities, name, says=says)
            assert state is UNKNOWN or (state is SUPPORTED) == says, (
                f"{name} is declared as {words}, but the store itself says {'yes' if says else 'no'}"
            )

    @pytest.mark.parametrize("name", NAMES)
    def test_capabilities_are_as_meant(
        self,
        run: Run,
        store: ObjectStore,
        other: ObjectStore,
        findings: dict[str, dict[str, object]],
        name: str,
    ) -> None:
        """Declared capabilities work, absent ones fail as documented, and none works undeclared.

        A capability that works although it is declared absent fails this clause. One that is declared
        `unknown` is tried for the report only, without a verdict.
        """
        says = bool(getattr(store.capabilities, name))
        state = state_of(self.capabilities, name, says=says)
        words = words_of(self.capabilities, name, says=says)

        found, seen = run(found_by(PROBES[name], store, other))

        findings[name] = {"says": says, "declared": words, "found": found.value, "seen": seen}
        complaint = COMPLAINTS.get((state, found))
        assert complaint is None, f"{name} is declared as {words}, but {complaint} ({seen})"
