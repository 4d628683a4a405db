"""The port to an object store, the decorators that stand before one, and a store in memory for tests."""
