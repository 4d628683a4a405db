"""Shared code of the backends for object stores. It is no backend itself, and imports no SDK of one store."""
