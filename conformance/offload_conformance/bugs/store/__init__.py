"""Planted bugs, in one module for each module of clauses."""
