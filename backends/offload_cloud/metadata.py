"""The metadata of one object beside the constant one of a store's options, which all fragments get."""

from __future__ import annotations

from collections.abc import Mapping

from offload.contracts.object_metadata import metadata_size

__all__ = ["beside", "left_for_metadata"]


def left_for_metadata(size_bytes_max: int, constant: Mapping[str, str]) -> int:
    """Return the size that the store's limit leaves to each object; 0 if the constant fills it."""
    return max(size_bytes_max - metadata_size(constant), 0)


def beside(metadata: Mapping[str, str], constant: Mapping[str, str]) -> dict[str, str]:
    """Return both. If a name is in both, in any case, the object's own value counts."""
    others = {name: value for name, value in constant.items() if name.lower() not in metadata}
    return {**others, **metadata}
