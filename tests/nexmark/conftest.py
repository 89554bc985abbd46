"""The Spark session of the other tests that are run on Spark."""

from __future__ import annotations

from tests.spark.conftest import spark

__all__ = ["spark"]
