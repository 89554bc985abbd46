"""Avro records and Arrow columns: schemas, their evolution, and both directions a column at a time."""
