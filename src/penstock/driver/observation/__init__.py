"""Observation: metrics, progress, listeners and warnings. Nothing here decides anything."""
