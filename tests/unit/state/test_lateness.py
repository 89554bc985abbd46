"""Windows that are emitted more than once: late records that are allowed, and early results. Against plain Python."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import RestoreError
from penstock.model.event_time import MAX_WATERMARK
from penstock.model.windows import ON_CLOSE, Emission, FixedWindows
from penstock.protocol.key_groups import key_groups_of
from penstock.state import KeyedState
from penstock.state.windows.state import WindowState
from tests.unit.state.test_windows import ALL, GROUPS, Emitted, batch_of, group_of, steps
from tests.unit.window_model import Row, UpdatingModel

EARLY = Emission(is_early=True)
NOW_AND_THEN = Emission(is_early=True, every_ms=1)
SHAPES = [FixedWindows(10, 10, 0, 15), FixedWindows(12, 4, 1, 7), FixedWindows(10, 10), FixedWindows(7, 1, 0, 3)]


class Subtask:
    """The state of one subtask. With a clock, updates come only when they are asked for."""

    def __init__(self, windows: FixedWindows, emission: Emission = ON_CLOSE, owned: range = range(GROUPS)) -> None:
        self.keyed = KeyedState(owned, GROUPS)
        self.state: WindowState = self.keyed.windows("w", ("k",), ALL, windows, "ts", emission)
        self.late = 0

    def add(self, rows: list[Row]) -> Emitted:
        self.late += len(self.state.add(batch_of(rows)))
        return emitted_of(self.state.updates())

    def close(self, watermark: int) -> Emitted:
        return emitted_of(self.state.close(watermark))

    def restored(self, windows: FixedWindows, emission: Emission) -> Subtask:
        again = Subtask(windows, emission)
        for piece in self.keyed.snapshot().encode(64):
            again.keyed.restore(piece.name, [piece.batch])
        return again


def emitted_of(batches: list[Any]) -> Emitted:
    emitted: Emitted = {}
    for batch in batches:
        batch.validate(full=True)
        for row in batch.to_pylist():
            key, start, end, *values = row.values()
            assert (key, start, end) not in emitted, "a result is emitted twice at once"
            emitted[key, start, end] = tuple(values)
    return emitted


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SHAPES), st.booleans(), steps, st.integers(0, 12))
def test_updates_are_those_of_the_model(
    windows: FixedWindows, is_early: bool, steps: list[list[Row] | int], moment: int
) -> None:
    emission = EARLY if is_early else ON_CLOSE
    subtask, model = Subtask(windows, emission), UpdatingModel(windows, is_early)
    for number, step in enumerate([*steps, MAX_WATERMARK]):
        if number == moment:
            subtask, late = subtask.restored(windows, emission), subtask.late
            subtask.late = late
        if isinstance(step, list):
            assert subtask.add(step) == model.add(step)
        elif step > model.watermark:
            assert subtask.close(step) == model.close(step)
        assert subtask.late == model.late
    assert subtask.state.open_panes == 0


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SHAPES), steps, st.lists(st.booleans(), min_size=13, max_size=13), st.integers(0, 12))
def test_results_every_now_and_then_end_with_those_of_every_update(
    windows: FixedWindows, steps: list[list[Row] | int], is_time: list[bool], moment: int
) -> None:
    """Also after a restore, which knows nothing of what was emitted: results come again, and none is missing."""
    subtask, model = Subtask(windows, NOW_AND_THEN), UpdatingModel(windows, is_early=True)
    found: Emitted = {}
    expected: Emitted = {}
    for number, step in enumerate([*steps, MAX_WATERMARK]):
        if number == moment:
            subtask = subtask.restored(windows, NOW_AND_THEN)
        if isinstance(step, list):
            subtask.state.add(batch_of(step))
            expected |= model.add(step)
            if is_time[number % 13]:
                found |= emitted_of(subtask.state.updates())
                assert found == expected
        elif step > model.watermark:
            expected |= model.close(step)
            found |= subtask.close(step)
    assert found == expected


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SHAPES[:2]), steps, steps, st.integers(-70, 70), st.integers(-70, 70))
def test_after_a_rescale_late_records_update_the_windows_that_their_own_clock_has_emitted(
    windows: FixedWindows, before: list[Any], after: list[Any], first: int, second: int
) -> None:
    models = {key: UpdatingModel(windows, is_early=False) for key in range(7)}
    old = [Subtask(windows, owned=key_groups_of(index, 2, GROUPS)) for index in range(2)]
    for step in [*before, (first, second)]:
        _at_all(old, models, step)
    new = [Subtask(windows, owned=key_groups_of(index, 3, GROUPS)) for index in range(3)]
    for subtask in new:
        for piece in [piece for each in old for piece in each.keyed.snapshot().encode(64)]:
            if piece.first < subtask.keyed.key_groups.stop and subtask.keyed.key_groups.start < piece.end:
                subtask.keyed.restore(piece.name, [piece.batch])
    for step in [*after, MAX_WATERMARK]:
        _at_all(new, models, step)
    assert sum(each.late for each in [*old, *new]) == sum(model.late for model in models.values())


def _at_all(subtasks: list[Subtask], models: dict[int, UpdatingModel], step: Any) -> None:
    for index, subtask in enumerate(subtasks):
        mine = [key for key in models if group_of(key) in subtask.keyed.key_groups]
        expected: Emitted = {}
        if isinstance(step, list):
            own = [row for row in step if row[0] in mine]
            for key in mine:
                expected |= models[key].add([row for row in own if row[0] == key])
            assert subtask.add(own) == expected
            continue
        watermark = step[index] if isinstance(step, tuple) else step
        for key in mine:
            if watermark > models[key].watermark:
                expected |= models[key].close(watermark)
        assert subtask.close(watermark) == expected


# --- single cases ---


def sums(emitted: Emitted) -> dict[tuple[Any, int, int], Any]:
    return {place: values[0] for place, values in emitted.items()}


def test_a_late_record_changes_a_result_until_the_lateness_is_over() -> None:
    subtask = Subtask(FixedWindows(10, 10, 0, 5))
    assert subtask.add([(1, 5, 3), (2, 7, 4)]) == {}
    assert sums(subtask.close(10)) == {(1, 0, 10): 5, (2, 0, 10): 7}
    assert sums(subtask.add([(1, 2, 9)])) == {(1, 0, 10): 7}
    assert subtask.close(14) == {}
    assert sums(subtask.add([(1, 1, 0), (3, 4, 0)])) == {(1, 0, 10): 8, (3, 0, 10): 4}
    assert subtask.state.open_panes == 1
    assert subtask.close(15) == {}
    assert subtask.state.open_panes == 0
    assert subtask.add([(1, 1, 9)]) == {}
    assert subtask.late == 1


def test_after_a_rescale_no_window_is_updated_whose_first_records_the_faster_clock_has_dropped() -> None:
    windows = FixedWindows(12, 4, 0, 4)
    fast, slow = (Subtask(windows, owned=key_groups_of(index, 2, GROUPS)) for index in range(2))
    (key, *_) = [key for key in range(7) if group_of(key) in fast.keyed.key_groups]
    fast.add([(key, 1, 1), (key, 2, 9)])
    fast.close(16)
    slow.close(0)
    both = Subtask(windows)
    for piece in [*fast.keyed.snapshot().encode(64), *slow.keyed.snapshot().encode(64)]:
        both.keyed.restore(piece.name, [piece.batch])
    # It belongs to the windows from 0, which is dropped, from 4, which was emitted, and from 8, which is open.
    assert sums(both.add([(key, 4, 9)])) == {(key, 4, 16): 6}


def test_without_lateness_or_early_results_nothing_is_noted_of_changes() -> None:
    subtask = Subtask(FixedWindows(12, 4))
    subtask.add([(1, 5, 3)])
    subtask.close(5)
    subtask.add([(1, 5, 4)])
    assert subtask.state._changed == {}


def test_a_lateness_that_was_changed_is_refused_at_a_restore() -> None:
    subtask = Subtask(FixedWindows(10, 10, 0, 5))
    subtask.add([(1, 5, 3)])
    with pytest.raises(RestoreError, match=r"allowed_lateness_ms 5, and the pipeline has windows of 10 ms"):
        subtask.restored(FixedWindows(10, 10), ON_CLOSE)


def test_updates_of_windows_that_overlap_merge_the_keys_alone_that_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subtask = Subtask(FixedWindows(40, 10), EARLY)
    subtask.add([(key, 1, at) for key in range(100) for at in (5, 15, 25, 35)])
    merged: list[int] = []
    original = WindowState._merged_changes

    def counted(self: WindowState, layout: Any, window: int) -> Any:
        columns, slots = original(self, layout, window)
        merged.append(len(columns.slots_with_rows()) if columns is not self._panes.get(window) else len(slots))
        return columns, slots

    monkeypatch.setattr(WindowState, "_merged_changes", counted)
    assert {place[0] for place in subtask.add([(7, 1, 15)])} == {7}
    assert len(merged) == 4
    assert set(merged) == {1}


def test_rows_far_apart_and_before_1970_with_a_lateness_of_years() -> None:
    years = 10**12
    subtask = Subtask(FixedWindows(10, 10, 0, years), EARLY)
    far = int(np.iinfo(np.int64).max) - 20
    first = copy.copy(subtask.add([(1, 5, -(2**62)), (1, 6, 3), (1, 7, far)]))
    assert len(first) == 3
    assert subtask.close(years) == {}
    assert sums(subtask.add([(1, 1, 3)])) == {(1, 0, 10): 7}
    assert subtask.close(MAX_WATERMARK) == {}
    assert subtask.state.open_panes == 0
