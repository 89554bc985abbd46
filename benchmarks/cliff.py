"""Throughput by number of keys and by the fixed cost of a call: `python -m benchmarks.cliff [SVG]`. Without Spark.

Every point is a pipeline in this process that reads as fast as it can for some seconds: a `KeyedFunction` that sleeps
for each call, and a `map` that does. "Best" is the best possible batching: a row costs what it costs in the run without
sleep, a call what it really slept, and a call has as many records as a channel, or a call of `map`, has room for. A
curve with a step, or further from that than a factor of two, is a defect.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock import KeyedFunction, Pipeline
from penstock.connectors.source import END_OF_SPLIT, Source, SplitReader
from penstock.testing import CollectSink, run

WARM_S, MEASURED_S = 3.0, 2.0
KEYS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
KEYED_COSTS_MS = (0.0, 0.2, 1.0)
MAP_COSTS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
HAND_ROWS = (1 << 20) // 16
"""Rows of two numbers that a channel has room for."""
CALL_ROWS_MAX = 65_536
_BATCH_ROWS = 65_536

_marks: list[tuple[float, int, float]] = []
"""When calls ended, how many rows they had, and how long they slept. The functions of one process share it."""
_until = [0.0]
"""When the measurement ends."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: where, rows per second, and the best possible."""

    at: float
    rows: float
    best: float


class Numbers(Source):
    """Random keys, as many as are asked for, until its time is over."""

    def __init__(self, keys: int, until: float) -> None:
        self.keys = keys
        self.until = until

    def splits(self) -> Sequence[str]:
        return ["numbers"]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return NumbersReader(self.keys, self.until)


class NumbersReader(SplitReader):
    def __init__(self, keys: int, until: float) -> None:
        numbers = np.random.default_rng(1).integers(0, keys, _BATCH_ROWS)
        self.batch = pa.record_batch({"k": numbers, "v": numbers})
        self.until = until

    def read(self, rows_max: int) -> object:
        return END_OF_SPLIT if time.monotonic() > self.until else self.batch.slice(0, rows_max)

    def offset(self) -> bytes:
        return b""


def spend(rows: int, cost_ms: float) -> None:
    began = time.monotonic()
    if began > _until[0]:
        # What is left in the channels need not be paid for.
        return
    if cost_ms:
        time.sleep(cost_ms / 1000)
    ended = time.monotonic()
    _marks.append((ended, rows, ended - began))


class Costly(KeyedFunction):
    def __init__(self, cost_ms: float) -> None:
        self.cost_ms = cost_ms

    def process(self, key: object, rows: pa.RecordBatch, context: object) -> None:
        spend(rows.num_rows, self.cost_ms)


def measured(describe: Callable[[Pipeline, float], None]) -> tuple[float, float]:
    """Rows per second of a pipeline, once it has found its batches; and for how many seconds a call really slept."""
    _marks.clear()
    began = time.monotonic()
    pipeline = Pipeline("cliff")
    _until[0] = began + WARM_S + MEASURED_S
    describe(pipeline, _until[0])
    run(pipeline)
    counted = [mark for mark in _marks if began + WARM_S <= mark[0] <= began + WARM_S + MEASURED_S]
    if len(counted) < 2:
        return 0.0, 0.0
    slept_s = sum(slept for _, _, slept in counted) / len(counted)
    return sum(rows for _, rows, _ in counted[1:]) / (counted[-1][0] - counted[0][0]), slept_s


def keyed(keys: int, cost_ms: float) -> tuple[float, float]:
    def describe(pipeline: Pipeline, until: float) -> None:
        read = pipeline.source(Numbers(keys, until), name="read")
        read.key_by("k").process(Costly(cost_ms)).sink(CollectSink())

    return measured(describe)


def mapped(cost_ms: float) -> tuple[float, float]:
    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        spend(batch.num_rows, cost_ms)
        return batch.slice(0, 0)

    def describe(pipeline: Pipeline, until: float) -> None:
        pipeline.source(Numbers(1, until), name="read").map(call).sink(CollectSink())

    return measured(describe)


def best_keyed(keys: int, call_s: float, row_s: float) -> float:
    """The best of the calls that a full channel makes of its records: one for each key that is among them."""
    calls = keys * -math.expm1(HAND_ROWS * math.log1p(-1 / keys)) if keys > 1 else 1.0
    return HAND_ROWS / (HAND_ROWS * row_s + calls * call_s)


def points() -> tuple[dict[str, list[Point]], list[Point]]:
    by_cost: dict[str, list[Point]] = {}
    row_s: dict[int, float] = {}
    for cost_ms in KEYED_COSTS_MS:
        name = f"{cost_ms:g} ms a call"
        by_cost[name] = []
        for keys in KEYS:
            rows, slept_s = keyed(keys, cost_ms)
            row_s.setdefault(keys, 1 / max(rows, 1))
            by_cost[name].append(Point(keys, rows, best_keyed(keys, slept_s if cost_ms else 0.0, row_s[keys])))
            _print(f"{keys:>9,} keys, {name}", by_cost[name][-1])
    maps: list[Point] = []
    for cost_ms in MAP_COSTS_MS:
        rows, slept_s = mapped(cost_ms)
        free_s = 1 / max(maps[0].rows if maps else rows, 1)
        maps.append(Point(cost_ms, rows, CALL_ROWS_MAX / (CALL_ROWS_MAX * free_s + slept_s)))
        _print(f"map, {cost_ms:g} ms a call", maps[-1])
    return by_cost, maps


def _print(what: str, point: Point) -> None:
    print(f"{what:32} {point.rows:14,.0f} rows/s   best {point.best:14,.0f}", flush=True)


# --- the plot ---

_COLOURS = "#486581", "#0c6b58", "#b7791f", "#c2410c"
_STYLE = (
    'text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:14px;fill:#1f2933}'
    ".small{font-size:12px;fill:#52606d}.title{font-weight:600}.axis{stroke:#cbd2d9}"
)
_LEFT, _TOP, _WIDTH, _HEIGHT = 64, 56, 270, 220
_ROWS_MIN, _ROWS_MAX = 2.0, 8.0
"""Powers of ten on the axis of throughput."""


def _y(rows: float) -> float:
    power = min(max(math.log10(max(rows, 1.0)), _ROWS_MIN), _ROWS_MAX)
    return round(_TOP + _HEIGHT * (1 - (power - _ROWS_MIN) / (_ROWS_MAX - _ROWS_MIN)), 1)


def _line(places: Sequence[float], heights: Sequence[float], colour: str, is_best: bool) -> str:
    path = " ".join(f"{x:.1f},{_y(rows)}" for x, rows in zip(places, heights, strict=True))
    dashes = ' stroke-dasharray="3 4" stroke-width="1.2"' if is_best else ' stroke-width="2"'
    return f'<polyline points="{path}" fill="none" stroke="{colour}"{dashes}/>'


def _panel(left: float, title: str, labels: Sequence[str], series: Sequence[tuple[str, list[Point]]]) -> str:
    places = [left + _WIDTH * number / (len(labels) - 1) for number in range(len(labels))]
    parts = [f'<text class="title" x="{left}" y="{_TOP - 20}">{title}</text>']
    for power in range(int(_ROWS_MIN), int(_ROWS_MAX) + 1):
        y = _y(10.0**power)
        parts.append(f'<line class="axis" x1="{left}" x2="{left + _WIDTH}" y1="{y}" y2="{y}"/>')
        name = f"{10**power:,}" if power < 6 else f"{10 ** (power - 6)} M"
        parts.append(f'<text class="small" x="{left - 6}" y="{y + 4}" text-anchor="end">{name}</text>')
    for x, label in zip(places, labels, strict=True):
        y = _TOP + _HEIGHT + 18
        parts.append(f'<text class="small" x="{x:.1f}" y="{y}" text-anchor="middle">{label}</text>')
    for (name, line), colour, row in zip(series, _COLOURS, range(len(series)), strict=False):
        parts.append(_line(places, [point.best for point in line], colour, True))
        parts.append(_line(places, [point.rows for point in line], colour, False))
        y = _TOP + _HEIGHT + 42 + 18 * row
        parts.append(
            f'<line x1="{left}" x2="{left + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(f'<text class="small" x="{left + 32}" y="{y}">{name}</text>')
    return "".join(parts)


def drawn(by_cost: dict[str, list[Point]], maps: list[Point]) -> str:
    height = _TOP + _HEIGHT + 60 + 18 * len(by_cost)
    width = 2 * (_LEFT + _WIDTH) + 48
    keys = [
        f"{key // 1_000_000} M" if key >= 1_000_000 else f"{key // 1000} k" if key >= 1000 else str(key) for key in KEYS
    ]
    costs = [f"{cost:g}" for cost in MAP_COSTS_MS]
    first = _panel(_LEFT, "KeyedFunction: rows/s by keys", keys, list(by_cost.items()))
    second = _panel(2 * _LEFT + _WIDTH + 16, "map: rows/s by ms a call", costs, [("map", maps)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="t d">\n<title id="t">Throughput by keys and by the cost of a call</title>'
        f'<desc id="d">Rows per second of a keyed function and of a map; dotted lines are the best possible batching.'
        f"</desc>\n<style>{_STYLE}</style>\n"
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="#f8fafc" stroke="#cbd2d9"/>\n'
        f"{first}\n{second}\n</svg>\n"
    )


def main() -> None:
    by_cost, maps = points()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(drawn(by_cost, maps), encoding="utf-8")


if __name__ == "__main__":
    main()
