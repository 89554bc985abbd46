"""Iceberg tables as sinks, by `pyiceberg`, with any of its catalogs."""

from penstock.connectors.iceberg.sink import IcebergSink

__all__ = ["IcebergSink"]
