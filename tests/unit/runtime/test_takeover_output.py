"""Taking over where output is at stake: whatever may have been published is not published again under another id."""

from __future__ import annotations

import pytest

from penstock.errors import NoReadableCheckpoint
from penstock.protocol.recovery import FallBack
from penstock.storage.memory import MemoryStore
from tests.unit.runtime.test_takeover import OUTPUT, claim, complete


def test_a_damaged_checkpoint_that_has_output_is_not_passed_over_in_silence() -> None:
    store = MemoryStore()
    first = claim(store)
    older = complete(store, first, 1)
    damaged = complete(store, first, 2, OUTPUT)
    (path,) = {state.segment.path for report in damaged.reports for state in report.states}
    assert path is not None
    store.blobs[path] = store.blobs[path][:-1]
    with pytest.raises(NoReadableCheckpoint, match="checkpoint 2 cannot be restored"):
        claim(store)
    assert claim(store, fall_back=FallBack.ALLOW_DUPLICATES).manifest == older
