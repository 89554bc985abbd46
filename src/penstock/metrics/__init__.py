"""Counters, gauges and histograms by operator and subtask; one registry per process."""
