"""The basis map generator of the paper and its ridge regression."""
