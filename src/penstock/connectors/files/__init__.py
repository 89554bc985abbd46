"""Files as a source: Parquet, JSON lines, CSV and text; whole, compressed, watched, and with bad input in them."""

from penstock.connectors.files.source import FileSource

__all__ = ["FileSource"]
