"""Work for all object stores: a pipeline whose records and state must survive, and a race of two stores."""

from __future__ import annotations

import threading
from typing import Any

from penstock import Pipeline
from penstock.storage.object_store import Exclusion, ObjectStore
from penstock.testing import CHECKPOINT, CollectSink, ListSource

ROWS = 120


def items() -> list[Any]:
    rows = [{"k": n % 7, "n": n} for n in range(ROWS)]
    return [item for start in range(0, ROWS, 60) for item in (*rows[start : start + 60], CHECKPOINT)]


def totals(output: CollectSink) -> Pipeline:
    """Records and the state of a count: both must survive."""
    pipeline = Pipeline("totals")
    source = pipeline.source(ListSource(items(), splits=2), name="rows")
    source.key_by("k").aggregate(rows="count", emit="final").sink(output, name="totals")
    return pipeline


EXPECTED = sorted((k, len(range(k, ROWS, 7))) for k in range(7))


def found(output: CollectSink) -> list[tuple[int, int]]:
    return sorted((row["k"], row["rows"]) for row in output.rows())


def check_that_one_of_two_creates(*stores: ObjectStore) -> None:
    """Have two stores create the same files at the same moment: one of them must, and both must see its file."""
    assert {store.exclusion for store in stores} == {Exclusion.CONDITIONAL_PUT}
    together = threading.Barrier(2)
    outcomes: list[bool] = []

    def create(store: ObjectStore, path: str, data: bytes) -> None:
        together.wait(60)
        outcomes.append(store.create(path, data))

    for number in range(10):
        outcomes.clear()
        path = f"checkpoints/{number:010d}/manifest"
        threads = [threading.Thread(target=create, args=(store, path, b"%d" % i)) for i, store in enumerate(stores)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(outcomes) == [False, True]
        assert stores[0].read(path) == stores[1].read(path)
