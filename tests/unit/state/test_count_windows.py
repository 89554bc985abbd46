"""Windows by count against plain Python, however the records are cut into batches."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Pipeline, PipelineError
from penstock.errors import DataError
from penstock.model.aggregates import Aggregate
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import CountWindows
from penstock.operators.windows.count_window import EXPIRED, CountWindowOperator
from penstock.state import KeyedState
from penstock.state.windows.counts import CountWindowDescriptor, CountWindowState
from penstock.testing import CollectSink, ListSource, collect, run
from tests.unit.operators.keyed.bench import Bench
from tests.unit.state.test_functions import ALL, Row, batch_of, plainly, rows, same

GROUPS = 16


def new_state(size: int) -> tuple[KeyedState, CountWindowState]:
    keyed = KeyedState(range(GROUPS), GROUPS)
    return keyed, keyed.register(CountWindowDescriptor("c", ("k",), tuple(ALL), CountWindows(size)))


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, min_size=1, max_size=5), st.integers(1, 7), st.integers(0, 4))
def test_windows_are_every_so_many_rows_of_a_key(batches: list[list[Row]], size: int, moment: int) -> None:
    keyed, state = new_state(size)
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    by_key: dict[int, list[Row]] = defaultdict(list)
    for number, batch in enumerate(batches):
        if number == moment:
            pieces = keyed.snapshot().encode(64)
            keyed, state = new_state(size)
            for piece in pieces:
                keyed.restore(piece.name, [piece.batch])
        for row in batch:
            by_key[row[0]].append(row)
        for result in state.add(batch_of(batch)):
            result.validate(full=True)
            for made in result.to_pylist():
                found[made.pop("k")].append(made)
    for key, mine in by_key.items():
        whole = [mine[start : start + size] for start in range(0, len(mine) - size + 1, size)]
        assert len(found[key]) == len(whole)
        for made, window in zip(found[key], whole, strict=True):
            assert same(made, plainly(window)), (key, made, plainly(window))


def test_a_hot_key_is_not_worked_on_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    _, state = new_state(10)
    folds: list[int] = []
    original = CountWindowState._fold_rows

    def counted(self: CountWindowState, *arguments: Any) -> None:
        folds.append(1)
        original(self, *arguments)

    monkeypatch.setattr(CountWindowState, "_fold_rows", counted)
    emitted = state.add(batch_of([(1, 1.0, "a", n + 1) for n in range(5_005)]))
    assert sum(batch.num_rows for batch in emitted) == 500
    assert len(folds) == 3


def test_count_windows_in_a_pipeline_and_what_is_refused() -> None:
    source = ListSource([{"k": n % 2, "v": n} for n in range(50)], batch_rows=7)
    keyed = Pipeline("p").source(source).key_by("k")
    totals = collect(keyed.count_window(10).sum("v", "total"), by="total")
    expected = [sum(range(key + 20 * w, key + 20 * w + 20, 2)) for key in range(2) for w in range(2)]
    assert [row["total"] for row in totals] == sorted(expected)
    with pytest.raises(PipelineError, match="count_window: rows is 0: it must be a number of at least 1"):
        keyed.count_window(0)


def restored(keyed: KeyedState, size: int) -> tuple[KeyedState, CountWindowState]:
    pieces = keyed.snapshot().encode(64)
    made, state = new_state(size)
    for piece in pieces:
        made.restore(piece.name, [piece.batch])
    return made, state


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(rows, st.just("generation"), st.just("checkpoint")), min_size=1, max_size=8), st.integers(1, 7)
)
def test_a_key_without_a_row_for_a_whole_generation_begins_anew(steps: list[Any], size: int) -> None:
    keyed, state = new_state(size)
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    wanted: dict[int, list[Any]] = defaultdict(list)
    held: dict[int, list[Row]] = {}
    touched: dict[int, int] = {}
    generation = 0
    for step in steps:
        if step == "checkpoint":
            keyed, state = restored(keyed, size)
        elif step == "generation":
            gone = {key for key, at in touched.items() if at < generation}
            generation += 1
            assert state.begin_generation() == sum(bool(held[key]) for key in gone)
            for key in gone:
                del held[key], touched[key]
        else:
            for row in step:
                touched[row[0]] = generation
                held.setdefault(row[0], []).append(row)
                if len(held[row[0]]) == size:
                    wanted[row[0]].append(plainly(held[row[0]]))
                    held[row[0]] = []
            for result in state.add(batch_of(step)):
                for made in result.to_pylist():
                    found[made.pop("k")].append(made)
    assert found.keys() == wanted.keys()
    for key, windows in wanted.items():
        assert len(found[key]) == len(windows)
        assert all(same(made, window) for made, window in zip(found[key], windows, strict=True)), key


def test_forgotten_keys_leave_memory_and_checkpoint() -> None:
    keyed, state = new_state(10)
    state.add(batch_of([(key, 1.0, "a", 1) for key in range(10_000)]))
    before = keyed.state_bytes
    assert (state.begin_generation(), state.begin_generation()) == (0, 10_000)
    assert sum(piece.batch.num_rows for piece in keyed.snapshot().encode(1 << 20)) == 0
    assert keyed.state_bytes < before / 10


def test_a_snapshot_keeps_windows_that_move_and_go_after_it() -> None:
    keyed, state = new_state(3)
    state.add(batch_of([(1, 1.0, "a", 1), (2, 2.0, "b", 2)]))
    state.begin_generation()
    snapshot = keyed.snapshot()
    state.add(batch_of([(1, 3.0, "c", 3)]))
    state.begin_generation()
    state.begin_generation()
    made, later = new_state(3)
    for piece in snapshot.encode(1 << 20):
        made.restore(piece.name, [piece.batch])
    emitted = later.add(batch_of([(key, 5.0, "d", 4) for key in (1, 1, 2, 2)]))
    assert sorted(row["k"] for batch in emitted for row in batch.to_pylist()) == [1, 2]


def test_other_types_than_those_of_idle_keys_are_refused() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS)
    total = (Aggregate("sum", "v", "total"),)
    state = keyed.register(CountWindowDescriptor("c", ("k",), total, CountWindows(3)))
    state.add(pa.record_batch({"k": [1], "v": [1]}))
    state.begin_generation()
    with pytest.raises(DataError, match="was built from columns of other types"):
        state.add(pa.record_batch({"k": [1], "v": [1.5]}))


def test_count_windows_expire_by_event_time_and_are_counted() -> None:
    times = [(0, "a"), *((at, f"{at}") for at in range(50, 900, 50) for _ in range(2)), (950, "a")]
    source = ListSource([{"k": key, "at": at} for at, key in times], batch_rows=1)
    pipeline = Pipeline("p")
    timed = pipeline.source(source).with_watermark("at", 0, name="time")
    counted = timed.key_by("k").count_window(2, state_ttl="100 ms").aggregate(n="count", name="windows")
    output = CollectSink()
    counted.sink(output)
    result = run(pipeline)
    assert "a" not in [row["k"] for row in output.rows()], "its two records are too far from each other"
    assert (len(output.rows()), result.metrics.value(EXPIRED.name, "windows")) == (17, 1)
    with pytest.raises(PipelineError, match="count_window: state_ttl is 0"):
        timed.key_by("k").count_window(2, state_ttl=0)


def test_count_windows_expire_by_the_clock_without_event_time() -> None:
    bench = Bench(CountWindowOperator(CountWindows(2), [Aggregate("count", None, "n")], ttl_ms=100), key=("k",))

    def pass_ms(ms: int) -> None:
        bench.context.clock_ms += ms
        due = [call for at, call in bench.context.timers if at <= bench.context.clock_ms]
        bench.context.timers = [timer for timer in bench.context.timers if timer[1] not in due]
        for call in due:
            call()

    bench.process(pa.record_batch({"k": [1, 2]}))
    pass_ms(150)
    bench.process(pa.record_batch({"k": [1]}))
    assert bench.rows() == [{"k": 1, "n": 2}]
    for _ in range(4):
        pass_ms(100)
    assert (bench.count(EXPIRED), sum(bench.state_rows().values())) == (1, 0)
    bench.process(pa.record_batch({"k": [2]}))
    assert len(bench.rows()) == 1, "its first record was forgotten"


def test_no_key_is_forgotten_before_its_time_though_its_record_came_before_the_watermark() -> None:
    made = CountWindowOperator(CountWindows(2), [Aggregate("count", None, "n")], ttl_ms=100, on="at")
    bench = Bench(made, key=("k",))
    bench.advance(0)
    bench.process(pa.record_batch({"k": [1], "at": [990]}))
    for watermark in range(100, 1_090, 10):
        bench.advance(watermark)
    bench.process(pa.record_batch({"k": [1], "at": [1_080]}))
    assert bench.rows() == [{"k": 1, "n": 2}]
    bench.process(pa.record_batch({"k": [1], "at": [1_085]}))
    for watermark in range(1_090, 1_600, 10):
        bench.advance(watermark)
    assert (bench.count(EXPIRED), sum(bench.state_rows().values())) == (1, 0)


def test_a_snapshot_of_idle_windows_is_another_one_when_a_window_has_moved() -> None:
    _, state = new_state(3)
    state.add(batch_of([(1, 1.0, "a", 1), (2, 2.0, "b", 2)]))
    state.begin_generation()
    before = state._idle.version
    state.add(batch_of([(1, 3.0, "c", 3)]))
    assert state._idle.version > before


def test_the_end_of_input_forgets_nothing() -> None:
    made = CountWindowOperator(CountWindows(2), [Aggregate("count", None, "n")], ttl_ms=100, on="at")
    bench = Bench(made, key=("k",))
    bench.advance(0)
    bench.process(pa.record_batch({"k": [1], "at": [0]}))
    for _ in range(3):
        bench.advance(MAX_WATERMARK)
    assert sum(bench.state_rows().values()) == 1
