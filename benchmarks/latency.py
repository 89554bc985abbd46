"""Latency under an open loop: `python -m benchmarks.latency PARALLELISM ROWS_PER_SECOND SECONDS WARM_UP [WAIT_MS]`.

Record number i of a source is due at a moment that is fixed before the run, whether or not the pipeline keeps up: what
waits because it does not keep up counts as latency. The work is the keyed sum with 10,000 keys and 1 s checkpoints.
Latency is measured at the sink, from that moment to the moment when the sum that has the record in it is written, after
a warm-up. Where several records of one key are in one batch, the sum is written once and its newest record counts:
`combined` is the percentage of records that do not count for this reason. Percentiles come from a histogram with steps
of 2 %.

The source hands over what is due whenever it is asked; with WAIT_MS, only when the records of so long are due.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.checked import Checked, CheckpointStats, Tally
from benchmarks.session import bench
from benchmarks.work import KEYS, records, require_equal
from penstock import Pipeline
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader

_STEP = 1.02
_BUCKETS = 1024
"""The last one is of more than ten minutes."""


class OpenLoop(Source):
    """Record i of a split is due i / rate seconds after `begins_at`; it has that moment, in µs, in its column `due`."""

    def __init__(self, splits: int, rows_per_second: float, begins_at: float, seconds: float, wait_s: float) -> None:
        self.split_count = splits
        self.rate = rows_per_second / splits
        self.begins_at = begins_at
        self.split_rows = int(self.rate * seconds)
        self.least = max(1, int(self.rate * wait_s))

    def splits(self) -> Sequence[str]:
        return [str(split) for split in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _OpenLoopReader(self, int(split), json.loads(offset) if offset else 0)

    def make(self, split: int, position: int, count: int) -> pa.RecordBatch:
        batch = records(split * self.split_rows + position, count)
        due = 1e6 * (self.begins_at + np.arange(position, position + count) / self.rate)
        return batch.append_column("due", pa.array(due.astype(np.int64)))


class _OpenLoopReader(SplitReader):
    def __init__(self, source: OpenLoop, split: int, position: int) -> None:
        self._source = source
        self._split = split
        self._position = position

    def read(self, rows_max: int) -> Any:
        source, position = self._source, self._position
        if position >= source.split_rows:
            return END_OF_SPLIT
        due = min(source.split_rows, int((time.time() - source.begins_at) * source.rate))
        count = min(rows_max, due - position)
        if count < min(source.least, rows_max, source.split_rows - position):
            return None
        self._position += count
        return source.make(self._split, position, count)

    def offset(self) -> bytes:
        return json.dumps(self._position).encode()


class Latencies(Tally):
    """A histogram of the time from when a record was due until now, and the newest count of each key."""

    def __init__(self, counted_from: float) -> None:
        self._counted_from_us = 1e6 * counted_from
        self._histogram: npt.NDArray[np.int64] = np.zeros(_BUCKETS, dtype=np.int64)
        self._counts: npt.NDArray[np.int64] = np.zeros(KEYS, dtype=np.int64)
        self._written = 0

    def take(self, batch: pa.RecordBatch) -> None:
        due = batch.column("due").to_numpy()
        self._counts[batch.column("k").to_numpy()] = batch.column("rows").to_numpy()
        self._written += batch.num_rows
        late = np.maximum(1e6 * time.time() - due[due >= self._counted_from_us], 1.0)
        bucket = np.minimum(np.log(late) / np.log(_STEP), _BUCKETS - 1).astype(np.int64)
        self._histogram += np.bincount(bucket, minlength=_BUCKETS)

    def figures(self) -> CheckpointStats:
        used = np.flatnonzero(self._histogram)
        found: CheckpointStats = {f"bucket {place}": int(self._histogram[place]) for place in used}
        return found | {"rows": int(self._counts.sum()), "written": self._written}


def percentile_ms(figures: CheckpointStats, part: float) -> float:
    """From the histogram: the upper edge of the bucket in which this part of the records is reached."""
    buckets = sorted((int(name.split()[1]), count) for name, count in figures.items() if name.startswith("bucket"))
    reached, wanted = 0.0, part * sum(count for _, count in buckets)
    for place, count in buckets:
        reached += count
        if reached >= wanted:
            return float(_STEP ** (place + 1) / 1e3)
    return float("nan")


def run(
    parallelism: int, rate: float, seconds: float, warm_up_s: float, wait_ms: float = 0.0, start_s: float = 20.0
) -> str:
    with bench(parallelism) as place:
        # The workers are up by then. If they are not, what was due before is late, and the warm-up must do.
        begins_at = time.time() + start_s
        made, sink = Pipeline("bench-latency"), Checked(functools.partial(Latencies, begins_at + warm_up_s))
        source = OpenLoop(parallelism, rate, begins_at, warm_up_s + seconds, wait_ms / 1e3)
        stream = made.source(source, name="source").key_by("k")
        stream = stream.aggregate(total=("sum", "v"), rows="count", due=("last", "due"), name="sum")
        stream.sink(sink, name="sink")
        job = made.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=1.0,
            worker_silence=30,
        )
        job.wait()
        found = sink.figures
        rows = parallelism * source.split_rows
        require_equal({"rows": found["rows"]}, {"rows": rows})
    parts = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    shown = " ".join(f"{name}={percentile_ms(found, part):.2f}ms" for name, part in parts.items())
    combined = 100 * (1 - found["written"] / rows)
    return f"penstock latency p={parallelism} rows_s={rate:.0f} {shown} combined={combined:.1f}% rows={rows} verified"


def main() -> None:
    parallelism, *rest = sys.argv[1:]
    print(run(int(parallelism), *map(float, rest)), flush=True)


if __name__ == "__main__":
    main()
