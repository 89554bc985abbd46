"""A kind of windows that only this file knows runs through state and operator unchanged."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from penstock import Pipeline, RestoreError
from penstock.api.windowed_stream import WindowedStream
from penstock.model.aggregates import Aggregate
from penstock.model.event_time import MAX_WATERMARK, Ticks
from penstock.model.windows import FixedWindows, WindowGrid, WindowKind
from penstock.state import KeyedState
from penstock.testing import CHECKPOINT, CollectSink, ListSource, run

GROUPS = 16


@dataclass(frozen=True, slots=True)
class Listed:
    """Windows between bounds that follow no rule, such as the shifts of a factory."""

    bounds_ms: tuple[int, ...]

    def __str__(self) -> str:
        return f"windows between {', '.join(map(str, self.bounds_ms))}"

    @property
    def parameters(self) -> Mapping[str, int]:
        return {f"bound_{number}": bound for number, bound in enumerate(self.bounds_ms)}

    def on(self, ticks: Ticks) -> WindowGrid | None:
        bounds = [ticks.exactly(bound) for bound in self.bounds_ms]
        return None if None in bounds else ListedGrid(tuple(bound for bound in bounds if bound is not None))


@dataclass(frozen=True, slots=True)
class ListedGrid:
    """Windows of one pane each."""

    bounds: tuple[int, ...]
    panes_per_block: int = 1
    reach_ticks: int = 1 << 40

    def pane_at(self, tick: int) -> int:
        return bisect.bisect_right(self.bounds, tick) - 1

    def panes_of(self, times: npt.NDArray[np.int64], first: int) -> npt.NDArray[np.uint64]:
        return (np.searchsorted(self.bounds, times, side="right") - 1 - first).astype(np.uint64)

    def start_of(self, pane: int) -> int:
        if pane < 0:
            return -(2**62)
        return self.bounds[pane] if pane < len(self.bounds) else 2**62

    def window_bounds(self, window: int) -> tuple[int, int]:
        return self.start_of(window), self.start_of(window + 1)

    def panes_in(self, window: int) -> range:
        return range(window, window + 1)

    def last_complete(self, watermark: int) -> int:
        return self.pane_at(watermark) - 1

    def last_window_of(self, pane: int) -> int:
        return pane

    def first_pane_after(self, window: int) -> int:
        return window + 1

    def windows_with(self, panes: Sequence[int], after: int, to: int) -> Iterator[int]:
        return (pane for pane in panes if after < pane <= to)


SHIFTS = Listed((0, 7, 30, 31, 100, 170))


def shift_of(time: int) -> tuple[int, int]:
    at = bisect.bisect_right(SHIFTS.bounds_ms, time)
    return SHIFTS.bounds_ms[at - 1], SHIFTS.bounds_ms[at] if at < len(SHIFTS.bounds_ms) else 2**62


def expected(rows: list[dict[str, Any]]) -> dict[tuple[int, int, int], int]:
    sums: dict[tuple[int, int, int], int] = {}
    for row in rows:
        place = (row["k"], *shift_of(row["t"]))
        sums[place] = sums.get(place, 0) + row["v"]
    return sums


def test_a_kind_of_a_test_runs_through_a_pipeline_that_crashes_and_is_rescaled() -> None:
    rows = [{"k": n % 5, "v": n, "t": n // 20} for n in range(4_000)]
    marked = [item for n in range(0, 4_000, 250) for item in (*rows[n : n + 250], CHECKPOINT)]
    pipeline, sink = Pipeline("p"), CollectSink()
    keyed = pipeline.source(ListSource(marked, splits=4, batch_rows=20)).with_watermark("t", "40 ms").key_by("k")
    WindowedStream(keyed, SHIFTS, "t", "error").sum("v").sink(sink)
    first = run(pipeline, parallelism=2, workers=2, crash_after_checkpoints=[2], until=lambda: len(sink.rows()) >= 10)
    assert first.restarts == 1
    run(pipeline, parallelism=3, workers=3, store=first.store)
    found = {(row["k"], row["window_start"], row["window_end"]): row["v"] for row in sink.rows()}
    assert found == expected(rows)
    assert len(sink.rows()) == len(found), "a window is emitted twice"


def windows_of(kind: WindowKind) -> KeyedState:
    keyed = KeyedState(range(GROUPS), GROUPS)
    state = keyed.windows("w", ["k"], [Aggregate("count", None, "n")], kind, "t")
    late = state.add(pa.record_batch({"k": [1, 2, 1], "t": [3, 8, 29]}))
    assert len(late) == 0
    return keyed


def test_late_is_what_the_kind_says() -> None:
    keyed = windows_of(SHIFTS)
    state = keyed.windows("w", ["k"], [Aggregate("count", None, "n")], SHIFTS, "t")
    (emitted,) = state.close(7)
    assert emitted.to_pylist() == [{"k": 1, "window_start": 0, "window_end": 7, "n": 1}]
    assert state.add(pa.record_batch({"k": [1, 1], "t": [6, 7]})).tolist() == [0]
    (rest,) = state.close(MAX_WATERMARK)
    assert sorted(rest.column("n").to_pylist()) == [1, 2]


@pytest.mark.parametrize("others", [Listed((0, 8)), Listed(()), FixedWindows(10, 10)])
def test_windows_of_another_kind_or_of_other_parameters_are_not_restored(others: WindowKind) -> None:
    pieces = windows_of(SHIFTS).snapshot().encode(1 << 20)
    keyed = KeyedState(range(GROUPS), GROUPS)
    keyed.windows("w", ["k"], [Aggregate("count", None, "n")], others, "t")
    with pytest.raises(RestoreError, match=r"the checkpoint has windows with bound_0 0, bound_1 7, .* pipeline has"):
        for piece in pieces:
            keyed.restore(piece.name, [piece.batch])


def clock_restored(stored: WindowKind, now: WindowKind) -> None:
    pieces = KeyedState(range(GROUPS), GROUPS)
    pieces.windows("w", ["k"], [Aggregate("count", None, "n")], stored, "t")
    keyed = KeyedState(range(GROUPS), GROUPS)
    keyed.windows("w", ["k"], [Aggregate("count", None, "n")], now, "t")
    keyed.restore("w.clock", [piece.batch for piece in pieces.snapshot().encode(1 << 20) if piece.name == "w.clock"])


def test_a_kind_without_parameters_does_not_take_over_windows_with_some_and_the_other_way_round() -> None:
    with pytest.raises(RestoreError, match=r"with size_ms 100, every_ms 100, offset_ms 0, .* with no parameters"):
        clock_restored(FixedWindows(100, 100), Listed(()))
    with pytest.raises(RestoreError, match=r"has windows with no parameters, .* with size_ms 100"):
        clock_restored(Listed(()), FixedWindows(100, 100))
    clock_restored(Listed(()), Listed(()))


def test_the_clock_of_fixed_windows_has_the_fields_that_it_always_had() -> None:
    pieces = windows_of(FixedWindows(100, 50, 3)).snapshot().encode(1 << 20)
    (clock,) = [piece.batch for piece in pieces if piece.name == "w.clock"]
    assert clock.schema.names == ["key_group", "key", "value"]
    watermark = -(2**63)
    assert clock.to_pylist()[0] == {
        "key_group": 0,
        "key": {"key_group": 0},
        "value": {"watermark_ms": watermark, "size_ms": 100, "every_ms": 50, "offset_ms": 3},
    }
