"""Sound classes from which bugs are made, and helpers of the proofs."""
