"""Checkpoints in the driver: coordinating them, committing their output, pruning old ones, dropping a split of one."""
