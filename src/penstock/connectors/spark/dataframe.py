"""A bounded DataFrame of Spark as a source: its rows are written once, by Spark, and read from there.

Rows of a DataFrame have no positions, and a query that runs twice may return them in another order, or others. So the
query runs once: its result is staged as Parquet files, whose rows have positions that hold. The cost is one write and
one read of all rows, and the space for them until `discard`.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from penstock.connectors.files.filesystem import LocalPlace, place_of
from penstock.connectors.files.listing import absolute
from penstock.connectors.files.source import FileSource
from penstock.errors import PipelineError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = "rows"
_COMPLETE = "_SUCCESS"
"""Spark writes this file when all tasks have committed theirs."""


class DataFrameSource(FileSource):
    """The rows of a Spark DataFrame: a table, a JDBC read, any query that ends.

    Example on Spark:

        numbers = DataFrameSource(spark.range(100), staging="/tmp/penstock/staging")
        pipeline = Pipeline("numbers")
        pipeline.source(numbers, name="numbers").sink(output, name="output")
        job = pipeline.start(spark, "/tmp/penstock/dataframe", workers=1, parallelism=1)
        assert job.wait(timeout=120) and len(output.rows()) == 100
        numbers.discard()

    `staging` is a directory, or a URL, that the driver and all executors reach, for this source alone. When the
    pipeline starts, Spark's executors write the rows there, unless a complete result lies there already: a pipeline
    that starts again goes on with the rows that it began with, and does not run the query again. To run it anew, call
    `discard`, and use a new checkpoint directory. Each file is a split, one or more for each partition of it.

    The trap: while the query runs, which is before `start` returns, the pipeline does not.
    """

    def __init__(self, df: DataFrame, *, staging: str | os.PathLike[str]) -> None:
        # A stream has no `write`, not even to be asked for.
        if not hasattr(df, "isStreaming"):
            raise PipelineError(f"DataFrameSource takes a DataFrame of Spark, not {type(df).__name__}")
        if df.isStreaming:
            raise PipelineError(
                "DataFrameSource: the DataFrame is a streaming one, which does not end: read its "
                "source with Penstock instead, for example with SparkSource"
            )
        self.staging = absolute(staging).rstrip("/")
        super().__init__(f"{self.staging}/{_ROWS}", format="parquet")
        self._df: Any = df

    def __getstate__(self) -> dict[str, Any]:
        # A DataFrame belongs to its session in the driver. Before the start nobody asks the copy for its files.
        state = super().__getstate__() if self._is_complete() else dict(vars(self))
        return {**state, "_df": None}

    def on_start(self) -> None:
        if self._is_complete():
            return
        if self._df is None:
            raise StorageError(f"{self!r}: the staged rows were removed: start with a new checkpoint directory")
        try:
            self._df.write.mode("overwrite").parquet(_for_spark(self.path))
        except Exception as error:
            # Py4J and Connect have their own classes for it; the text has a page of Java behind its first line.
            text = str(error).strip().partition("\n")[0]
            raise StorageError(f"{self!r}: Spark cannot stage the rows: {text}") from error
        self._listing = None
        if not self._is_complete():
            raise StorageError(
                f"{self!r}: Spark has written the rows, but {self.path}/{_COMPLETE} is not there: the "
                "driver and the executors must see the same directory"
            )

    def discard(self) -> None:
        """Remove the staged rows. For a pipeline that has ended: one that starts again would not find them."""
        place = place_of(self.staging)
        # The mark goes first: half a result must not look like a whole one.
        place.remove(f"{_ROWS}/{_COMPLETE}")
        for name in place.files(_ROWS):
            place.remove(name)
        if isinstance(place, LocalPlace):
            shutil.rmtree(os.path.join(place.root, _ROWS), ignore_errors=True)
        self._listing = None

    def _is_complete(self) -> bool:
        return place_of(self.path).size(_COMPLETE) is not None


def _for_spark(path: str) -> str:
    """Hadoop's name of the scheme for S3 is another."""
    return path.replace("s3://", "s3a://", 1) if path.startswith("s3://") else path
