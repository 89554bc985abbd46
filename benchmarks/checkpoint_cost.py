"""What checkpoints cost: `python -m benchmarks.checkpoint_cost PARALLELISM PAIRS [PHASE]`.

One keyed sum that runs on and on, with a checkpoint every second for PHASE seconds (1), and none for as long, in turns:
the speed of a machine that others share changes from one minute to the next by more than a checkpoint costs, so both
halves of a pair lie next to each other, and every second pair the other way round. `cost` is the median over the pairs
of what the half with checkpoints lacks, in percent; `least` and `most` are the quartiles. Rows are counted where they
are read. In the end the pipeline is drained, and every row that was read must be in the sums.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checked import Checked, CheckpointStats
from benchmarks.session import bench
from benchmarks.work import Newest, records, require_equal
from penstock import GeneratorSource, Pipeline
from penstock.connectors.source import Source, SplitReader
from penstock.spark.job import Job

_SPLIT_ROWS = 1 << 33
"""So many rows has each split: more than are read."""
_CHUNK_ROWS = 1 << 20
_WARM_UP_S = 5.0


class CountedSource(Source):
    """Another source; how many rows of each split were read stands in a file that others may look at any time."""

    def __init__(self, inner: Source, notes: str) -> None:
        self._inner = inner
        self._notes = notes

    def splits(self) -> list[str]:
        return list(self._inner.splits())

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _CountedReader(self._inner.open(split, offset), _counter(self._notes, split))


class _CountedReader(SplitReader):
    def __init__(self, inner: SplitReader, counter: Path) -> None:
        self._inner = inner
        np.zeros(1, dtype=np.int64).tofile(counter)
        self._count = np.memmap(counter, dtype=np.int64, mode="r+")

    def read(self, rows_max: int) -> Any:
        batch = self._inner.read(rows_max)
        self._count[0] += getattr(batch, "num_rows", 0)
        return batch

    def offset(self) -> bytes:
        return self._inner.offset()


def _counter(notes: str, split: str) -> Path:
    return Path(notes) / f"rows-{split.replace('/', '-')}"


def rows_read(notes: str, splits: int) -> list[int]:
    found = [_counter(notes, f"{split}/{splits}") for split in range(splits)]
    return [int(np.fromfile(path, dtype=np.int64)[0]) if path.exists() else 0 for path in found]


def expected(rows: list[int]) -> CheckpointStats:
    """Of each split the first rows, added up without any stream processor."""
    total = 0.0
    for split, count in enumerate(rows):
        for start in range(0, count, _CHUNK_ROWS):
            chunk = records(split * _SPLIT_ROWS + start, min(_CHUNK_ROWS, count - start))
            total += float(chunk.column(1).to_numpy().sum())
    return {"rows": sum(rows), "total": total}


def phase(job: Job, notes: str, splits: int, seconds: int, with_checkpoints: bool) -> float:
    """Let it run for so long; returns how many rows were read in a second."""
    began, before = time.monotonic(), sum(rows_read(notes, splits))
    for second in range(seconds):
        if with_checkpoints:
            job.checkpoint(timeout=60)
        job.wait(max(0.0, began + second + 1 - time.monotonic()))
    return (sum(rows_read(notes, splits)) - before) / (time.monotonic() - began)


def costs(job: Job, notes: str, splits: int, pairs: int, seconds: int) -> tuple[list[float], float]:
    """The cost in percent of each pair, and the rate without checkpoints in the middle of them."""
    found, rates = [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 else (False, True)
        halves = {which: phase(job, notes, splits, seconds, which) for which in order}
        found.append(100 * (1 - halves[True] / halves[False]))
        rates.append(halves[False])
    return found, statistics.median(rates)


def run(parallelism: int, pairs: int, seconds: int = 1) -> str:
    with bench(parallelism) as place:
        sink = Checked(Newest)
        made = Pipeline("bench-cost")
        inner = GeneratorSource(records, rows=parallelism * _SPLIT_ROWS, splits=parallelism)
        stream = made.source(CountedSource(inner, place.notes), name="source").key_by("k")
        stream.aggregate(total=("sum", "v"), rows="count", name="sum").sink(sink, name="sink")
        job = made.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=None,
            worker_silence=30,
        )
        while not all(rows_read(place.notes, parallelism)):
            job.wait(0.05)
        job.wait(_WARM_UP_S)
        found, rate = costs(job, place.notes, parallelism, pairs, seconds)
        job.stop(drain=True, timeout=300)
        durations = [record.duration_ms for record in job.checkpoints() if record.is_completed]
        require_equal(sink.figures, expected(rows_read(place.notes, parallelism)))
    lower, middle, upper = statistics.quantiles(found, n=4)
    return (
        f"penstock cost p={parallelism} pairs={pairs} cost={middle:.2f}% least={lower:.2f}% most={upper:.2f}% "
        f"rate={rate / 1e6:.3f}M/s p50={statistics.median(durations):.0f}ms verified"
    )


def main() -> None:
    print(run(*map(int, sys.argv[1:])), flush=True)


if __name__ == "__main__":
    main()
