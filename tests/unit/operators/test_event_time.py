"""Watermarks from the data: what they are, what becomes of those from upstream, and how they are restored."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, Pipeline, PipelineError
from penstock.ids import OperatorName
from penstock.metrics.registry import Registry
from penstock.model.event_time import IDLE_WATERMARK, MAX_WATERMARK, ticks_of
from penstock.operators.contract import Emit, Operator, OperatorContext
from penstock.operators.event_time import EventTimeOperator
from penstock.testing import CollectSink, ListSource, run

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


class FakeContext:
    """Keeps the times that are reported."""

    operator = OperatorName("times")
    subtask, parallelism, max_parallelism = 0, 2, 128

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.idle_after_ms: list[int | None] = []
        self.former: list[str] = []
        self.metrics = Registry().of(self.operator, self.subtask)

    def now_ms(self) -> int:
        return NOW_MS

    def former_state(self, name: str) -> None:
        self.former.append(name)

    def follow_event_time(self, idle_after_ms: int | None, max_drift_ms: int | None = None) -> None:
        self.idle_after_ms.append(idle_after_ms)

    def saw_event_time(self, reached_ms: int) -> None:
        self.seen.append(reached_ms)


def opened(
    context: FakeContext, max_delay_ms: int = 0, idle_after_ms: int | None = None, **more: Any
) -> EventTimeOperator:
    operator = EventTimeOperator("ts", max_delay_ms, idle_after_ms, **more)
    operator.open(context)  # type: ignore[arg-type]
    operator.on_restored(lambda batch: None)
    return operator


def batch_of(*times: Any, kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"ts": pa.array(times, kind or pa.int64())})


def fed(operator: EventTimeOperator, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    emitted: list[pa.RecordBatch] = []
    for batch in batches:
        operator.process(batch, 0, emitted.append)
    return emitted


def test_the_newest_time_of_each_batch_is_reported_less_the_delay() -> None:
    context = FakeContext()
    batches = [batch_of(5, 30, 10), batch_of(25), batch_of(), batch_of(41, 2)]
    assert fed(opened(context, 10), *batches) == batches
    assert context.seen == [20, 15, 31]


def test_records_go_before_their_watermark() -> None:
    context, order = FakeContext(), []
    operator = opened(context)
    operator.process(batch_of(7), 0, lambda batch: order.append(list(context.seen)))
    assert order == [[]]
    assert context.seen == [7]


def test_it_follows_event_time_and_accepts_the_clock_of_older_checkpoints() -> None:
    context = FakeContext()
    opened(context, 5, idle_after_ms=700)
    assert context.idle_after_ms == [700]
    assert context.former == ["clock"]


@pytest.mark.parametrize(
    ("unit", "time", "watermark"),
    [
        ("s", 2, 2_000),
        ("s", -2, -2_000),
        ("ms", 1_999, 1_999),
        ("us", 1_999_999, 1_999),
        ("us", -1, -1),
        ("us", -1_000_001, -1_001),
        ("ns", 1_999_999, 1),
        ("ns", -1, -1),
    ],
)
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_times_of_any_unit_are_rounded_down_to_milliseconds(
    unit: str, zone: str | None, time: int, watermark: int
) -> None:
    context = FakeContext()
    fed(opened(context), batch_of(time, kind=pa.timestamp(unit, zone)))
    assert context.seen == [watermark]


def test_what_has_no_unit_is_no_time() -> None:
    assert [ticks_of(kind) for kind in (pa.int32(), pa.uint64(), pa.float64(), pa.date32(), pa.string())] == [None] * 5


def test_the_end_of_all_times_is_not_the_end_of_the_input() -> None:
    context = FakeContext()
    fed(opened(context), batch_of(MAX_WATERMARK))
    assert context.seen == [MAX_WATERMARK - 1]


def test_a_time_that_is_no_number_of_milliseconds_in_64_bits_is_the_first_or_the_last_there_is() -> None:
    context = FakeContext()
    fed(opened(context, 5), batch_of(-(2**62), kind=pa.timestamp("s")), batch_of(2**62, kind=pa.timestamp("s")))
    assert context.seen == [IDLE_WATERMARK + 1, MAX_WATERMARK - 1]


def test_watermarks_from_upstream_end_here_but_for_the_last_one() -> None:
    operator = opened(FakeContext())
    assert operator.on_watermark(5, lambda batch: None)
    assert operator.on_watermark(MAX_WATERMARK - 1, lambda batch: None)
    assert not operator.on_watermark(MAX_WATERMARK, lambda batch: None)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (
            pa.record_batch({"at": [1]}),
            "operator 'times': event-time column 'ts' not found.* are at. Keep it",
        ),
        (batch_of("now", kind=pa.string()), "operator 'times': the event time 'ts' is of type string: cast it"),
        (batch_of(1, None), "operator 'times': the event time 'ts' is null in 1 of 2 rows: filter them out"),
        (batch_of(1.5, kind=pa.float64()), "of type double"),
    ],
)
def test_what_cannot_be_an_event_time_is_refused(batch: pa.RecordBatch, text: str) -> None:
    context = FakeContext()
    with pytest.raises(DataError, match=text):
        fed(opened(context), batch)
    assert context.seen == []


@pytest.mark.parametrize(
    "arguments",
    [("", "1 s", None), (None, "1 s", None), ("ts", "soon", None), ("ts", -1, None), ("ts", 1, 0), ("ts", 1, "soon")],
)
def test_arguments_are_checked_at_the_call(arguments: tuple[Any, Any, Any]) -> None:
    column, delay, idle_after = arguments
    with pytest.raises(PipelineError, match="with_watermark"):
        Pipeline("p").source(ListSource([{"ts": 1}])).with_watermark(column, delay, idle_after=idle_after)


# --- in a pipeline ---


class Watermarks(Operator):
    """Emits what it hears."""

    def open(self, context: OperatorContext) -> None:
        self.last: int | None = None

    def process(self, batch: pa.RecordBatch, source: int, emit: Emit) -> None:
        emit(pa.record_batch({"what": ["record"] * batch.num_rows, "ts": batch["ts"].cast(pa.int64())}))

    def on_watermark(self, watermark: int, emit: Emit) -> None:
        if watermark < MAX_WATERMARK:
            emit(pa.record_batch({"what": ["watermark"], "ts": [watermark]}))


@pytest.mark.parametrize("is_chained", [True, False])
def test_operators_behind_it_hear_the_watermarks_in_their_place(is_chained: bool) -> None:
    """Also those of the same chain, where no channel brings them."""
    pipeline, sink = Pipeline("p"), CollectSink()
    source = ListSource([{"ts": 10}, {"ts": 5}, {"ts": 30}], batch_rows=1, watermark_column="ts")
    stream = pipeline.source(source).with_watermark("ts", "3 ms").map(lambda batch: batch)
    if not is_chained:
        stream = stream.rebalance()
    stream._node("seen", Watermarks, None, None).sink(sink)
    run(pipeline)
    said = [(row["what"], row["ts"]) for row in sink.rows()]
    assert said == [("record", 10), ("watermark", 7), ("record", 5), ("record", 30), ("watermark", 27)]


def test_timestamps_of_python_are_event_times_too() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    at = datetime.datetime(1970, 1, 1, 0, 0, 2, tzinfo=datetime.UTC)
    stream = pipeline.source(ListSource([{"ts": at}])).with_watermark("ts", "1 s")
    stream._node("seen", Watermarks, None, None).filter(lambda b: pa.compute.equal(b["what"], "watermark")).sink(sink)
    run(pipeline)
    assert sink.rows() == [{"what": "watermark", "ts": 1000}]


# --- numbers of another unit ---


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("us", 10**6), ("ns", 10**9)])
def test_numbers_that_look_like_another_unit_are_a_warning_with_the_cure(
    unit: str, per_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    operator = opened(FakeContext())
    fed(operator, batch_of(1_700_000_000 * per_s, 1_700_000_060 * per_s), batch_of(1_700_000_100 * per_s))
    (record,) = [each for each in caplog.records if "are read as milliseconds" in each.getMessage()]
    assert f'if they are, use with_watermark("ts", "…", unit="{unit}")' in record.getMessage()


@pytest.mark.parametrize("times", [(1_000, 2_500), (0,), (-5_000, 10), (NOW_MS,), (1_700_000_000, 5)])
def test_numbers_that_may_be_milliseconds_are_no_warning(
    times: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    fed(opened(FakeContext()), batch_of(*times))
    assert not caplog.records


@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
def test_with_a_unit_numbers_are_timestamps(unit: Any, per_s: int, caplog: pytest.LogCaptureFixture) -> None:
    context = FakeContext()
    (batch,) = fed(opened(context, unit=unit), batch_of(1_700_000_000 * per_s))
    assert batch.schema.field("ts").type == pa.timestamp(unit, "UTC")
    assert batch["ts"].to_pylist()[0] == datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
    assert context.seen == [1_700_000_000_000]
    assert not caplog.records


def test_a_timestamp_has_a_unit_already() -> None:
    with pytest.raises(DataError, match=r"'ts' is of type timestamp\[s\], which has a unit already: leave out unit="):
        fed(opened(FakeContext(), unit="s"), batch_of(1, kind=pa.timestamp("s")))


def test_windows_know_the_unit() -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    stream = pipeline.source(ListSource([{"k": 1, "at": 1_700_000_000 + n} for n in range(10)]))
    stream.with_watermark("at", unit="s", delay=0).key_by("k").window("5 s").count().sink(sink)
    run(pipeline)
    assert [row["count"] for row in sink.rows()] == [5, 5]


# --- times in the future ---

FUTURE_MS = 10_000_000_000_000


def test_one_time_far_ahead_is_a_warning_with_the_time_and_the_cure(caplog: pytest.LogCaptureFixture) -> None:
    context = FakeContext()
    fed(opened(context), batch_of(NOW_MS, NOW_MS + 1, FUTURE_MS), batch_of(FUTURE_MS))
    (record,) = caplog.records
    assert "a row has the time 2286-11-20 17:46:40 UTC in 'ts'" in record.getMessage()
    assert 'max_ahead="1 hour"' in record.getMessage()
    assert context.seen == [FUTURE_MS, FUTURE_MS]


def test_it_is_a_warning_if_it_comes_alone(caplog: pytest.LogCaptureFixture) -> None:
    fed(opened(FakeContext()), batch_of(NOW_MS, NOW_MS + 1), batch_of(FUTURE_MS))
    assert len(caplog.records) == 1


def test_it_is_a_warning_once_if_it_is_the_first_of_all(caplog: pytest.LogCaptureFixture) -> None:
    fed(opened(FakeContext()), batch_of(FUTURE_MS), *(batch_of(NOW_MS + n) for n in range(10)))
    (record,) = caplog.records
    assert "a row has the time 2286-11-20 17:46:40 UTC in 'ts'" in record.getMessage()


def test_input_that_lies_in_the_future_as_a_whole_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    fed(opened(FakeContext()), batch_of(FUTURE_MS), *(batch_of(FUTURE_MS + n) for n in range(10)))
    assert not caplog.records


def test_with_max_ahead_it_does_not_move_event_time_and_its_row_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    context = FakeContext()
    batches = [batch_of(NOW_MS, FUTURE_MS, NOW_MS + 3_600_000), batch_of(FUTURE_MS), batch_of(NOW_MS + 3_600_001)]
    assert fed(opened(context, max_ahead_ms=3_600_000), *batches) == batches
    assert context.seen == [NOW_MS + 3_600_000]
    (record,) = caplog.records
    assert "1 of 3 rows so far, up to 2286-11-20 17:46:40 UTC in 'ts', are further ahead" in record.getMessage()


def test_a_limit_beyond_all_times_is_no_limit() -> None:
    context = FakeContext()
    nine = batch_of(9 * 10**18, kind=pa.timestamp("ns"))
    fed(opened(context, max_ahead_ms=1000 * 365 * DAY_MS), nine)
    assert context.seen == [9 * 10**12]


def test_windows_go_on_beside_a_time_in_the_future() -> None:
    now = datetime.datetime.now(datetime.UTC)
    rows = [{"k": 1, "at": now + datetime.timedelta(seconds=n)} for n in range(20)]
    rows.insert(5, {"k": 1, "at": datetime.datetime(2286, 1, 1, tzinfo=datetime.UTC)})
    late = []
    for max_ahead in (None, "1 hour"):
        pipeline, sink = Pipeline("p"), CollectSink()
        stream = pipeline.source(ListSource(rows, batch_rows=1))
        stream.with_watermark("at", "1 s", max_ahead=max_ahead).key_by("k").window("1 s").count().sink(sink)
        late.append(run(pipeline).rows_late)
    assert late[0] > 10
    assert late[1] == 0


@pytest.mark.parametrize(
    ("options", "message"), [({"unit": "min"}, "unit is 'min'"), ({"max_ahead": "soon"}, "max_ahead is 'soon'")]
)
def test_a_unit_or_limit_that_cannot_be_is_found_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Pipeline("p").source(ListSource([{"t": 1}])).with_watermark("t", 0, **options)
