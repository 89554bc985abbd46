"""One question of Nexmark on local Spark: `python -m benchmarks.nexmark.ours QUERY EVENTS [PARALLELISM]`.

Checkpoints are taken every second. `rate` is events for each second from the first record that a source reads until the
job has ended, the final checkpoint included; `work_rate` until the last row was written. `state` is the largest state
of a checkpoint, `worker` the memory of the largest worker at its peak, and `out` the number of rows of the answer.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.checked import Checked, CheckpointStats, NotedSource, Tally, noted
from benchmarks.session import bench, wait_watching_memory
from examples.nexmark.events import Events
from examples.nexmark.queries import QUERIES
from penstock import ParquetSink, Pipeline, Source

_TO_FILES = ("q10",)
"""Questions whose answer is files."""


class Rows(Tally):
    """Counts rows, and keeps none."""

    def __init__(self) -> None:
        self._rows = 0

    def take(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows

    def figures(self) -> CheckpointStats:
        return {"rows": self._rows}


class NotedEvents(Events):
    """The events, with the time of the first one noted in a directory."""

    def __init__(self, pipeline: Pipeline, count: int, splits: int, notes: str) -> None:
        super().__init__(pipeline, count, splits=splits)
        self._notes = notes

    def _source(self, kind: str, columns: tuple[str, ...]) -> Source:
        return NotedSource(super()._source(kind, columns), self._notes)


def run(name: str, events: int, parallelism: int) -> str:
    """Run it once, and say how it went in one line."""
    with bench(parallelism) as place:
        pipeline = Pipeline(f"nexmark {name}")
        counted = Checked(Rows)
        sink = ParquetSink(Path(place.notes) / "files") if name in _TO_FILES else counted
        QUERIES[name](NotedEvents(pipeline, events, parallelism, place.notes)).sink(sink, name="answer")
        began = time.time()
        job = pipeline.start(
            place.spark,
            place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=1,
            worker_silence=30,
        )
        memory = wait_watching_memory(job)
        ended = time.time()
        first = noted(place.notes, "first")[0]
        records = [record for record in job.checkpoints() if record.is_completed]
        state = max((record.state_bytes for record in records), default=0)
        out = job.status.rows_out
    if name not in _TO_FILES and out != counted.figures.get("rows", 0):
        raise SystemExit(f"WRONG: the job counts {out} rows, and {counted.figures} were committed")
    net, work = ended - first, (counted.last_at or ended) - first
    return (
        f"penstock {name} p={parallelism} events={events} rate={events / net / 1e6:.4f}M/s "
        f"work_rate={events / work / 1e6:.4f}M/s net={net:.3f}s start={first - began:.2f}s out={out} "
        f"checkpoints={len(records)} state={state / 1e6:.3f}MB worker={memory:.0f}MB counted"
    )


def main() -> None:
    name, events, *rest = sys.argv[1:]
    print(run(name, int(events), *map(int, rest or ["2"])), flush=True)


if __name__ == "__main__":
    main()
