"""Derived indexes: they find the records of a stream by terms, and are never the truth."""
