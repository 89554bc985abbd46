"""Sessions, case by case. That they are those of a model in plain Python is in `test_windows`, with all other kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import DataError, RestoreError
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import SessionWindows
from penstock.state import KeyedState
from tests.unit.state.test_windows import ALL, GROUPS, Emitted, Subtask, batch_of
from tests.unit.window_model import Row, SessionModel

INT64 = np.iinfo(np.int64)


def bounds(emitted: Emitted) -> set[tuple[Any, int, int]]:
    return set(emitted)


def sessions(gap: int, *rows: Row) -> Subtask:
    subtask = Subtask(SessionWindows(gap))
    subtask.add(batch_of(list(rows)))
    return subtask


def test_records_exactly_the_gap_apart_are_in_one_session_and_a_tick_more_is_a_pause() -> None:
    assert bounds(sessions(10, (1, 1, 0), (1, 1, 10)).close(MAX_WATERMARK)) == {(1, 0, 20)}
    assert bounds(sessions(10, (1, 1, 0), (1, 1, 11)).close(MAX_WATERMARK)) == {(1, 0, 10), (1, 11, 21)}


def test_a_session_is_emitted_when_the_watermark_has_passed_its_end() -> None:
    """At the end itself a record may still come that belongs to it."""
    subtask = sessions(10, (1, 1, 5))
    assert subtask.close(15) == {}
    subtask.add(batch_of([(1, 1, 15)]))
    assert subtask.close(25) == {}
    assert bounds(subtask.close(26)) == {(1, 5, 25)}


def test_a_record_between_two_open_sessions_makes_one_of_them_with_all_their_aggregates() -> None:
    subtask = sessions(10, (1, 3, 0), (1, 5, 20), (2, 1, 20))
    assert subtask.close(5) == {}
    subtask.add(batch_of([(1, 7, 10)]))
    emitted = subtask.close(MAX_WATERMARK)
    assert emitted[1, 0, 30] == (15, 3, 3, 7, 5.0, 3, 5, 3)
    assert bounds(emitted) == {(1, 0, 30), (2, 20, 30)}


def test_a_session_of_many_gaps_is_kept_in_few_panes() -> None:
    subtask = Subtask(SessionWindows(10))
    for at in range(0, 5_000, 7):
        subtask.add(batch_of([(1, 1, at)]))
        assert subtask.close(at) == {}
        assert subtask.state.open_panes <= 3
    assert {place: values[-1] for place, values in subtask.close(MAX_WATERMARK).items()} == {(1, 0, 5008): 715}


def test_a_session_that_was_emitted_takes_no_more_records_and_its_key_begins_another() -> None:
    subtask = sessions(10, (1, 1, 1), (2, 1, 9))
    assert bounds(subtask.close(12)) == {(1, 1, 11)}
    subtask.add(batch_of([(1, 7, 8), (1, 1, 1)]))
    assert subtask.late == 1
    emitted = subtask.close(MAX_WATERMARK)
    assert emitted[1, 8, 18] == (7, 1, 7, 7, 7.0, 7, 7, 1)
    assert bounds(emitted) == {(1, 8, 18), (2, 9, 19)}


def test_a_snapshot_does_not_see_that_a_session_was_emitted_or_carried_on() -> None:
    subtask = sessions(10, (1, 1, 1), (2, 1, 9), (2, 1, 15))
    taken = subtask.keyed.snapshot()
    assert bounds(subtask.close(12)) == {(1, 1, 11)}
    assert subtask.close(21) == {}
    again = Subtask(SessionWindows(10))
    again.restore(taken.encode(1 << 20))
    assert bounds(again.close(MAX_WATERMARK)) == {(1, 1, 11), (2, 9, 25)}


def test_a_session_that_was_carried_on_is_restored_with_its_beginning() -> None:
    subtask = sessions(10, *((1, 1, at) for at in range(0, 60, 8)))
    assert subtask.close(45) == {}
    assert subtask.state.open_panes == 3
    again = Subtask(SessionWindows(10))
    again.restore(subtask.pieces())
    assert again.close(MAX_WATERMARK) == subtask.close(MAX_WATERMARK) == {(1, 0, 66): (8, 8, 1, 1, 1.0, 1, 1, 8)}


def test_keys_that_come_no_more_leave_the_index() -> None:
    """The index is renewed while sessions go on: their parts are found by key then, not by slot."""
    subtask, model = Subtask(SessionWindows(10)), SessionModel(SessionWindows(10))
    sizes = []
    for number in range(60):
        some: list[Row] = [(key, 1, number * 5) for key in range(3)]
        some += [(1_000 * number + key, 1, number * 5) for key in range(200)]
        subtask.add(batch_of(some))
        model.add(some)
        assert subtask.close(number * 5) == model.close(number * 5)
        sizes += [pane.index.size for pane in subtask.state._panes.values()]
    assert max(sizes) < 5_000
    assert subtask.close(MAX_WATERMARK) == model.close(MAX_WATERMARK)


def test_nothing_is_left_when_event_time_has_passed_everything() -> None:
    subtask = sessions(10, *((key, 1, at) for key in range(5) for at in range(-50, 50, 3 + key)))
    subtask.close(1_000)
    assert subtask.state.open_panes == 0
    names = {piece.name for piece in subtask.pieces()}
    assert names == {"w.clock"}


@pytest.mark.parametrize("gap", [1, 10, 2**40])
def test_sessions_near_the_limits_of_64_bits_and_before_1970(gap: int) -> None:
    first, last = int(INT64.min) + gap, int(INT64.max) - gap
    subtask = sessions(gap, (1, 1, first), (1, 2, -1), (1, 3, last))
    expected = {(1, first, first + gap), (1, -1, gap - 1), (1, last, last + gap)}
    assert bounds(subtask.close(MAX_WATERMARK)) == expected
    with pytest.raises(DataError, match="are out of range"):
        subtask.add(batch_of([(1, 1, last + 1)]))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_bounds_of_a_session_have_the_type_of_the_event_time(unit: str) -> None:
    kind = pa.timestamp(unit, "UTC")
    subtask = Subtask(SessionWindows(2_000))
    subtask.add(batch_of([(1, 4, 1_000), (1, 5, 3_000), (2, None, 2_000)], kind))
    assert subtask.state.close(5_000) != []
    (batch,) = subtask.state.close(MAX_WATERMARK)
    assert batch.schema.field("window_start").type == batch.schema.field("window_end").type == kind


def test_a_gap_that_is_no_whole_number_of_the_unit_is_an_error_that_says_so() -> None:
    with pytest.raises(
        DataError, match=r"sessions with a gap of 1500 ms cannot be represented .* cast them to timestamp"
    ):
        Subtask(SessionWindows(1_500)).add(batch_of([(1, 1, 0)], pa.timestamp("s")))


def test_sessions_with_another_gap_are_not_restored() -> None:
    subtask = sessions(10, (1, 1, 5))
    with pytest.raises(RestoreError, match=r"gap_ms 10, and the pipeline has sessions with a gap of 11 ms"):
        Subtask(SessionWindows(11)).restore(subtask.pieces())


def test_the_layout_of_sessions_in_a_checkpoint_is_that_of_windows_with_the_times_of_the_first_and_last_row() -> None:
    keyed = KeyedState(range(GROUPS), GROUPS)
    state = keyed.sessions("sessions", ["k"], ALL[:1], SessionWindows(10), "ts")
    state.add(batch_of([(1, 5, 12), (1, 6, 17)], pa.timestamp("ms")))
    (piece,) = [piece for piece in keyed.snapshot().encode(1 << 20) if piece.name == "sessions"]
    assert piece.batch.schema.field("key").type == pa.struct(
        [("k", pa.int64()), ("penstock.pane_start", pa.timestamp("ms"))]
    )
    (row,) = piece.batch.select(["key", "value"]).to_pylist()
    assert list(row["value"]) == ["sum(v)", "min(ts)", "max(ts)"]
    assert row["value"]["sum(v)"] == 11
    assert [row["value"][name].microsecond for name in ("min(ts)", "max(ts)")] == [12_000, 17_000]
    assert row["key"]["penstock.pane_start"].microsecond == 10_000
