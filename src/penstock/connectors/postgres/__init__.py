"""PostgreSQL tables as sources and sinks, by `psycopg`."""

from penstock.connectors.postgres.sink import PostgresSink
from penstock.connectors.postgres.source import PostgresSource

__all__ = ["PostgresSink", "PostgresSource"]
