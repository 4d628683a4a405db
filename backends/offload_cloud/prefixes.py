"""Prefixes that no key begins with. Servers answer them with various errors, so they are never sent."""

from __future__ import annotations

__all__ = ["begins_a_key"]


def begins_a_key(prefix: str) -> bool:
    """Return True if a key that the port allows can begin with `prefix`."""
    *folders, last = prefix.split("/")
    if "\0" in prefix or last.startswith("."):
        return False
    return all(folder and not folder.startswith(".") for folder in folders)
