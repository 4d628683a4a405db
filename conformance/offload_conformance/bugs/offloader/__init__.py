"""Planted bugs of offloaders, in one module for each module of clauses."""
