"""What a snapshot of keyed state costs: `python -m benchmarks.state_snapshot direct|pipeline GROUPS`.

`direct` measures the state alone, in this process. `stall` is what stands still while a snapshot is taken; `dearer` is
how much longer folding takes after it, over one pass through all groups, because old values must be kept while the copy
is not made: the price that does not show as a stall. `encode` is the work of the background thread.

`pipeline` takes checkpoints of a running pipeline on Spark, one by one: `sync` and `async` are of its slowest subtask,
as the engine has noted them, `durable` is from the trigger until the manifest was written. Whole milliseconds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.checked import Checked, CheckpointStats, Tally
from benchmarks.session import bench
from benchmarks.work import WrongAnswer, keyed_totals, require_equal
from penstock import GeneratorSource, Pipeline
from penstock.exchange.codec import encode_batches
from penstock.model.aggregates import Aggregate
from penstock.state.keyed import KeyedState

_SEGMENT_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 1 << 16
_AGGREGATES = (Aggregate("sum", "v", "total"), Aggregate("count", None, "rows"))


@dataclass(frozen=True, slots=True)
class EachInTurn:
    """Records with the keys 0, 1, … groups-1, 0, 1, … and the value 1."""

    groups: int

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        key = np.arange(start, start + count) % self.groups
        return pa.RecordBatch.from_arrays([pa.array(key), pa.array(np.ones(count))], names=["k", "v"])


class Nothing(Tally):
    def take(self, batch: pa.RecordBatch) -> None:
        pass

    def figures(self) -> CheckpointStats:
        return {}


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def direct(groups: int, repeats: int = 5) -> str:
    keyed = KeyedState(range(128), 128)
    state = keyed.aggregate("sum", ["k"], _AGGREGATES)
    make = EachInTurn(groups)
    batches = [make(start, min(_BATCH_ROWS, groups - start)) for start in range(0, groups, _BATCH_ROWS)]

    def one_pass() -> None:
        for batch in batches:
            state.fold(batch)

    one_pass()
    plain, logged, stalls, encodes, size = [], [], [], [], 0
    for _ in range(repeats):
        plain.append(_seconds(one_pass))
        began = time.perf_counter()
        snapshot = keyed.snapshot()
        stalls.append(time.perf_counter() - began)
        logged.append(_seconds(one_pass))
        began = time.perf_counter()
        pieces = snapshot.encode(_SEGMENT_BYTES)
        encoded = [encode_batches([piece.batch]) for piece in pieces]
        encodes.append(time.perf_counter() - began)
        size = sum(len(part) for part in encoded)
        _verify(groups, 2 * len(plain), [piece.batch for piece in pieces])
        del snapshot, pieces, encoded  # or giving their memory back would count as a part of the next stall
    dearer = max(0.0, statistics.median(logged) - statistics.median(plain))
    return (
        f"penstock snapshot groups={groups} stall={1e3 * statistics.median(stalls):.4f}ms "
        f"stall_max={1e3 * max(stalls):.4f}ms "
        f"fold={1e3 * statistics.median(plain):.2f}ms dearer={1e3 * dearer:.2f}ms "
        f"encode={1e3 * statistics.median(encodes):.1f}ms bytes={size / groups:.1f}/group verified"
    )


def _verify(groups: int, passes: int, batches: list[pa.RecordBatch]) -> None:
    """The snapshot must be that of its moment, although all groups have changed since."""
    counts = np.concatenate([batch.column("value").field("count(*)").to_numpy() for batch in batches])
    if len(counts) != groups or not (counts == passes).all():
        raise WrongAnswer(f"WRONG: {len(counts)} groups of {groups}, or counts that are not all {passes}")


def pipeline(groups: int, parallelism: int = 2, checkpoints: int = 5) -> str:
    made, sink = Pipeline("bench-snapshot"), Checked(Nothing)
    stream = made.source(GeneratorSource(EachInTurn(groups), splits=parallelism), name="source")
    stream.key_by("k").aggregate(total=("sum", "v"), rows="count", name="sum").sink(sink, name="sink")
    with bench(parallelism) as place:
        job = made.start(
            place.spark,
            checkpoints=place.checkpoints,
            parallelism=parallelism,
            checkpoint_interval=None,
            worker_silence=60,
        )
        while job.status.rows_in < 3 * parallelism * groups + _BATCH_ROWS * parallelism:
            job.wait(0.05)
        for _ in range(checkpoints):
            job.checkpoint(timeout=120)
        done = [record for record in job.checkpoints() if record.is_completed]
        job.stop(drain=True, timeout=120)
        found = keyed_totals(place.checkpoints)
        require_equal(found, {"rows": found["rows"], "total": found["rows"], "groups": groups})
    middle = [statistics.median(getattr(record, name) for record in done) for name in _NAMES]
    synchronous, asynchronous, durable, size = middle
    return (
        f"penstock snapshot groups={groups} p={parallelism} sync={synchronous:.0f}ms async={asynchronous:.0f}ms "
        f"durable={durable:.0f}ms bytes={size / groups:.1f}/group n={len(done)} verified"
    )


_NAMES = ("synchronous_ms", "asynchronous_ms", "duration_ms", "state_bytes")


def main() -> None:
    what, groups = sys.argv[1:]
    print((direct if what == "direct" else pipeline)(int(groups)), flush=True)


if __name__ == "__main__":
    main()
