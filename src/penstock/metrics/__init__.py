"""Counters, gauges and histograms by operator and subtask; one registry per process.

A metric is defined where it is counted: a module-level `Metric`, and an instrument of it from the registry. Nothing
else names it: it travels with the heartbeats, its totals are part of each checkpoint, and `Job.metrics` returns it.
"""
