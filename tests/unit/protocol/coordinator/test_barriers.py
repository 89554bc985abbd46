"""The barriers that a coordinator sends: their ids, and whether they may overtake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.ids import CheckpointId
from penstock.protocol.coordinator.events import AllReady, ReserveIds, SendBarrier, Ticked
from penstock.protocol.coordinator.machine import start, step
from penstock.protocol.coordinator.state import Mode
from penstock.protocol.declines import DeclineReason
from tests.unit.protocol.coordinator.kit import GENERATION, MEMBERS, PLAIN, SHAPE, triggered


def test_ids_grow_beyond_32_bits() -> None:
    state, _ = start(PLAIN, GENERATION, SHAPE, MEMBERS, CheckpointId(2**32 - 1))
    state, _ = step(state, AllReady(0))
    _, actions = step(state, Ticked(1_000))
    assert [action.reservation.checkpoint for action in actions if isinstance(action, ReserveIds)] == [2**32]


@pytest.mark.parametrize("mode", [Mode.UNALIGNED, Mode.ALIGNED_WITH_TIMEOUT])
def test_after_an_overflow_the_next_checkpoint_is_aligned_and_the_one_after_it_is_not(mode: Mode) -> None:
    run = triggered(replace(PLAIN, mode=mode))
    run.decline(11, DeclineReason.CAPTURE_OVERFLOW)
    run.tick(10_000)
    run.reserved(13)
    run.collect(12)
    run.written(12)
    run.tick(20_000)
    barriers = [action.barrier for action in run.of(SendBarrier) if not action.barrier.is_cancel]
    assert [each.checkpoint for each in barriers] == [11, 12, 13]
    assert [each.is_unaligned or each.alignment_timeout_ms is not None for each in barriers] == [True, False, True]
