"""Penstock beside its peers: the same work, on one machine, in one run."""
