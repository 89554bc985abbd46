"""The barrier as a value, and the closed list of reasons to decline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.ids import CheckpointId, Generation
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.declines import DeclineReason

PLAIN = Barrier(CheckpointId(7), Generation(2), 1_000, alignment_timeout_ms=200)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        (BarrierFlag.DRAIN, "is_drain"),
        (BarrierFlag.CANCEL, "is_cancel"),
        (BarrierFlag.UNALIGNED, "is_unaligned"),
        (BarrierFlag.SAVEPOINT, "is_savepoint"),
    ],
)
def test_each_flag_is_seen_by_its_name(flag: BarrierFlag, name: str) -> None:
    assert not getattr(PLAIN, name)
    assert getattr(replace(PLAIN, flags=flag, alignment_timeout_ms=None), name)


def test_a_savepoint_must_stay_aligned() -> None:
    with pytest.raises(ValueError, match="savepoint 7 must stay aligned"):
        replace(PLAIN, flags=BarrierFlag.SAVEPOINT)
    with pytest.raises(ValueError, match="savepoint 7 must stay aligned"):
        replace(PLAIN, flags=BarrierFlag.SAVEPOINT | BarrierFlag.UNALIGNED, alignment_timeout_ms=None)


def test_ids_are_not_cut_to_32_bits() -> None:
    assert Barrier(CheckpointId(2**40 + 1), Generation(1)).cancelled().checkpoint == 2**40 + 1


def test_its_age_grows_by_the_time_spent_on_each_host_and_never_shrinks() -> None:
    aged = PLAIN.aged(30).aged(-1_000_000).aged(20)
    assert (aged.age_ms, aged.remaining_ms) == (50, 150)
    assert aged.triggered_at_ms == PLAIN.triggered_at_ms


def test_nothing_remains_once_it_is_older_than_the_timeout() -> None:
    assert PLAIN.aged(201).remaining_ms == 0


def test_without_a_timeout_it_waits_for_ever() -> None:
    assert replace(PLAIN, alignment_timeout_ms=None).aged(10**9).remaining_ms is None


def test_overtaking_keeps_everything_but_the_flag() -> None:
    drain = replace(PLAIN, flags=BarrierFlag.DRAIN)
    assert drain.overtaking() == replace(drain, flags=BarrierFlag.DRAIN | BarrierFlag.UNALIGNED)
    assert drain.overtaking().overtaking() is not drain
    assert drain.overtaking().overtaking() == drain.overtaking()


def test_cancelling_is_an_order_of_its_own() -> None:
    unaligned_drain = replace(PLAIN, flags=BarrierFlag.DRAIN).overtaking()
    assert unaligned_drain.cancelled() == replace(PLAIN, flags=BarrierFlag.CANCEL, alignment_timeout_ms=None)


def test_a_checkpoint_at_a_bad_moment_is_not_counted_and_everything_else_is() -> None:
    uncounted = {reason for reason in DeclineReason if not reason.is_counted}
    assert uncounted == {
        DeclineReason.SUBTASK_NOT_READY,
        DeclineReason.SUPERSEDED,
        DeclineReason.CANCELLED,
        DeclineReason.DRAINED,
    }


def test_every_reason_reads_as_words() -> None:
    assert len({reason.value for reason in DeclineReason}) == len(DeclineReason) == 10
