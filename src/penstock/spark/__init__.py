"""Penstock on Spark: one barrier stage per attempt, a worker in each of its tasks, everything else in the driver."""
