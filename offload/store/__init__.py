"""Decorators of a store, in the order that `store.stack` fixes, and a store in memory for tests."""
