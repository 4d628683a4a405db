"""The kit of all tests: the world that they share, and the registry of mutants."""
