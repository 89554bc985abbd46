"""Sessions, updates of windows, and one group, in whole pipelines. DuckDB judges one."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from penstock import DataError, KeyedStream, Pipeline, PipelineError, Stream
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import FixedWindows, SessionWindows
from penstock.testing import CHECKPOINT, CollectSink, ListSource, run
from tests.unit.operators.windows.test_windows import ALL, _without_order, found, run_of
from tests.unit.window_model import Model, SessionModel

LATE = [{"k": 1, "v": 1, "ts": 5}, {"k": 1, "v": 2, "ts": 40}, {"k": 1, "v": 4, "ts": 6}, {"k": 1, "v": 8, "ts": 25}]
"""One at a time: with a delay of 20, after the second the watermark is at 20."""


def rows_of(count: int) -> list[dict[str, Any]]:
    """Out of order by up to 15, with pauses of different lengths."""
    generator = np.random.default_rng(11)
    times = np.cumsum(generator.choice([0, 0, 1, 2, 6], count)) - 200 - generator.integers(0, 15, count)
    return [
        {"k": f"key {n % 7}", "v": None if n % 11 == 0 else n % 101, "ts": int(at)}
        for n, at in enumerate(times.tolist())
    ]


def timed(stream: Stream, delay: str = "20 ms") -> KeyedStream:
    return stream.with_watermark("ts", delay).key_by("k")


def test_every_session_is_emitted_once_whatever_fails_and_after_a_rescale() -> None:
    rows = rows_of(3_000)
    marked = [item for n in range(0, 3_000, 300) for item in (*rows[n : n + 300], CHECKPOINT)]
    pipeline, sink = Pipeline("p"), CollectSink()
    stream = pipeline.source(ListSource(marked, splits=1, batch_rows=20))
    timed(stream).session("10 ms").aggregate(**ALL, name="sessions").sink(sink)
    options: dict[str, Any] = {"crash_after_checkpoints": [1, 3]}
    first = run(pipeline, parallelism=2, workers=2, until=lambda: len(sink.rows()) > 60, **options)
    assert first.restarts > 0
    second = run(pipeline, parallelism=3, workers=3, store=first.store)
    model = SessionModel(SessionWindows(10))
    model.add([(row["k"], row["v"], row["ts"]) for row in rows])
    assert _without_order(found(sink.rows())) == _without_order(model.close(MAX_WATERMARK))
    assert first.rows_late == second.rows_late == 0


def test_sessions_are_those_of_duckdb() -> None:
    rows = rows_of(1_000)
    output, _ = run_of(lambda stream: timed(stream).session("10 ms").aggregate(**SQL), ListSource(rows, batch_rows=37))
    query = """
        with marked as (
            select *, ts - lag(ts, 1, -1000000) over (partition by k order by ts) > 10 as is_first from events
        ),
        numbered as (select *, sum(is_first::int) over (partition by k order by ts) as session from marked)
        select k, min(ts) as window_start, max(ts) + 10 as window_end, sum(v)::bigint as total, count(*) as n,
            stddev_samp(v) as std, count(distinct v) as values, arg_max(ts, v) as at
        from numbered group by k, session
    """
    with duckdb.connect() as connection:
        connection.register("events", pa.Table.from_pylist(rows))
        judged = connection.execute(query)
        names = [column[0] for column in judged.description or []]
        answers = [dict(zip(names, row, strict=True)) for row in judged.fetchall()]
    mine = sorted(output, key=lambda row: (row["k"], row["window_start"]))
    theirs = sorted(answers, key=lambda row: (row["k"], row["window_start"]))
    assert len(mine) == len(theirs) > 50
    for ours, other in zip(mine, theirs, strict=True):
        assert {**ours, "std": None, "at": None} == {**other, "std": None, "at": None}
        assert ours["std"] == pytest.approx(other["std"])


SQL: dict[str, Any] = {
    "total": ("sum", "v"),
    "n": "count",
    "std": ("std", "v"),
    "values": ("count_distinct", "v"),
    "at": ("arg_max", "ts", "v"),
}


def test_a_record_of_a_session_that_would_be_complete_is_late() -> None:
    def build(stream: Stream, **options: Any) -> Stream:
        return timed(stream).session("10 ms", **options).aggregate(total=("sum", "v"), name="sessions")

    output, result = run_of(build, ListSource(LATE, batch_rows=1))
    assert {row["window_start"]: row["total"] for row in output} == {5: 1, 25: 8, 40: 2}
    assert result.rows_late == 1
    with pytest.raises(DataError, match="operator 'sessions': 1 rows arrived after their windows had been emitted"):
        run_of(lambda stream: build(stream, late="error"), ListSource(LATE, batch_rows=1), restarts=0)


# --- updates ---


def test_a_late_record_that_is_allowed_makes_a_newer_version_of_its_window() -> None:
    def build(stream: Stream) -> Stream:
        windows = timed(stream).window("10 ms", allowed_lateness="15 ms", late="error")
        return windows.aggregate(total=("sum", "v"), sequence="version")

    output, result = run_of(build, ListSource(LATE, batch_rows=1))
    assert [(row["window_start"], row["total"], row["version"]) for row in output] == [
        (0, 1, 1),
        (0, 5, 2),
        (20, 8, 1),
        (40, 2, 1),
    ]
    assert result.rows_late == 0


@pytest.mark.parametrize("emit", ["on_update", "1 ms"])
def test_the_newest_version_of_early_results_is_the_result_whatever_fails(emit: str) -> None:
    rows = rows_of(1_500)
    output, result = run_of(
        lambda stream: timed(stream).window("12 ms", every="4 ms", emit=emit).aggregate(**ALL, sequence="version"),
        ListSource(rows, batch_rows=20),
        parallelism=2,
        workers=2,
        crash_after_checkpoints=[1],
    )
    assert result.restarts == 1
    newest: dict[Any, dict[str, Any]] = {}
    for row in output:
        place = row["k"], row["window_start"]
        if place not in newest or newest[place]["version"] <= row["version"]:
            newest[place] = row
    model = Model(FixedWindows(12, 4))
    model.add([(row["k"], row["v"], row["ts"]) for row in rows])
    assert len(output) > len(newest) or emit != "on_update"
    assert _without_order(found(list(newest.values()))) == _without_order(model.close(MAX_WATERMARK))


def test_early_results_come_before_their_window_is_complete() -> None:
    """The input does not end before an early result has been seen."""
    pipeline, sink = Pipeline("p"), CollectSink()
    rows = [{"k": 1, "v": n, "ts": n} for n in range(30)]
    source = ListSource([item for row in rows for item in (row, CHECKPOINT)], batch_rows=1)
    windows = timed(pipeline.source(source)).window("1 hour", emit="on_update")
    windows.count(sequence="version").sink(sink)
    run(pipeline)
    versions = [row["version"] for row in sink.rows()]
    assert len(versions) > 1
    assert versions == sorted(set(versions))
    assert versions[-1] == 30


@pytest.mark.parametrize("emit", ["on_closing", -1, None, "0 s"])
def test_another_word_for_emit_is_refused_with_the_words_there_are(emit: Any) -> None:
    keyed = timed(Pipeline("p").source(ListSource([])))
    with pytest.raises(PipelineError, match="it must be 'on_close', 'on_update', or a duration such as '5 s'"):
        keyed.window("1 s", emit=emit)


# --- one group ---


def test_without_a_key_all_records_are_one_group() -> None:
    rows = rows_of(500)

    def build(stream: Stream) -> Stream:
        return stream.with_watermark("ts", "20 ms").key_by().window("50 ms").aggregate(n="count", total=("sum", "v"))

    output, _ = run_of(build, ListSource(rows, splits=1, batch_rows=33), parallelism=3, workers=2)
    expected: dict[int, int] = {}
    for row in rows:
        start = row["ts"] // 50 * 50
        expected[start] = expected.get(start, 0) + 1
    assert {row["window_start"]: row["n"] for row in output} == expected
    assert list(output[0]) == ["window_start", "window_end", "n", "total"]


def test_late_records_of_one_group_have_their_own_columns_alone() -> None:
    pipeline, sink, late = Pipeline("p"), CollectSink(), CollectSink()
    stream = pipeline.source(ListSource(LATE, batch_rows=1)).with_watermark("ts", "20 ms")
    counts = stream.key_by().window("10 ms", late="stream").count()
    counts.sink(sink, name="counts")
    counts.late().sink(late, name="late")
    run(pipeline)
    assert late.rows() == [{"k": 1, "v": 4, "ts": 6}]
    assert [row["window_start"] for row in sink.rows()] == [0, 20, 40]


def test_one_group_has_one_subtask_and_no_functions_by_key() -> None:
    grouped = Pipeline("p").source(ListSource([])).key_by()
    with pytest.raises(PipelineError, match="makes one group, which one subtask processes"):
        grouped.count(parallelism=2)
    with pytest.raises(PipelineError, match="process needs the columns of a key"):
        grouped.process(object())


@pytest.mark.parametrize("settings", [{"emit": "on_update"}, {"emit": "5 s"}, {"allowed_lateness": "1 s"}])
def test_the_first_records_of_a_window_that_is_emitted_again_are_refused(settings: dict[str, Any]) -> None:
    stream = timed(Pipeline("p").source(ListSource([])))
    with pytest.raises(PipelineError, match="emits a window once, when it is complete: leave out emit="):
        stream.window("10 ms", **settings).top(1, by="v")


def test_one_group_of_all_records_has_no_joins() -> None:
    stream = Pipeline("p").source(ListSource([])).with_watermark("ts", 0)
    for join in (stream.key_by().join, stream.key_by().join_as_of):
        with pytest.raises(PipelineError, match=r"needs the columns of a key, and key_by\(\) names none"):
            join(stream.key_by("k"))
