"""Planted bugs of stores, in one module for each module of clauses."""
