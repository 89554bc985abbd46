"""Checkpoints back to back: `python -m benchmarks.backpressure MODE PARALLELISM SECONDS [WARM_UP]`.

source → rebalance → map → rebalance → a sink that spins 200 µs for each row; rows of 1 KiB. MODE is `aligned`,
`unaligned`, or `timeout` (aligned until a barrier is 1 ms old). A checkpoint is triggered as soon as the one before is
complete: the interval is 1 ms, and there is one at a time. After a warm-up, those that are triggered within SECONDS and
complete are counted; their duration is from the trigger until the manifest is durable, as the engine has noted it.
Then the pipeline is drained, and every row that was read must have come out once.
"""

from __future__ import annotations

import functools
import math
import sys
import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.checked import Checked, CheckpointStats, Tally
from benchmarks.session import bench
from benchmarks.work import require_equal
from penstock import GeneratorSource, Pipeline
from penstock.protocol.history import CheckpointRecord
from penstock.spark.job import Job

ROW_BYTES = 1024
_PAYLOAD = pa.binary(ROW_BYTES - 8)
_SPLIT_ROWS = 1 << 40
"""So many rows has each split: the number of a row says which split it is of, and which row in there."""
_MODES: dict[str, dict[str, object]] = {
    "aligned": {"checkpoint_mode": "aligned"},
    "unaligned": {"checkpoint_mode": "unaligned"},
    "timeout": {"checkpoint_mode": "aligned-with-timeout", "alignment_timeout": 0.001},
}


def rows_of_a_kib(start: int, count: int) -> pa.RecordBatch:
    zeros = pa.py_buffer(bytes(count * (ROW_BYTES - 8)))
    payload = pa.FixedSizeBinaryArray.from_buffers(_PAYLOAD, count, [None, zeros])
    number = pa.array(np.arange(start, start + count))
    return pa.RecordBatch.from_arrays([number, payload], names=["number", "payload"])


def unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Spinning(Tally):
    """Spins for each row, and counts the rows of each split and their numbers."""

    def __init__(self, splits: int, spin_ns: int) -> None:
        self._spin_ns = spin_ns
        self._rows: npt.NDArray[np.int64] = np.zeros(splits, dtype=np.int64)
        self._sum = self._rows.copy()

    def take(self, batch: pa.RecordBatch) -> None:
        split, number = np.divmod(batch.column(0).to_numpy(), _SPLIT_ROWS)
        np.add.at(self._rows, split, 1)
        np.add.at(self._sum, split, number)
        clock = time.perf_counter_ns
        for _ in range(batch.num_rows):
            until = clock() + self._spin_ns
            while clock() < until:
                pass

    def figures(self) -> CheckpointStats:
        names = [(f"rows {split}", f"sum {split}") for split in range(len(self._rows))]
        sums = zip(names, self._rows.tolist(), self._sum.tolist(), strict=True)
        return {name: value for pair, *values in sums for name, value in zip(pair, values, strict=True)}


def pipeline(parallelism: int, spin_ns: int, notes: str) -> tuple[Pipeline, Checked]:
    # As the peer's: a sink that has nothing to commit.
    made = Pipeline("bench-backpressure")
    sink = Checked(functools.partial(Spinning, parallelism, spin_ns), notes, at_close=True)
    source = GeneratorSource(rows_of_a_kib, rows=parallelism * _SPLIT_ROWS, splits=parallelism)
    stream = made.source(source, name="source").rebalance().map(unchanged, name="map").rebalance()
    stream.sink(sink, name="sink")
    return made, sink


def verify(found: CheckpointStats, parallelism: int) -> int:
    """Of each split the first rows must have come, each once: n rows whose numbers add up to 0 + … + n-1."""
    rows = 0
    for split in range(parallelism):
        count = int(found[f"rows {split}"])
        require_equal({f"sum {split}": found[f"sum {split}"]}, {f"sum {split}": count * (count - 1) // 2})
        rows += count
    return rows


def watch(job: Job, warm_up_s: float, seconds: float) -> tuple[list[CheckpointRecord], float]:
    """The attempts that were triggered within `seconds` after the warm-up, and how long that was."""
    if job.wait(warm_up_s):
        raise SystemExit("the pipeline ended by itself, which it should not have")
    before = max((record.checkpoint for record in job.checkpoints()), default=0)
    found: dict[int, CheckpointRecord] = {}
    began = time.monotonic()
    while (took := time.monotonic() - began) < seconds:
        # The history is bounded: look often enough to miss nothing.
        job.wait(0.05)
        found.update((record.checkpoint, record) for record in job.checkpoints() if record.checkpoint > before)
    return list(found.values()), took


def percentile(values: list[float], part: float) -> float:
    """The same as the peers': the value at this part of the sorted list."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else math.nan


def run(mode: str, parallelism: int, seconds: float, warm_up_s: float = 10.0, spin_ns: int = 200_000) -> str:
    with bench(parallelism) as place:
        made, sink = pipeline(parallelism, spin_ns, place.notes)
        job = made.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=0.001,
            worker_silence=60,
            **_MODES[mode],
        )
        while not job.status.rows_out:
            job.wait(0.05)
        attempts, took = watch(job, warm_up_s, seconds)
        status = job.status
        job.stop(drain=True, timeout=300)
        rows = verify(sink.figures, parallelism)
    done = [record for record in attempts if record.is_completed]
    times = [float(record.duration_ms) for record in done]
    middle = [percentile([float(value) for value in values], 0.5) for values in zip(*map(_parts, done), strict=True)]
    delay, alignment, synchronous, asynchronous, inflight = middle or [math.nan] * 5
    return (
        f"penstock mode={mode} p={parallelism} ops={len(done) / took:.2f}/s p50={percentile(times, 0.5):.2f}ms "
        f"p99={percentile(times, 0.99):.2f}ms n={len(done)} declined={len(attempts) - len(done)} "
        f"unaligned={sum(record.is_unaligned for record in done)} delay={delay:.0f}ms alignment={alignment:.0f}ms "
        f"sync={synchronous:.0f}ms async={asynchronous:.0f}ms inflight={inflight / 1e6:.2f}MB "
        f"backpressure={status.backpressure_percent}% rows={rows} verified"
    )


def _parts(record: CheckpointRecord) -> tuple[int, int, int, int, int]:
    times = record.start_delay_ms, record.alignment_ms, record.synchronous_ms, record.asynchronous_ms
    return *times, record.inflight_bytes


def main() -> None:
    mode, parallelism, seconds, *warm_up = sys.argv[1:]
    print(run(mode, int(parallelism), float(seconds), *map(float, warm_up)), flush=True)


if __name__ == "__main__":
    main()
