"""Taking over where output is at stake: whatever may have been published is not published again under another id."""

from __future__ import annotations

import pytest

from penstock.errors import IncompatibleCheckpoint, NoReadableCheckpoint
from penstock.ids import CheckpointId, OperatorName
from penstock.protocol.manifest import Committable
from penstock.protocol.recovery import FallBack
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from tests.unit.driver.attempts.test_takeover import OUTPUT, complete, own


def test_a_damaged_checkpoint_that_has_output_is_not_passed_over_in_silence() -> None:
    store = MemoryStore()
    first = own(store)
    older = complete(store, first, 1)
    damaged = complete(store, first, 2, OUTPUT)
    (path,) = {state.segment.path for report in damaged.reports for state in report.states}
    assert path is not None
    store.blobs[path] = store.blobs[path][:-1]
    with pytest.raises(NoReadableCheckpoint, match="checkpoint 2 cannot be restored"):
        own(store)
    assert own(store, fall_back=FallBack.ALLOW_DUPLICATES).manifest == older


def test_a_sink_may_go_when_its_output_is_published_and_not_before() -> None:
    store = MemoryStore()
    taken = complete(store, own(store), 1, (Committable(OperatorName("former"), 0, b"file"),))
    with pytest.raises(IncompatibleCheckpoint, match="has output of sink 'former' that is not published yet"):
        own(store)
    store.create(paths.committed(CheckpointId(1)), b"{}")
    assert own(store).manifest == taken
