"""Checkpoints while a user's function is backed up: `python -m benchmarks.backed_up KIND KEYS PARALLELISM ROWS`.

The functions `processor`, `processor-rows` and `keyed` of `benchmarks.user_code`, behind a source that is faster than
they are. Checkpoints are unaligned, five a second. `call` is the longest call of the function that a worker has seen,
with whatever else the machine did meanwhile, `p50` and `p99` are the times of checkpoints from the trigger until they
are durable, and `beyond` is the difference between `p99` and `call`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.checked import Checked
from benchmarks.processors import OUTPUT, PandasTotals, RowTotals
from benchmarks.session import bench
from benchmarks.user_code import Totals, expected, tally_of
from benchmarks.work import require_equal, source_of
from penstock import Pipeline

_WARM_UP = 5
"""Checkpoints that do not count: the first calls of a function find out what it costs."""


class _Timed:
    """The longest call of a function, noted when it is closed."""

    def __init__(self, notes: str) -> None:
        self._notes = notes
        self._longest = 0.0

    def timed(self, began: float) -> None:
        self._longest = max(self._longest, time.perf_counter() - began)

    def close(self) -> None:
        (Path(self._notes) / f"call-{id(self)}-{time.time_ns()}").write_text(repr(self._longest))


class _TimedProcessor(_Timed):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        began = time.perf_counter()
        yield from super().handleInputRows(key, rows, timerValues)  # type: ignore[misc]
        self.timed(began)


class TimedPandas(_TimedProcessor, PandasTotals):
    pass


class TimedRows(_TimedProcessor, RowTotals):
    pass


class TimedTotals(_Timed, Totals):
    def process(self, key: tuple[int, ...], rows: list[dict[str, Any]], context: Any) -> dict[str, Any]:
        began = time.perf_counter()
        made = super().process(key, rows, context)
        self.timed(began)
        return made


_FUNCTIONS = {
    "processor": (TimedPandas, "pandas"),
    "processor-rows": (TimedRows, "rows"),
    "keyed": (TimedTotals, "rows"),
}


def run(kind: str, keys: int, parallelism: int, rows: int) -> str:
    """Run it once, verify the answer, and say how it went in one line."""
    sink, (function, format) = Checked(tally_of(kind, keys)), _FUNCTIONS[kind]
    with bench(parallelism) as place:
        made = Pipeline(f"backed-up-{kind}")
        keyed = made.source(source_of(rows, parallelism, place.notes, keys), name="source").key_by("k")
        keyed.process(function(place.notes), format=format, schema=OUTPUT, name="totals").sink(sink, name="sink")  # type: ignore[arg-type]
        job = made.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=0.2,
            checkpoint_mode="unaligned",
            worker_silence=30,
        )
        job.wait()
        require_equal(sink.figures, expected(kind, keys, rows))
        *done, _ = [record.duration_ms for record in job.checkpoints() if record.is_completed]
        call_ms = 1000 * max(float(path.read_text()) for path in Path(place.notes).glob("call-*"))
    counted = done[_WARM_UP:]
    p99 = statistics.quantiles(counted, n=100)[-1]
    return (
        f"penstock {kind} keys={keys} p={parallelism} rows={rows} checkpoints={len(counted)} call={call_ms:.1f}ms "
        f"p50={statistics.median(counted):.0f}ms p99={p99:.0f}ms beyond={p99 - call_ms:.1f}ms verified"
    )


def main() -> None:
    kind, keys, parallelism, rows = sys.argv[1:]
    print(run(kind, int(keys), int(parallelism), int(rows)), flush=True)


if __name__ == "__main__":
    main()
