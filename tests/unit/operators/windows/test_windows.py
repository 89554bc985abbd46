"""Windows in whole pipelines: what is emitted and when, late records, failures, rescaling, and what is refused."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import DataError, KeyedStream, Pipeline, PipelineError, RestoreError, Source, Stream
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import FixedWindows
from penstock.testing import CHECKPOINT, CollectSink, ListSource, Result, run
from tests.unit.window_model import FUNCTIONS, Model

ALL: dict[str, Any] = {**{function: (function, "v") for function in FUNCTIONS}, "rows": "count"}


def rows_of(count: int, shuffled_ms: int = 0) -> list[dict[str, Any]]:
    """Five records in a millisecond, in order but for `shuffled_ms`."""
    shuffled = np.random.default_rng(3).integers(0, shuffled_ms + 1, count)
    return [
        {"k": f"key {n % 7}", "v": None if n % 11 == 0 else n % 101, "ts": n // 5 - 50 - int(shuffled[n])}
        for n in range(count)
    ]


def expected(rows: list[dict[str, Any]], windows: FixedWindows) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    model = Model(windows)
    model.add([(row["k"], row["v"], row["ts"]) for row in rows])
    return model.close(MAX_WATERMARK)


def found(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    made = {(row["k"], row["window_start"], row["window_end"]): tuple(row.values())[3:] for row in rows}
    assert len(made) == len(rows), "a window is emitted twice"
    return made


def run_of(build: Callable[[Stream], Stream], source: Source, **options: Any) -> tuple[list[dict[str, Any]], Result]:
    pipeline, sink = Pipeline("p"), CollectSink()
    build(pipeline.source(source, name="source")).sink(sink)
    result = run(pipeline, **options)
    return sink.rows(), result


def windowed(stream: Stream, **window: Any) -> Stream:
    return (
        stream.with_watermark("ts", "20 ms")
        .map(lambda batch: batch)
        .key_by("k")
        .window(**{"size": "10 ms", **window})
        .aggregate(**ALL, name="windows")
    )


# --- whole pipelines ---


@pytest.mark.parametrize(
    ("window", "windows"),
    [
        ({}, FixedWindows(10, 10)),
        ({"size": "20 ms", "offset": "3 ms"}, FixedWindows(20, 20, 3)),
        ({"size": datetime.timedelta(milliseconds=30), "every": "20 ms", "offset": "15 ms"}, FixedWindows(30, 20, 15)),
    ],
)
def test_every_window_is_emitted_once_whatever_fails(window: dict[str, Any], windows: FixedWindows) -> None:
    """With one split for each subtask, so that the order in a subtask is that of the source."""
    rows = rows_of(4_000, shuffled_ms=15)
    output, result = run_of(
        lambda stream: windowed(stream, **window),
        ListSource(rows, splits=2, batch_rows=40),
        parallelism=2,
        workers=2,
        crash_after_checkpoints=[1, 3],
    )
    assert result.restarts == 2
    # Within a window the order of arrival from two subtasks is open: what depends on it is not compared.
    assert _without_order(found(output)) == _without_order(expected(rows, windows))
    assert result.rows_late == 0


def _without_order(windows: dict[tuple[Any, ...], tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {place: (*values[:5], values[7]) for place, values in windows.items()}


def test_all_functions_of_aggregates() -> None:
    rows = rows_of(2_000, shuffled_ms=15)
    output, _ = run_of(windowed, ListSource(rows, batch_rows=30))
    assert found(output) == expected(rows, FixedWindows(10, 10))


def test_windows_are_emitted_while_the_input_goes_on_and_survive_a_rescale() -> None:
    """Stopped with windows open, at two subtasks, and gone on with three: nothing is lost, and nothing comes twice."""
    rows = [{"k": n % 5, "v": n % 17, "ts": n // 40} for n in range(12_000)]
    marked = [item for n in range(0, 12_000, 1_000) for item in (*rows[n : n + 1_000], CHECKPOINT)]
    source = ListSource(marked, splits=6, batch_rows=20)

    def build(stream: Stream) -> Stream:
        return stream.with_watermark("ts", "100 ms").key_by("k").window("30 ms", every="10 ms").aggregate(**ALL)

    pipeline, sink = Pipeline("p"), CollectSink()
    build(pipeline.source(source)).sink(sink)
    first = run(pipeline, parallelism=2, workers=2, until=lambda: len(sink.rows()) > 30)
    emitted = len(sink.rows())
    assert emitted > 30
    second = run(pipeline, parallelism=3, workers=3, store=first.store)
    assert len(sink.rows()) > emitted
    assert first.rows_late == second.rows_late == 0
    assert _without_order(found(sink.rows())) == _without_order(expected(rows, FixedWindows(30, 10)))


def test_count_and_sum() -> None:
    rows = [{"k": 1, "v": 2, "ts": 0}, {"k": 1, "v": 3, "ts": 9}, {"k": 1, "v": 5, "ts": 10}]

    def keyed(stream: Stream) -> KeyedStream:
        return stream.with_watermark("ts", 0).key_by("k")

    bounds = [{"k": 1, "window_start": 0, "window_end": 10}, {"k": 1, "window_start": 10, "window_end": 20}]
    counts, _ = run_of(lambda stream: keyed(stream).window("10 ms").count(), ListSource(rows))
    assert counts == [{**bounds[0], "count": 2}, {**bounds[1], "count": 1}]
    sums, _ = run_of(lambda stream: keyed(stream).window("10 ms").sum("v", "total"), ListSource(rows))
    assert sums == [{**bounds[0], "total": 5}, {**bounds[1], "total": 5}]


# --- late records ---

LATE = [{"k": 1, "v": 1, "ts": 5}, {"k": 1, "v": 2, "ts": 40}, {"k": 1, "v": 4, "ts": 6}, {"k": 1, "v": 8, "ts": 25}]
"""One at a time: after the second the watermark is at 20."""


def test_late_records_are_left_out_and_counted() -> None:
    output, result = run_of(windowed, ListSource(LATE, batch_rows=1))
    assert {place[1]: values[0] for place, values in found(output).items()} == {0: 1, 20: 8, 40: 2}
    assert result.rows_late == 1


def test_late_records_are_an_error_if_they_are_to_be() -> None:
    with pytest.raises(
        DataError, match=r"operator 'windows': 1 rows arrived after their windows had been emitted.*delay in with_w"
    ):
        run_of(lambda stream: windowed(stream, late="error"), ListSource(LATE, batch_rows=1), restarts=0)


def test_a_longer_delay_makes_them_timely() -> None:
    output, result = run_of(
        lambda stream: stream.with_watermark("ts", "31 ms").key_by("k").window("10 ms").aggregate(**ALL),
        ListSource(LATE, batch_rows=1),
    )
    assert {place[1]: values[0] for place, values in found(output).items()} == {0: 5, 20: 8, 40: 2}
    assert result.rows_late == 0


# --- whose watermarks ---


def test_watermarks_of_the_source_do_if_the_column_is_named() -> None:
    output, result = run_of(
        lambda stream: stream.key_by("k").window("10 ms", on="ts").aggregate(**ALL),
        ListSource(LATE, batch_rows=1, watermark_column="ts"),
    )
    assert {place[1]: values[0] for place, values in found(output).items()} == {0: 1, 40: 2}
    assert result.rows_late == 2


def test_watermarks_of_the_data_replace_those_of_the_source() -> None:
    output, result = run_of(
        lambda stream: stream.with_watermark("ts", "100 ms").key_by("k").window("10 ms").aggregate(**ALL),
        ListSource(LATE, batch_rows=1, watermark_column="ts"),
    )
    assert {place[1]: values[0] for place, values in found(output).items()} == {0: 5, 20: 8, 40: 2}
    assert result.rows_late == 0


def test_the_column_is_known_behind_other_operators_and_can_be_another_one() -> None:
    def build(stream: Stream) -> Stream:
        timed = stream.with_watermark("ts", "100 ms").filter(pc.field("v") > 0).rebalance()
        other = timed.with_column("at", lambda batch: pc.add(batch["ts"], 100))
        return other.union(other.filter(pc.field("v") > 1_000)).key_by("k").window("10 ms", on="at").aggregate(**ALL)

    output, _ = run_of(build, ListSource(LATE))
    assert [row["window_start"] for row in output] == [100, 120, 140]


def test_results_of_windows_can_be_windowed_again() -> None:
    def build(stream: Stream) -> Stream:
        seconds = stream.with_watermark("ts", 0).key_by("k").window("10 ms").sum("v")
        return (
            seconds.with_column("at", lambda batch: pc.subtract(batch["window_end"], 1))
            .key_by("k")
            .window("20 ms", on="at")
            .aggregate(total=("sum", "v"), windows="count")
        )

    rows = [{"k": 1, "v": n, "ts": n} for n in range(100)]
    output, result = run_of(build, ListSource(rows, batch_rows=7))
    assert [(row["window_start"], row["windows"]) for row in output] == [(start, 2) for start in range(0, 100, 20)]
    assert [row["total"] for row in output] == [sum(range(start, start + 20)) for start in range(0, 100, 20)]
    assert result.rows_late == 0


# --- what is refused ---


def keyed() -> KeyedStream:
    return Pipeline("p").source(ListSource(LATE)).with_watermark("ts", 0).key_by("k")


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: keyed().window(0), "window: size is 0: it must be whole milliseconds, at least 1"),
        (lambda: keyed().window("soon"), "window: size is 'soon': it must be a number of seconds"),
        (lambda: keyed().window("10 ms", every="11 ms"), "every must not exceed the size"),
        (lambda: keyed().window("10 ms", every="5 ms", offset="5 ms"), "offset must be less than every"),
        (lambda: keyed().window("10 ms", late="ignore"), "window: late is 'ignore': it must be 'drop' or 'error'"),
        (
            lambda: Pipeline("p").source(ListSource(LATE)).key_by("k").window("10 ms"),
            "window needs event time: call with_",
        ),
        (lambda: keyed().window("10 ms").count().key_by("k").window("10 ms"), "window needs event time"),
        (lambda: keyed().window("10 ms").aggregate(), "aggregate needs at least one output"),
        (lambda: keyed().window("10 ms").aggregate(window_end="count"), "the name of a key column"),
        (lambda: keyed().window("10 ms").aggregate(n=("median", "v")), "functions are sum, count"),
    ],
)
def test_descriptions_that_cannot_work(build: Callable[[], Any], text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        build()


def test_a_union_of_streams_with_different_event_times_must_say_which() -> None:
    pipeline = Pipeline("p")
    left = pipeline.source(ListSource(LATE)).with_watermark("ts", 0)
    right = pipeline.source(ListSource(LATE)).with_watermark("v", 0)
    with pytest.raises(PipelineError, match="window needs event time"):
        left.union(right).key_by("k").window("10 ms")
    assert left.union(right).key_by("k").window("10 ms", on="ts").windows == FixedWindows(10, 10)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (lambda batch: pa.nulls(batch.num_rows, pa.int64()), "operator 'windows': the event time 'ts' is null in"),
        (lambda batch: pc.cast(batch["ts"], pa.string()), "operator 'windows': the event time 'ts' is of type string"),
    ],
)
def test_records_that_cannot_be_windowed_name_the_operator(column: Any, text: str) -> None:
    def build(stream: Stream) -> Stream:
        timed = stream.with_watermark("ts", 0).with_column("ts", column)
        return timed.key_by("k").window("10 ms").aggregate(**ALL, name="windows")

    with pytest.raises(DataError, match=text):
        run_of(build, ListSource(LATE), restarts=0)


def test_a_column_that_was_left_out_names_the_operator_and_the_cure() -> None:
    def build(stream: Stream) -> Stream:
        timed = stream.with_watermark("ts", 0).select("k", "v")
        return timed.key_by("k").window("10 ms").aggregate(**ALL, name="windows")

    with pytest.raises(
        DataError,
        match=r"operator 'windows': event-time column 'ts' not found.* are k, v. Keep",
    ):
        run_of(build, ListSource(LATE), restarts=0)


def test_a_checkpoint_of_other_windows_is_refused() -> None:
    source = ListSource([*LATE, CHECKPOINT, *LATE])
    with pytest.raises(
        RestoreError, match=r"operator 'windows', whose windows was 10 ms every 10 ms .* and is 20 ms every 20 ms"
    ):
        store = run_of(windowed, source)[1].store
        run_of(lambda stream: windowed(stream, size="20 ms"), source, store=store, restarts=0)
