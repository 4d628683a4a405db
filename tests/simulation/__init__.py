"""A deterministic simulation of a tier's whole life: one seed, one history. See `world` for its parts."""
