"""The first record of each key comes out, whatever batches, failures and renewals of the index there are between."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Pipeline, PipelineError
from penstock.metrics.standard import LATE
from penstock.model.event_time import MIN_WATERMARK
from penstock.operators.keyed.drop_duplicates import DUPLICATES, DropDuplicatesOperator
from penstock.state.index import seen_keys
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, run
from tests.unit.operators.keyed.bench import Bench, restored

INT64 = np.iinfo(np.int64)


def batch(rows: list[tuple[Any, int]]) -> pa.RecordBatch:
    keys, times = zip(*rows, strict=True) if rows else ((), ())
    numbers = pa.array(range(len(rows)), pa.int64())
    return pa.record_batch({"k": pa.array(keys, pa.int64()), "at": pa.array(times, pa.int64()), "n": numbers})


class Model:
    """One row at a time, with a dictionary that forgets nothing."""

    def __init__(self, within: int | None) -> None:
        self.within = within
        self.until: dict[Any, int] = {}
        self.watermark: int | None = None

    def keeps(self, key: Any, at: int) -> bool:
        if self.within is None:
            return key not in self.until and self.until.setdefault(key, 0) == 0
        end = min(at + self.within, INT64.max)
        if self.watermark is not None and end <= self.watermark:
            return False
        until = self.until.get(key)
        if until is not None and (at < until or until == INT64.max):
            return False
        self.until[key] = end
        return True


_times = st.one_of(st.integers(-50, 50), st.integers(-300, 300), st.sampled_from([INT64.min, INT64.max, INT64.max - 5]))
_rows = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 6)), _times), max_size=40)
_turns = st.lists(st.one_of(_rows, st.integers(-60, 60), st.sampled_from(["crash", "rescale", "renew"])), max_size=12)


@pytest.mark.parametrize("within", [None, 1, 20, 100])
@settings(max_examples=40, deadline=None)
@given(_turns)
def test_it_keeps_the_rows_that_a_loop_over_the_rows_keeps(within: int | None, turns: list[Any]) -> None:
    make = functools.partial(DropDuplicatesOperator, within, "at")
    bench, model = Bench(make(), ("k",)).begin(), Model(within)
    expected: list[tuple[Any, int]] = []
    emitted: list[pa.RecordBatch] = []
    for turn in turns:
        if isinstance(turn, list):
            bench.process(batch(turn))
            expected += [row for row in turn if model.keeps(*row)]
        elif isinstance(turn, int) and turn > bench.context.watermark:
            bench.advance(turn)
            model.watermark = turn
        elif turn == "renew" and within is not None and (seen := bench.operator._seen) and seen._old is None:
            # The index is renewed as if it had grown: its keys are in the old one for a while.
            seen.renew([bench.operator._entry(each) for each in bench.operator._log_state.get()])
        elif turn in ("crash", "rescale"):
            emitted += bench.emitted
            halves = [restored([bench], make, range(8), bench.context.watermark)] if turn == "rescale" else [bench]
            if turn == "rescale":
                halves.append(restored([bench], make, range(8, 16), bench.context.watermark))
            bench = restored(halves, make, range(16), bench.context.watermark)
    rows = [(row["k"], row["at"]) for each in [*emitted, *bench.emitted] for row in each.to_pylist()]
    assert rows == expected


def test_state_is_gone_when_the_watermark_has_passed_everything() -> None:
    bench = Bench(DropDuplicatesOperator(100, "at"), ("k",)).begin()
    for start in range(0, 50_000, 1_000):
        bench.process(batch([(key, start // 100) for key in range(start, start + 1_000)]))
    assert bench.state_rows() == {"seen": 50_000}
    bench.advance(10_000)
    assert bench.state_rows() == {"seen": 0}
    assert bench.operator._seen is None


def test_keys_that_are_forgotten_leave_the_index_while_others_come() -> None:
    """A stream never ends: without a renewal the index has every key that ever came."""
    bench = Bench(DropDuplicatesOperator(100, "at"), ("k",)).begin()
    sizes, step = [], 500
    for number in range(120):
        # One row is far ahead of the others, so that the log is never empty.
        bench.process(batch([(-1, 10**9), *((key, 50 * number) for key in range(step * number, step * (number + 1)))]))
        bench.advance(50 * number)
        sizes.append(bench.operator._seen.size)
    assert max(sizes) < 4 * seen_keys._SPARE_KEYS + 20 * step
    assert sum(bench.state_rows().values()) < 3 * 2**13


def test_late_rows_are_counted_and_left_out() -> None:
    bench = Bench(DropDuplicatesOperator(100, "at"), ("k",)).begin()
    bench.advance(1_000)
    bench.process(batch([(1, 900), (1, 901), (1, 999), (2, 1_000)]))
    assert [(row["k"], row["at"]) for row in bench.rows()] == [(1, 901), (2, 1_000)]
    assert (bench.count(LATE), bench.count(DUPLICATES)) == (1, 1)


def test_without_event_time_the_clock_of_the_worker_decides() -> None:
    bench = Bench(DropDuplicatesOperator(100, None), ("k",)).begin()
    for clock_ms in (0, 99, 100, 150, 200):
        bench.context.clock_ms = clock_ms
        bench.process(batch([(7, clock_ms)]))
    assert [row["at"] for row in bench.rows()] == [0, 100, 200]
    assert bench.context.watermark == MIN_WATERMARK


def test_unbounded_state_is_a_warning_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    items = [{"id": 1}, {"id": 1}, {"id": 2}]
    with caplog.at_level(logging.WARNING, "penstock"):
        pipeline, output = Pipeline("p"), CollectSink()
        pipeline.source(ListSource(items)).drop_duplicates("id").sink(output)
        run(pipeline, parallelism=2)
    assert sum("without within" in record.getMessage() for record in caplog.records) == 1
    assert sorted(row["id"] for row in output.rows()) == [1, 2]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_crash_brings_no_duplicate_back(parallelism: int) -> None:
    rows = [{"id": number % 7, "at": number} for number in range(60)]
    items = [*rows[:20], CHECKPOINT, *rows[20:30], ABORT(), *rows[30:45], CHECKPOINT, ABORT(), *rows[45:]]
    pipeline, output = Pipeline("p"), CollectSink()
    timed = pipeline.source(ListSource(items, batch_rows=4)).with_watermark("at", 0)
    timed.drop_duplicates("id", within="1 hour").sink(output)
    assert run(pipeline, parallelism=parallelism).restarts == 2
    assert sorted((row["id"], row["at"]) for row in output.rows()) == [(number, number) for number in range(7)]


def test_the_log_in_a_checkpoint_has_this_layout() -> None:
    bench = Bench(DropDuplicatesOperator(100, "at"), ("k",)).begin()
    bench.process(batch([(1, 5), (None, 7), (1, 6)]))
    pieces = bench.context.keyed.snapshot().encode(1 << 20)
    assert bench.context.keyed.declared == {"seen": "rows by (k)"}
    (piece,) = pieces
    assert str(piece.batch.schema.types) == str(
        [
            pa.int32(),
            pa.struct([("k", pa.int64())]),
            pa.struct([("k", pa.int64()), ("penstock.until", pa.int64())]),
        ]
    )
    assert sorted(piece.batch.to_pylist(), key=str) == [
        {"key_group": 9, "key": {"k": 1}, "value": {"k": 1, "penstock.until": 105}},
        {"key_group": 9, "key": {"k": None}, "value": {"k": None, "penstock.until": 107}},
    ]


def test_a_column_is_needed_and_a_duration_must_be_one() -> None:
    stream = Pipeline("p").source(ListSource([{"id": 1}]))
    with pytest.raises(PipelineError, match="drop_duplicates takes the names of columns"):
        stream.drop_duplicates()
    with pytest.raises(PipelineError, match="within"):
        stream.drop_duplicates("id", within="soon")
