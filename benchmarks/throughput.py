"""Rows per second on bounded input: `python -m benchmarks.throughput sum|window|map PARALLELISM ROWS [INTERVAL]`.

`net` is from the first record that a source reads until the job has ended, the final checkpoint included; `work` is
from the same moment until the last record was written, and `tail` is the rest: the final checkpoint and the end of the
Spark job. `start` is from `start()` to the first record, on a session that has run nothing before. The peers' figures of
the same names mean the same. An INTERVAL of `none` is without checkpoints, but for the final one.
"""

from __future__ import annotations

import sys
import time

from benchmarks.checked import noted
from benchmarks.session import bench, wait_watching_memory
from benchmarks.work import pipeline, verify


def run(kind: str, parallelism: int, rows: int, interval: float | None = 1.0, slots: int | None = None) -> str:
    """Run it once, verify the answer, and say how it went in one line."""
    with bench(slots or parallelism) as place:
        made, sink = pipeline(kind, rows, parallelism, place.notes)
        began = time.time()
        job = made.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=interval,
            worker_silence=30,
        )
        memory = wait_watching_memory(job)
        ended = time.time()
        verify(kind, rows, sink.figures)
        first = noted(place.notes, "first")[0]
        net, work = ended - first, sink.last_at - first
        done = [record for record in job.checkpoints() if record.reason is None]
    return (
        f"penstock {kind} p={parallelism} rows={rows} rate={rows / net / 1e6:.3f}M/s net={net:.3f}s work={work:.3f}s "
        f"tail={net - work:.3f}s work_rate={rows / work / 1e6:.3f}M/s start={first - began:.2f}s "
        f"checkpoints={len(done)} worker={memory:.0f}MB verified"
    )


def main() -> None:
    kind, parallelism, rows, *rest = sys.argv[1:]
    interval = None if rest == ["none"] else float(rest[0]) if rest else 1.0
    print(run(kind, int(parallelism), int(rows), interval), flush=True)


if __name__ == "__main__":
    main()
