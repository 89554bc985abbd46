"""Rows per second on bounded input: `python -m benchmarks.throughput KIND PARALLELISM ROWS [INTERVAL] [WORKERS]`.

KIND is `sum`, `window` or `map`. `net` is from the first record that a source reads until the job has ended, the final
checkpoint included; `work` is from the same moment until the last record was written, and `tail` is the rest: the final
checkpoint (`final`) and the end of the Spark job. `start` is from `start()` to the first record, on a session that has
run nothing before; `row` is `work` for each row. The peers' figures of the same names mean the same. `p50` is the
median duration of the checkpoints but for the final one. An INTERVAL of `none` is without checkpoints, but for the
final one. WORKERS are as many as PARALLELISM by default.
"""

from __future__ import annotations

import statistics
import sys
import time

from benchmarks.checked import noted
from benchmarks.session import bench, wait_watching_memory
from benchmarks.work import pipeline, verify


def run(kind: str, parallelism: int, rows: int, interval: float | None = 1.0, workers: int | None = None) -> str:
    """Run it once, verify the answer, and say how it went in one line."""
    with bench(workers or parallelism) as place:
        made, sink = pipeline(kind, rows, parallelism, place.notes)
        began = time.time()
        job = made.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            workers=workers,
            checkpoint_interval=interval,
            worker_silence=30,
        )
        memory = wait_watching_memory(job)
        ended = time.time()
        verify(kind, rows, sink.figures)
        first = noted(place.notes, "first")[0]
        net, work = ended - first, sink.last_at - first
        *done, final = [record.duration_ms for record in job.checkpoints() if record.is_completed]
    middle = f"{statistics.median(done):.0f}ms" if done else "nan"
    return (
        f"penstock {kind} p={parallelism} rows={rows} rate={rows / net / 1e6:.3f}M/s net={net:.3f}s work={work:.3f}s "
        f"tail={net - work:.3f}s work_rate={rows / work / 1e6:.3f}M/s row={1e9 * work / rows:.1f}ns "
        f"start={first - began:.2f}s checkpoints={len(done) + 1} p50={middle} final={final}ms "
        f"worker={memory:.0f}MB verified"
    )


def main() -> None:
    kind, parallelism, rows, *rest = sys.argv[1:]
    interval = None if rest[:1] == ["none"] else float(rest[0]) if rest else 1.0
    print(run(kind, int(parallelism), int(rows), interval, *map(int, rest[1:])), flush=True)


if __name__ == "__main__":
    main()
