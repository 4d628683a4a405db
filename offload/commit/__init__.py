"""The commit protocol: the sequence of roots, groups, and the changes, in one module for each author."""
