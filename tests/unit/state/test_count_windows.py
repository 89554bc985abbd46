"""Windows by count against plain Python, however the records are cut into batches."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Pipeline, PipelineError
from penstock.model.windows import CountWindows
from penstock.state import KeyedState
from penstock.state.windows.counts import CountWindowDescriptor, CountWindowState
from penstock.testing import ListSource, collect
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
