"""Penstock: continuous, stateful, exactly-once Python pipelines on a Spark cluster."""
