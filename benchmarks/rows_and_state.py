"""What a row and a call of state cost: `python -m benchmarks.rows_and_state`. In this process, without Spark.

Each line is the least of several rounds, in nanoseconds of CPU time per row or call, so that other work on the machine
counts little. `arrow` is the same conversion by Arrow's own `to_pylist` and `from_pylist`.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.columnar.values import rows_of
from penstock.operators.formats import RowsFormat
from penstock.state.keyed import KeyedState

_ROWS = 10_000
_ROUNDS = 7
_COUNTER = pa.schema([("n", pa.int64()), ("total", pa.float64())])
_NUMBER = pa.schema([("n", pa.int64())])


def ns_per(call: Callable[[], object], units: int, calls: int) -> float:
    rounds = timeit.repeat(call, number=calls, repeat=_ROUNDS, timer=time.thread_time)
    return min(rounds) / calls / units * 1e9


def records() -> pa.RecordBatch:
    numbers = np.arange(_ROWS)
    names = pa.array([f"name{number % 100}" for number in range(_ROWS)])
    times = pa.array(numbers * 1_000_003, pa.timestamp("us", "UTC"))
    return pa.record_batch({"k": numbers, "v": numbers * 0.5, "name": names, "at": times})


def print_rows() -> None:
    for columns in (["k", "v", "name"], ["k", "at"]):
        batch = records().select(columns)
        rows, form = batch.to_pylist(), RowsFormat(SchemaGuard("rows", batch.schema))
        ours = ns_per(lambda b=batch: rows_of(b), _ROWS, 5), ns_per(lambda f=form, r=rows: f.batch(r), _ROWS, 5)
        arrows = (
            ns_per(batch.to_pylist, _ROWS, 2),
            ns_per(lambda b=batch, r=rows: pa.RecordBatch.from_pylist(r, schema=b.schema), _ROWS, 2),
        )
        for what, mine, arrow in zip(("to rows", "to columns"), ours, arrows, strict=True):
            print(f"{', '.join(columns):14} {what:12} {mine:8.0f} ns/row   arrow {arrow:8.0f} ns/row")


def print_state() -> None:
    keyed = KeyedState(range(128), 128, pa.schema([("k", pa.int64())]))
    value, items = keyed.value("value", _COUNTER), keyed.list("list", _NUMBER)
    entries = keyed.map("map", _NUMBER, _NUMBER)
    keyed.set_key(3, (5,))
    value.update((1, 2.0))
    calls: dict[str, Callable[[], object]] = {
        "an empty function": lambda: None,
        "move to a key": lambda: keyed.set_key(3, (5,)),
        "value get": value.get,
        "value update": lambda: value.update((1, 2.0)),
        "map put": lambda: entries.update_value((7,), (1,)),
        "map get": lambda: entries.get_value((7,)),
        "list append": lambda: items.append_value((1,)),
    }
    for name, call in calls.items():
        print(f"{name:27} {ns_per(call, 1, 50_000):8.0f} ns/call")
    keys = pa.record_batch({"k": range(_ROWS)})
    columns = {"n": pa.array(range(_ROWS)), "total": pa.array([0.5] * _ROWS)}
    print(f"{'update_batch':27} {ns_per(lambda: value.update_batch(keys, columns), _ROWS, 3):8.0f} ns/key")
    print(f"{'get_batch':27} {ns_per(lambda: value.get_batch(keys), _ROWS, 3):8.0f} ns/key")


if __name__ == "__main__":
    print_rows()
    print_state()
