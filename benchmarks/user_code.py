"""Rows per second through Python functions of users: `python -m benchmarks.user_code KIND KEYS PARALLELISM ROWS`.

| KIND | the function |
|---|---|
| `processor` | PySpark's `StatefulProcessor` with value and map state, in pandas (`benchmarks/processors.py`) |
| `processor-rows` | the same in rows |
| `keyed` | a `KeyedFunction` in rows: count and sum of each key |
| `reduce` | a function of two rows: the sum of each key |
| `map`, `filter`, `flat_map` | a function of one row, a dictionary |
| `map-pandas` | a function of DataFrames |

The figures are those of `benchmarks.throughput`. The work is that of `peers/bytewax/user_code.py`,
`peers/spark/user_code.py` and `peers/flink/user_code.py`.
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.checked import Checked, CheckpointStats, Tally, noted
from benchmarks.processors import OUTPUT, PandasTotals, RowTotals
from benchmarks.session import bench, wait_watching_memory
from benchmarks.work import Newest, NewestSums, Sums, records, require_equal, source_of
from penstock import KeyedFunction, Pipeline
from penstock.api.stream import Stream

_CHUNK_ROWS = 1 << 20
_LEAST = 100.0


class Totals(KeyedFunction):
    """Count and sum of each key, row by row."""

    def open(self, context: Any) -> None:
        self.total = context.value("total", "rows bigint, total double")

    def process(self, key: tuple[int, ...], rows: list[dict[str, Any]], context: Any) -> dict[str, Any]:
        count, total = self.total.get() or (0, 0.0)
        for row in rows:
            count += 1
            total += row["v"]
        self.total.update((count, total))
        return {"k": key[0], "rows": count, "total": total}


def twice(row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["k"], "v": row["v"] * 2.0, "n": row["n"]}


def added(so_far: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["k"], "v": so_far["v"] + row["v"], "n": row["n"]}


def is_large(row: dict[str, Any]) -> bool:
    return bool(row["v"] > _LEAST)


def in_halves(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    half = row["v"] / 2.0
    yield {"k": row["k"], "v": half}
    yield {"k": row["k"], "v": half}


def frame_twice(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(v=frame["v"] * 2.0)


_FUNCTIONS: dict[str, Callable[[Stream], Stream]] = {
    "processor": lambda s: s.key_by("k").process(PandasTotals(), format="pandas", schema=OUTPUT, name="totals"),
    "processor-rows": lambda s: s.key_by("k").process(RowTotals(), format="rows", schema=OUTPUT, name="totals"),
    "keyed": lambda s: s.key_by("k").process(Totals(), format="rows", schema=OUTPUT, name="totals"),
    "reduce": lambda s: s.key_by("k").reduce(added, name="reduce"),
    "map": lambda s: s.map(twice, format="rows", name="map"),
    "filter": lambda s: s.filter(is_large, format="rows", name="filter"),
    "flat_map": lambda s: s.flat_map(in_halves, format="rows", name="flat_map"),
    "map-pandas": lambda s: s.map(frame_twice, format="pandas", name="map"),
}
_BY_KEY = ("processor", "processor-rows", "keyed")


def expected(kind: str, keys: int, rows: int) -> CheckpointStats:
    """What must come out, computed without any stream processor."""
    count, total = 0, 0.0
    for start in range(0, rows, _CHUNK_ROWS):
        values = records(start, min(_CHUNK_ROWS, rows - start), keys).column("v").to_numpy()
        if kind == "filter":
            values = values[values > _LEAST]
        count += len(values) * (2 if kind == "flat_map" else 1)
        total += float(np.sum(values)) * (2 if kind.startswith("map") else 1)
    return {"total": total} if kind == "reduce" else {"rows": count, "total": total}


def tally_of(kind: str, keys: int) -> Callable[[], Tally]:
    """What the sink adds up."""
    if kind == "reduce":
        return functools.partial(NewestSums, keys)
    return functools.partial(Newest, keys) if kind in _BY_KEY else functools.partial(Sums, "v")


def run(kind: str, keys: int, parallelism: int, rows: int) -> str:
    """Run it once, verify the answer, and say how it went in one line."""
    sink = Checked(tally_of(kind, keys))
    with bench(parallelism) as place:
        made = Pipeline(f"bench-{kind}")
        stream = made.source(source_of(rows, parallelism, place.notes, keys), name="source")
        _FUNCTIONS[kind](stream).sink(sink, name="sink")
        began = time.time()
        job = made.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=1.0,
            worker_silence=30,
        )
        memory = wait_watching_memory(job)
        ended = time.time()
        require_equal(sink.figures, expected(kind, keys, rows))
        first = noted(place.notes, "first")[0]
        net, work = ended - first, sink.last_at - first
        *done, final = [record.duration_ms for record in job.checkpoints() if record.is_completed]
    slowest = f"{statistics.quantiles(done, n=100)[-1]:.0f}ms" if len(done) > 1 else "nan"
    return (
        f"penstock {kind} keys={keys} p={parallelism} rows={rows} rate={rows / net / 1e6:.4f}M/s net={net:.3f}s "
        f"work_rate={rows / work / 1e6:.4f}M/s tail={net - work:.3f}s start={first - began:.2f}s "
        f"whole={rows / (ended - began) / 1e6:.4f}M/s checkpoints={len(done) + 1} p99={slowest} final={final}ms "
        f"worker={memory:.0f}MB verified"
    )


def main() -> None:
    kind, keys, parallelism, rows = sys.argv[1:]
    print(run(kind, int(keys), int(parallelism), int(rows)), flush=True)


if __name__ == "__main__":
    main()
