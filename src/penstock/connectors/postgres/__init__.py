"""PostgreSQL tables as sinks, by `psycopg`."""

from penstock.connectors.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
