"""State as the page shows it: that of the user, counted and read within bounds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock import GeneratorSource, Pipeline
from penstock.checkpoints import CheckpointDirectory
from penstock.columnar.hashing import key_groups
from penstock.dashboard.sights import states
from penstock.storage import MemoryStore
from penstock.testing import CollectSink, run


def events(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"k": [n % 5 for n in range(start, start + count)], "at": range(start, start + count)})


@pytest.fixture(params=["windows", "sessions"])
def directory(request: pytest.FixtureRequest) -> CheckpointDirectory:
    """A pipeline that was left while windows of five keys were open."""
    store, pipeline = MemoryStore(), Pipeline("windows")
    keyed = pipeline.source(GeneratorSource(events, rows_per_second=5_000)).with_watermark("at", "1 s").key_by("k")
    windows = keyed.window("1 hour") if request.param == "windows" else keyed.session("1 hour")
    windows.aggregate(n="count", name="windows").sink(CollectSink())
    found = CheckpointDirectory(store, "memory")

    def has_rows() -> bool:
        checkpoint = states.newest(found)
        return checkpoint is not None and any(each.rows >= 5 for each in states.state_view(checkpoint).operators)

    run(pipeline, store=store, parallelism=2, until=has_rows)
    return found


def test_the_clock_of_windows_is_not_among_the_rows(directory: CheckpointDirectory) -> None:
    checkpoint = directory.read()
    assert any(state.name.endswith(".clock") for each in checkpoint.operators() for state in each.states)
    [sizes] = states.state_view(checkpoint).operators
    found = states.state_rows(checkpoint, "windows", 100)
    assert (sizes.rows, len(found.rows), found.truncated) == (5, 5, False)
    assert {each.key for each in found.largest_keys} == {"0", "1", "2", "3", "4"}
    assert not any("clock" in value for row in found.rows for value in row)


def test_key_groups_with_a_key_are_counted(directory: CheckpointDirectory) -> None:
    [sizes] = states.state_view(directory.read()).operators
    wanted = set(key_groups(pa.record_batch({"k": range(5)}), ("k",), sizes.key_groups).tolist())
    assert sizes.key_groups_used == len(wanted)


def test_key_groups_of_large_state_are_not_counted(
    directory: CheckpointDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "KEY_GROUPS_BYTES_MAX", 1)
    [sizes] = states.state_view(directory.read()).operators
    assert sizes.key_groups_used is None
