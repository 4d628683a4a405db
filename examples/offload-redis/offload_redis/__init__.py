"""A backend of ledger-offload for redis:// URLs. `plugin` declares it, `store` has the code."""
