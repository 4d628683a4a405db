"""ledger-offload."""
