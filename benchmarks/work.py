"""The work that is measured: the records of the peers' benchmarks, and pipelines over them.

What comes out is checked in every benchmark: sinks add up what they are given, hand the figures over as committables,
and the driver compares them with what must come out. A fast wrong answer is a failure.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.checked import Checked, CheckpointStats, NotedSource, Tally
from penstock import GeneratorSource, Pipeline
from penstock.connectors.source import Source
from penstock.exchange.codec import decode_batches
from penstock.protocol.manifest import Manifest, StateKind
from penstock.storage import open_store, paths
from penstock.storage.blob import read_segment
from penstock.storage.directory import Directory

KEYS = 10_000
ROWS = 20_000_000
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CHUNK_ROWS = 1 << 20


class WrongAnswer(Exception):
    """What came out is not what must come out."""


def records(start: int, count: int, keys: int = KEYS) -> pa.RecordBatch:
    """Rows `start … start+count-1` of the peers' generator: an int64 key, a double, and an int64 of event time."""
    number = np.arange(start, start + count, dtype=np.uint64)
    mixed = number * _GOLDEN
    key = ((mixed >> np.uint64(40)) % np.uint64(keys)).view(np.int64)
    value = (mixed & np.uint64(1023)).astype(np.float64)
    return pa.RecordBatch.from_arrays(
        [pa.array(key), pa.array(value), pa.array((number // np.uint64(1000)).view(np.int64))], names=["k", "v", "n"]
    )


def expected_totals(rows: int) -> CheckpointStats:
    """The number of rows and the sum of the values, computed without any stream processor."""
    total = 0.0
    for start in range(0, rows, _CHUNK_ROWS):
        total += float(records(start, min(_CHUNK_ROWS, rows - start)).column(1).to_numpy().sum())
    return {"rows": rows, "total": total}


# --- what the sinks add up ---


class Sums(Tally):
    """Rows, and the sum of a column; rows that stand for several say for how many in the column `counted`."""

    def __init__(self, column: str, counted: str | None = None) -> None:
        self._column = column
        self._counted = counted
        self._rows = 0
        self._total = 0.0

    def take(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows if self._counted is None else pc.sum(batch.column(self._counted)).as_py()
        self._total += pc.sum(batch.column(self._column)).as_py()

    def figures(self) -> CheckpointStats:
        return {"rows": self._rows, "total": self._total}


class Newest(Tally):
    """The newest value of each key, of running sums and counts."""

    def __init__(self, keys: int = KEYS) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(keys, dtype=np.int64)
        self._totals: npt.NDArray[np.float64] = np.zeros(keys)

    def take(self, batch: pa.RecordBatch) -> None:
        key = batch.column("k").to_numpy()
        self._counts[key] = batch.column("rows").to_numpy()
        self._totals[key] = batch.column("total").to_numpy()

    def figures(self) -> CheckpointStats:
        return {"rows": int(self._counts.sum()), "total": float(self._totals.sum())}


class NewestSums(Tally):
    """The newest sum `v` of each key."""

    def __init__(self, keys: int) -> None:
        self._totals: npt.NDArray[np.float64] = np.zeros(keys)

    def take(self, batch: pa.RecordBatch) -> None:
        self._totals[batch.column("k").to_numpy()] = batch.column("v").to_numpy()

    def figures(self) -> CheckpointStats:
        return {"total": float(self._totals.sum())}


# --- pipelines ---


def _twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "v", pc.multiply(batch.column(1), 2.0))


def source_of(rows: int, splits: int, notes: str, keys: int = KEYS) -> Source:
    """The records; when they were read for the first and for the last time is noted in the directory `notes`."""
    make = functools.partial(records, keys=keys)
    return NotedSource(GeneratorSource(make, rows=rows, splits=splits), notes)


def pipeline(kind: str, rows: int, splits: int, notes: str) -> tuple[Pipeline, Checked]:
    """`sum`: a running sum by key. `window`: one for each second of event time. `map`: a multiplication, no more."""
    made = Pipeline(f"bench-{kind}")
    stream = made.source(source_of(rows, splits, notes), name="source")
    if kind == "sum":
        sink = Checked(Newest)
        stream = stream.key_by("k").aggregate(total=("sum", "v"), rows="count", name="sum")
    elif kind == "window":
        sink = Checked(functools.partial(Sums, "total", "rows"))
        timed = stream.with_watermark("n", 0, name="time").key_by("k")
        stream = timed.window("1 s").aggregate(total=("sum", "v"), rows="count", name="window")
    else:
        sink = Checked(functools.partial(Sums, "v"))
        stream = stream.map(_twice, name="map")
    stream.sink(sink, name="sink")
    return made, sink


def verify(kind: str, rows: int, found: CheckpointStats) -> None:
    """Raises `WrongAnswer` unless the sinks of `pipeline` have got all that they must."""
    expected = expected_totals(rows)
    if kind == "map":
        expected["total"] *= 2
    require_equal(found, expected)


def require_equal(found: CheckpointStats, expected: CheckpointStats) -> None:
    if found != expected:
        raise WrongAnswer(f"WRONG: {found} came out, and not {expected}")


def keyed_totals(checkpoints: str) -> CheckpointStats:
    """The count and the sum over all keys, as the newest checkpoint of a directory has them in its state."""
    store = open_store(checkpoints)
    directory = Directory(store)
    manifest = directory.manifest_or_tombstone(directory.ids(paths.PathKind.MANIFEST)[-1])
    if not isinstance(manifest, Manifest):
        raise WrongAnswer("the newest checkpoint is void")
    rows, total, groups = 0, 0.0, 0
    for state in (state for report in manifest.reports for state in report.states if state.kind is StateKind.KEYED):
        for batch in decode_batches(read_segment(store, state.segment)):
            value = batch.column("value")
            groups += batch.num_rows
            rows += pc.sum(value.field("count(*)")).as_py()
            total += pc.sum(value.field("sum(v)")).as_py()
    return {"rows": rows, "total": total, "groups": groups}
