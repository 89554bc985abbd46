"""The work that is measured: the records of the peers' benchmarks, and pipelines over them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import GeneratorSource, Pipeline, Sink, SinkWriter
from penstock.connectors.sink import Prepared
from penstock.ids import Generation

KEYS = 10_000
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def records(start: int, count: int) -> pa.RecordBatch:
    """Rows `start … start+count-1` of the peers' generator: an int64 key, a double, an int64."""
    number = np.arange(start, start + count, dtype=np.uint64)
    mixed = number * _GOLDEN
    key = ((mixed >> np.uint64(40)) % np.uint64(KEYS)).view(np.int64)
    value = (mixed & np.uint64(1023)).astype(np.float64)
    return pa.RecordBatch.from_arrays(
        [pa.array(key), pa.array(value), pa.array((number // np.uint64(1000)).view(np.int64))], names=["k", "v", "n"]
    )


class Discard(Sink):
    """Takes everything and keeps nothing, as the peers' sinks do."""

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return _DiscardWriter()


class _DiscardWriter(SinkWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        pass

    def prepare(self) -> Prepared:
        return _nothing


def _nothing() -> Sequence[bytes]:
    return ()


def _twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "v", pc.multiply(batch.column(1), 2.0))


def pipeline(kind: str, rows: int, parallelism: int) -> Pipeline:
    """`sum`: a running sum by key, emitted with every batch. `map`: nothing but a multiplication."""
    made = Pipeline(f"bench-{kind}")
    stream = made.source(GeneratorSource(records, rows=rows, splits=parallelism), name="source")
    if kind == "sum":
        stream.key_by("k").aggregate(total=("sum", "v"), n="count", name="sum").sink(Discard(), name="sink")
    else:
        stream.map(_twice, name="map").sink(Discard(), name="sink")
    return made


def expected_totals(rows: int) -> tuple[int, float]:
    """The number of rows and the sum over all keys, computed without any stream processor."""
    total = 0.0
    for start in range(0, rows, 1 << 20):
        total += float(records(start, min(1 << 20, rows - start)).column(1).to_numpy().sum())
    return rows, total
