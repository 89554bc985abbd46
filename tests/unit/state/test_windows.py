"""Windowed aggregates against plain Python: any order of records, any watermarks, any moment of a snapshot."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.columnar.hashing import key_groups
from penstock.errors import DataError, PipelineError, RestoreError
from penstock.model.event_time import MAX_WATERMARK, Ticks
from penstock.model.windows import FixedWindows, SessionWindows, WindowKind
from penstock.model.windows.fixed import Grid
from penstock.protocol.key_groups import key_groups_of
from penstock.state import Aggregate, KeyedPiece, KeyedState
from penstock.state.index.key_index import KeyIndex
from penstock.state.windows.sessions import SessionState
from penstock.state.windows.state import WindowState
from tests.unit.window_model import FUNCTIONS, Model, Row, SessionModel, model_of

GROUPS = 16
ALL = [Aggregate(function, "v", function) for function in FUNCTIONS] + [Aggregate("count", None, "rows")]  # type: ignore[arg-type]
TUMBLING = FixedWindows(10, 10)
SHAPES = [
    TUMBLING,
    FixedWindows(10, 10, 3),
    FixedWindows(12, 4),
    FixedWindows(10, 4, 1),
    FixedWindows(9, 6, 5),
    FixedWindows(7, 1),
    FixedWindows(20, 2),
]
KINDS: list[WindowKind] = [*SHAPES, SessionWindows(1), SessionWindows(5), SessionWindows(13)]

Emitted = dict[tuple[Any, int, int], tuple[Any, ...]]


class Subtask:
    """The state of one subtask, with what it has emitted."""

    def __init__(
        self, windows: WindowKind = TUMBLING, owned: range = range(GROUPS), key: tuple[str, ...] = ("k",)
    ) -> None:
        self.keyed = KeyedState(owned, GROUPS)
        self.state: WindowState | SessionState
        if isinstance(windows, SessionWindows):
            self.state = self.keyed.sessions("w", key, ALL, windows, "ts")
        else:
            self.state = self.keyed.windows("w", key, ALL, windows, "ts")
        self.late = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.late += len(self.state.add(batch))

    def close(self, watermark: int) -> Emitted:
        emitted: Emitted = {}
        for batch in self.state.close(watermark):
            batch.validate(full=True)
            for row in batch.to_pylist():
                key, start, end, *values = row.values()
                assert (key, start, end) not in emitted, "a window is emitted twice"
                emitted[key, start, end] = tuple(values)
        return emitted

    def pieces(self) -> list[KeyedPiece]:
        return self.keyed.snapshot().encode(1 << 20)

    def restore(self, pieces: list[KeyedPiece]) -> None:
        for piece in pieces:
            if piece.first < self.keyed.key_groups.stop and self.keyed.key_groups.start < piece.end:
                self.keyed.restore(piece.name, [piece.batch])


def batch_of(rows: list[Row], time: pa.DataType | None = None, key: pa.DataType | None = None) -> pa.RecordBatch:
    times = pa.array([row[2] for row in rows], pa.int64())
    if time is not None:
        times = times.cast(pa.timestamp("ms")).cast(time)
    return pa.record_batch(
        {
            "k": pa.array([row[0] for row in rows], key or pa.int64()),
            "v": pa.array([row[1] for row in rows], pa.int64()),
            "ts": times,
        }
    )


def group_of(key: int) -> int:
    return int(key_groups(batch_of([(key, 0, 0)]), ["k"], GROUPS)[0])


rows = st.lists(st.tuples(st.integers(0, 6), st.none() | st.integers(-5, 5), st.integers(-60, 60)), max_size=25)
steps = st.lists(rows | st.integers(-70, 70), max_size=12)
"""Batches of rows, and watermarks between them. A watermark that goes back changes nothing."""


# --- the grid ---


def test_panes_are_rounded_down_also_before_the_offset() -> None:
    grid = Grid(10, 3, 1, 1)
    assert [grid.pane_at(tick) for tick in (-8, -7, 2, 3, 12, 13)] == [-2, -1, -1, 0, 0, 1]
    assert [grid.start_of(pane) for pane in (-1, 0, 1)] == [-7, 3, 13]


def test_windows_are_made_up_of_the_longest_panes() -> None:
    assert FixedWindows(600, 400, 100).on(Ticks(1_000_000)) == Grid(200_000, 100_000, 3, 2)
    assert FixedWindows(1000, 1000).on(Ticks(1)) == Grid(1, 0, 1, 1)
    assert FixedWindows(1500, 1500).on(Ticks(1)) is None
    assert FixedWindows(2000, 1000, 500).on(Ticks(1)) is None


@given(st.sampled_from(SHAPES), st.sets(st.integers(-20, 20), max_size=6), st.integers(-30, 30), st.integers(-30, 30))
def test_the_windows_with_panes_are_those_that_trying_finds(
    windows: FixedWindows, panes: set[int], after: int, to: int
) -> None:
    grid = windows.on(Ticks(1000))
    assert grid is not None
    tried = [window for window in range(after + 1, to + 1) if panes & set(grid.panes_in(window))]
    assert list(grid.windows_with(sorted(panes), after, to)) == tried


@given(st.sampled_from(SHAPES), st.integers(-100, 100))
def test_a_window_is_complete_when_the_watermark_reaches_its_end_and_not_before(
    windows: FixedWindows, end: int
) -> None:
    grid = windows.on(Ticks(1000))
    assert grid is not None
    window = grid.last_complete(end)
    assert grid.window_bounds(window)[1] <= end < grid.window_bounds(window + 1)[1]
    assert grid.first_pane_after(window) == min(grid.panes_in(window + 1))


# --- against the model ---


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KINDS), steps)
def test_windows_are_those_of_the_model(windows: WindowKind, steps: list[list[Row] | int]) -> None:
    subtask, model = Subtask(windows), model_of(windows)
    for step in [*steps, MAX_WATERMARK]:
        _step(subtask, model, step)
        assert subtask.late == model.late
    assert subtask.state.open_panes == 0


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), steps, st.data())
def test_a_restored_state_goes_on_as_if_nothing_had_happened(
    windows: WindowKind, steps: list[list[Row] | int], data: st.DataObject
) -> None:
    """The snapshot is encoded when more has happened; it must hold what there was at its moment."""
    moment = data.draw(st.integers(0, len(steps)))
    later = data.draw(st.integers(moment, len(steps)))
    subtask, model = Subtask(windows), model_of(windows)
    for step in steps[:moment]:
        _step(subtask, model, step)
    taken, again = subtask.keyed.snapshot(), Subtask(windows)
    went_on = copy.deepcopy(model)
    for step in steps[moment:later]:
        _step(subtask, went_on, step)
    again.restore(taken.encode(64))
    late = model.late
    for step in [*steps[moment:], MAX_WATERMARK]:
        _step(again, model, step)
    assert again.late == model.late - late


def _step(subtask: Subtask, model: Model | SessionModel, step: list[Row] | int) -> None:
    """One step of both; what they emit must be the same."""
    if isinstance(step, list):
        model.add(step)
        subtask.add(batch_of(step))
    elif step > model.watermark:
        assert subtask.close(step) == model.close(step)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(KINDS), steps, st.lists(rows, max_size=3), st.integers(-70, 70), st.integers(-70, 70))
def test_after_a_rescale_every_key_goes_on_from_its_own_clock(
    windows: WindowKind, steps: list[list[Row] | int], after: list[list[Row]], first: int, second: int
) -> None:
    """Two subtasks that have come to different times become three; each key has a model of its own."""
    models: dict[int, Model | SessionModel] = {key: model_of(windows) for key in range(7)}
    old = [Subtask(windows, key_groups_of(index, 2, GROUPS)) for index in range(2)]
    for step in [*steps, (first, second)]:
        _at_all(old, models, step)
    pieces = [piece for subtask in old for piece in subtask.pieces()]
    new = [Subtask(windows, key_groups_of(index, 3, GROUPS)) for index in range(3)]
    for subtask in new:
        subtask.restore(pieces)
    # The clock of a subtask begins at that of the slowest one, and is behind that of some of its keys.
    late = sum(model.late for model in models.values()) - sum(subtask.late for subtask in old)
    assert late == 0
    for step in [*after, min(first, second), *after, (first + second) // 2, *after, 80, MAX_WATERMARK]:
        _at_all(new, models, step)
    assert sum(subtask.late for subtask in [*old, *new]) == sum(model.late for model in models.values())


def _at_all(subtasks: list[Subtask], models: dict[int, Model | SessionModel], step: Any) -> None:
    """Rows go to the owners of their keys; a watermark goes to all, one of two to each of two subtasks."""
    for index, subtask in enumerate(subtasks):
        mine = [key for key in models if group_of(key) in subtask.keyed.key_groups]
        if isinstance(step, list):
            own = [row for row in step if row[0] in mine]
            subtask.add(batch_of(own))
            for key in mine:
                models[key].add([row for row in own if row[0] == key])
            continue
        watermark = step[index] if isinstance(step, tuple) else step
        expected: Emitted = {}
        for key in mine:
            if watermark > models[key].watermark:
                expected |= models[key].close(watermark)
        assert subtask.close(watermark) == expected


# --- single cases ---


def test_a_record_at_the_end_of_a_window_belongs_to_the_next() -> None:
    subtask = Subtask()
    subtask.add(batch_of([(1, 5, 9), (1, 7, 10)]))
    assert subtask.close(9) == {}
    assert {place: values[0] for place, values in subtask.close(10).items()} == {(1, 0, 10): 5}
    assert {place: values[0] for place, values in subtask.close(20).items()} == {(1, 10, 20): 7}


def test_a_record_as_old_as_the_watermark_is_not_late_and_one_of_a_closed_window_is() -> None:
    subtask = Subtask()
    subtask.close(15)
    subtask.add(batch_of([(1, 1, 15), (1, 2, 10), (1, 3, 9)]))
    assert subtask.late == 1
    assert {place: values[0] for place, values in subtask.close(20).items()} == {(1, 10, 20): 3}


def test_windows_are_emitted_in_the_order_of_their_ends() -> None:
    subtask = Subtask(FixedWindows(10, 5))
    subtask.add(batch_of([(1, 1, 33), (1, 1, 2), (2, 1, 17)]))
    ends = [end for batch in subtask.state.close(MAX_WATERMARK) for end in batch["window_end"].to_pylist()]
    assert ends == sorted(ends)
    assert len(ends) == 6


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_the_bounds_of_a_window_have_the_type_of_the_event_time(unit: str, zone: str | None) -> None:
    kind = pa.timestamp(unit, zone)
    subtask = Subtask(FixedWindows(2000, 1000))
    subtask.add(batch_of([(1, 4, -1000), (1, 5, 1000), (2, None, 2000)], kind))
    assert subtask.state.close(1999)[-1].num_rows == 2
    batches = subtask.state.close(MAX_WATERMARK)
    assert batches[0].schema.field("window_start").type == kind
    assert batches[0].schema.field("window_end").type == kind
    starts = batches[0]["window_start"].cast(pa.timestamp("ms", zone)).cast(pa.int64()).to_pylist()
    assert sorted(zip(batches[0]["k"].to_pylist(), starts, strict=True)) == [(1, 0), (1, 1000), (2, 1000), (2, 2000)]


def test_microseconds_before_the_end_are_in_the_window() -> None:
    subtask = Subtask()
    times = pa.array([9_999, 10_000, -1, -10_001], pa.timestamp("us"))
    subtask.add(pa.record_batch({"k": [1, 1, 1, 1], "v": [1, 2, 3, 4], "ts": times}))
    (batch,) = subtask.state.close(MAX_WATERMARK)
    starts = batch["window_start"].cast(pa.int64()).to_pylist()
    assert list(zip(starts, batch["sum"].to_pylist(), strict=True)) == [
        (-20_000, 4),
        (-10_000, 3),
        (0, 1),
        (10_000, 2),
    ]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(pa.string(), ["a", "b", None]), (pa.float64(), [0.5, 1.5, None]), (pa.timestamp("us"), [1, 2, None])],
)
def test_keys_of_any_type_and_null_are_kept_through_a_restore(kind: pa.DataType, keys: list[Any]) -> None:
    subtask = Subtask(FixedWindows(20, 10))
    values = batch_of([(0, n, 5 * n) for n in range(9)])
    subtask.add(values.set_column(0, "k", pa.array(keys * 3, kind)))
    again = Subtask(FixedWindows(20, 10))
    again.restore(subtask.pieces())
    expected = subtask.close(MAX_WATERMARK)
    assert len(expected) == 15
    assert again.close(MAX_WATERMARK) == expected


def test_many_rows_in_and_out_of_order() -> None:
    generator = np.random.default_rng(7)
    for spread in (1, 30, 3_000_000):
        subtask, model = Subtask(FixedWindows(30, 10)), Model(FixedWindows(30, 10))
        for number in range(5):
            times = number * 8 + generator.integers(0, spread, 2_000) // 10
            some = list(zip(generator.integers(0, 50, 2_000).tolist(), range(2_000), times.tolist(), strict=True))
            subtask.add(batch_of(some))
            model.add(some)
            assert subtask.close(number * 8) == model.close(number * 8)
        assert subtask.close(MAX_WATERMARK) == model.close(MAX_WATERMARK)
        assert subtask.late == model.late


def test_rows_are_counted_without_any_other_column() -> None:
    """In order, out of order in few panes and in many, and in panes of an older index."""
    state = KeyedState(range(GROUPS), GROUPS).windows("w", ("k",), [Aggregate("count", None, "n")], TUMBLING, "ts")
    rows: list[Row] = [(key, None, time) for time in range(300) for key in range(20)]
    for some in (rows, rows[::-1], [rows[n * 7 % 400] for n in range(400)]):
        assert len(state.add(batch_of(some))) == 0
        state._index = KeyIndex([pa.int64()])
    model = Model(TUMBLING)
    model.add([*rows, *rows, *[rows[n * 7 % 400] for n in range(400)]])
    counted = {(r["k"], r["window_start"], r["window_end"]): r["n"] for b in state.close(999) for r in b.to_pylist()}
    assert counted == {place: values[-1] for place, values in model.close(999).items()}


def test_keys_that_do_not_come_again_are_forgotten() -> None:
    """As many keys as in a few panes are held, and not all that there have ever been; results stay right."""
    subtask, model = Subtask(FixedWindows(30, 10)), Model(FixedWindows(30, 10))
    indexes = set()
    for number in range(40):
        some: list[Row] = [(number * 500 + key, key, number * 10 + key % 10) for key in range(500)]
        some += [(-1, number, number * 10 - 4), (-2, number, number * 10)]
        subtask.add(batch_of(some))
        model.add(some)
        assert subtask.close(number * 10 - 5) == model.close(number * 10 - 5)
        indexes |= {id(pane.index) for pane in subtask.state._panes.values()}
        assert max(pane.index.size for pane in subtask.state._panes.values()) < 5_000
    assert len(indexes) > 1
    assert subtask.close(MAX_WATERMARK) == model.close(MAX_WATERMARK)


def test_a_record_that_comes_between_two_windows_is_in_the_second() -> None:
    """Although the pane that it belongs to has been merged for the first, in a block with others."""
    subtask, model = Subtask(FixedWindows(90, 10)), Model(FixedWindows(90, 10))
    for number in range(30):
        some: list[Row] = [(number % 3, number, number * 10), (5, number, number * 10 - 45)]
        subtask.add(batch_of(some))
        model.add(some)
        assert subtask.close(number * 10) == model.close(number * 10)
    assert isinstance(subtask.state, WindowState)
    assert 1 <= len(subtask.state._blocks) <= 3
    assert subtask.close(MAX_WATERMARK) == model.close(MAX_WATERMARK)
    assert subtask.state._blocks == {}


def test_keys_are_forgotten_also_if_no_window_is_open_between_batches() -> None:
    subtask = Subtask()
    sizes = []
    for number in range(40):
        subtask.add(batch_of([(number * 500 + key, 1, number * 10) for key in range(500)]))
        sizes += [pane.index.size for pane in subtask.state._panes.values()]
        assert len(subtask.close(number * 10 + 10)) == 500
    assert len(sizes) == 40
    assert max(sizes) < 5_000


def test_keys_that_come_again_are_looked_up_in_one_index() -> None:
    subtask = Subtask()
    for number in range(20):
        subtask.add(batch_of([(key, 1, number * 10) for key in range(2_000)]))
        subtask.close(number * 10 - 5)
    assert {pane.index.size for pane in subtask.state._panes.values()} == {2_000}


def test_a_window_that_was_emitted_is_not_in_the_next_checkpoint() -> None:
    subtask = Subtask()
    subtask.add(batch_of([(1, 1, 5), (2, 1, 15)]))
    subtask.close(10)
    assert [piece.batch["key"].to_pylist() for piece in subtask.pieces() if piece.name == "w"] == [
        [{"k": 2, "penstock.pane_start": 10}]
    ]


def test_a_snapshot_that_nobody_wants_any_more_is_not_fed() -> None:
    subtask = Subtask()
    subtask.add(batch_of([(1, 1, 5)]))
    taken = subtask.keyed.snapshot()
    subtask.add(batch_of([(1, 2, 5)]))
    del taken
    gc.collect()
    subtask.add(batch_of([(1, 3, 5)]))
    (pane,) = subtask.state._panes.values()
    assert pane._open == []


def test_equal_versions_mean_equal_contents() -> None:
    subtask = Subtask()
    before = subtask.keyed.snapshot()
    subtask.add(batch_of([]))
    assert subtask.close(-5) == {}
    assert subtask.keyed.snapshot().version("w") == before.version("w")
    assert subtask.keyed.snapshot().version("w.clock") > before.version("w.clock")
    subtask.add(batch_of([(1, 1, 5)]))
    added = subtask.keyed.snapshot().version("w")
    assert added > before.version("w")
    subtask.close(10)
    assert subtask.keyed.snapshot().version("w") > added


def test_after_the_end_of_input_nothing_is_late() -> None:
    subtask = Subtask()
    subtask.add(batch_of([(1, 1, 25)]))
    subtask.close(12)
    assert list(subtask.close(MAX_WATERMARK)) == [(1, 20, 30)]
    again = Subtask()
    again.restore(subtask.pieces())
    again.add(batch_of([(1, 1, 26), (1, 1, 9)]))
    assert again.late == 1
    assert list(again.close(MAX_WATERMARK)) == [(1, 20, 30)]


# --- what is refused ---


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (pa.record_batch({"k": [1], "v": [1]}), "event-time column 'ts' not found"),
        (pa.record_batch({"k": [1], "v": [1], "ts": ["now"]}), "of type string: cast it to a timestamp"),
        (pa.record_batch({"k": [1], "v": [1], "ts": pa.array([None], pa.int64())}), "null in 1 of 1 rows: filter"),
        (pa.record_batch({"v": [1], "ts": [1]}), "needs the column 'k'"),
        (pa.record_batch({"k": [1], "ts": [1]}), "needs the column 'v'"),
        (pa.record_batch({"k": [1], "v": ["a"], "ts": [1]}), "needs integers or floats"),
        (pa.record_batch({"k": [1], "v": [1], "ts": pa.array([1], pa.timestamp("s"))}), "cast them to timestamp"),
        (pa.record_batch({"k": [1], "v": [1], "ts": [2**63 - 5]}), "out of range"),
        (pa.record_batch({"k": [1], "v": [1], "ts": [-(2**63) + 5]}), "out of range"),
    ],
)
def test_records_that_cannot_be_windowed_are_refused(batch: pa.RecordBatch, text: str) -> None:
    with pytest.raises(DataError, match=text):
        Subtask().add(batch)


def test_another_type_than_before_is_refused() -> None:
    subtask = Subtask()
    subtask.add(batch_of([(1, 1, 5)]))
    with pytest.raises(DataError, match="other types"):
        subtask.add(batch_of([(1, 1, 5)], pa.timestamp("ms")))


def test_a_sum_that_overflows_is_an_error_also_when_it_does_so_only_in_the_whole_window() -> None:
    subtask = Subtask(FixedWindows(20, 10))
    subtask.add(batch_of([(1, 2**62, 5), (1, 2**62, 15)]))
    with pytest.raises(DataError, match=r"sum\(v\) has left the range"):
        subtask.close(MAX_WATERMARK)


@pytest.mark.parametrize("windows", [FixedWindows(10, 5), FixedWindows(20, 20), FixedWindows(10, 10, 1)])
def test_state_of_other_windows_is_refused(windows: FixedWindows) -> None:
    subtask = Subtask()
    subtask.add(batch_of([(1, 1, 5)]))
    with pytest.raises(RestoreError, match="the checkpoint has windows with size_ms 10, every_ms 10, offset_ms 0"):
        Subtask(windows).restore(subtask.pieces())


def test_state_of_another_kind_or_twice_is_refused() -> None:
    subtask = Subtask()
    subtask.add(batch_of([(1, 1, 5)]))
    again = Subtask()
    again.restore(subtask.pieces())
    with pytest.raises(RestoreError, match="a key twice"):
        again.restore(subtask.pieces())
    other = KeyedState(range(GROUPS), GROUPS)
    other.windows("w", ("k",), [Aggregate("sum", "v", "sum")], TUMBLING, "ts")
    (piece,) = [piece for piece in subtask.pieces() if piece.name == "w"]
    with pytest.raises(RestoreError, match="the pipeline wants"):
        other.restore("w", [piece.batch])
    with pytest.raises(RestoreError, match="is a clock"):
        other.restore("w.clock", [piece.batch])
    with pytest.raises(PipelineError, match="used twice"):
        other.windows("w", ("k",), ALL, TUMBLING, "ts")


def test_a_subtask_without_key_groups_has_nothing_to_say() -> None:
    subtask = Subtask(owned=range(4, 4))
    assert subtask.close(100) == {}
    assert subtask.pieces() == []


def test_more_keys_than_fit_into_one_string_column_are_written_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.state.pieces.PIECE_BYTES_MAX", 2_000)
    one, other = (KeyedState(range(0, 4), 4) for _ in range(2))
    states = [
        each.windows("w", ["k"], [Aggregate("count", None, "n")], FixedWindows(10, 10), "t") for each in (one, other)
    ]
    texts = [f"{n:04}" + "x" * (n % 100) for n in range(300)]
    states[0].add(pa.record_batch({"k": texts, "t": [n // 100 * 10 for n in range(300)]}))
    pieces = one.snapshot().encode(1 << 20)
    assert len(pieces) > 4
    assert all(piece.batch.nbytes < 6_000 for piece in pieces)
    for piece in pieces:
        other.restore(piece.name, [piece.batch])
    found = [row for batch in states[1].close(MAX_WATERMARK) for row in batch.to_pylist()]
    assert sorted(row["k"] for row in found) == sorted(texts)
