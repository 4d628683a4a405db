"""The commit protocol: the sequence of roots, groups, and the changes by who makes them."""
