"""The figures of an attempt: sums of bytes, the longest of times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.ids import CheckpointId, OperatorName, SubtaskId
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.history import CheckpointRecord, Status, SubtaskStats, ends_with_savepoint, stats_of
from penstock.protocol.manifest import CheckpointStats, SnapshotKind, SubtaskReport

READ, COUNT = SubtaskId(OperatorName("read"), 0), SubtaskId(OperatorName("count"), 1)
QUICK = CheckpointStats(5, 10, 1, 300, 1_000, 40, 2)
SLOW = CheckpointStats(2, 90, 3, 20, 500, 60, 3)
RECORD = CheckpointRecord(
    CheckpointId(7),
    BarrierFlag.NONE,
    Status.COMPLETED,
    100,
    450,
    (SubtaskStats(COUNT, SnapshotKind.ALIGNED, QUICK), SubtaskStats(READ, SnapshotKind.TIMED_OUT, SLOW)),
)


def test_bytes_are_summed_and_of_times_the_longest_counts() -> None:
    times = RECORD.start_delay_ms, RECORD.alignment_ms, RECORD.synchronous_ms, RECORD.asynchronous_ms
    assert times == (5, 90, 3, 300)
    assert (RECORD.state_bytes, RECORD.inflight_bytes, RECORD.duration_ms) == (1_500, 100, 350)


def test_an_attempt_that_nobody_acknowledged_has_figures_of_zero() -> None:
    empty = replace(RECORD, subtasks=())
    assert (empty.start_delay_ms, empty.alignment_ms, empty.state_bytes, empty.inflight_bytes) == (0, 0, 0, 0)
    assert not empty.is_unaligned


@pytest.mark.parametrize("cut", list(SnapshotKind))
def test_it_was_unaligned_if_one_subtask_was_for_whatever_cause(cut: SnapshotKind) -> None:
    record = replace(RECORD, subtasks=(RECORD.subtasks[0], SubtaskStats(READ, cut, SLOW)))
    assert record.is_unaligned is (cut is not SnapshotKind.ALIGNED)


def test_figures_are_taken_from_the_reports_in_the_order_of_the_subtasks() -> None:
    reports = SubtaskReport(READ, SnapshotKind.FORCED, figures=SLOW), SubtaskReport(COUNT, figures=QUICK)
    assert stats_of(reports) == (
        SubtaskStats(COUNT, SnapshotKind.ALIGNED, QUICK),
        SubtaskStats(READ, SnapshotKind.FORCED, SLOW),
    )


STOP = BarrierFlag.DRAIN | BarrierFlag.SAVEPOINT


@pytest.mark.parametrize(
    ("flags", "is_stopped"),
    [(STOP, True), (BarrierFlag.DRAIN, False), (BarrierFlag.SAVEPOINT, False), (BarrierFlag.NONE, False)],
)
def test_a_stop_ends_with_a_savepoint_that_drains_and_the_end_of_input_without(
    flags: BarrierFlag, is_stopped: bool
) -> None:
    last = replace(RECORD, flags=flags)
    declined = replace(last, flags=STOP, status=Status.DECLINED)
    assert ends_with_savepoint((RECORD, last, declined)) is is_stopped
    assert not ends_with_savepoint(())
