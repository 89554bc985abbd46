"""Delta tables as sources and sinks, by `deltalake`, without a JVM."""

from penstock.connectors.delta.sink import DeltaSink
from penstock.connectors.delta.source import DeltaSource

__all__ = ["DeltaSink", "DeltaSource"]
