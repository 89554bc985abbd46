"""Penstock on real Spark: processes that really get killed, files that really get written."""
