"""The garbage collector looks rarely while a worker runs, and as often as before behind it."""

from __future__ import annotations

import gc

import pytest

from penstock.worker.scheduling.memory import rare_collections


def test_cycles_are_collected_more_rarely_until_the_worker_ends_in_whatever_way() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), rare_collections():
        assert gc.get_threshold()[0] > 10 * before[0] and gc.get_freeze_count() > 0
        raise RuntimeError("a worker that fails")
    assert gc.get_threshold() == before and gc.get_freeze_count() == 0
