"""A folder of a POSIX file system as an object store."""

from offload_posix.store import PosixStore

__all__ = ["PosixStore"]
