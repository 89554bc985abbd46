"""The status of a pipeline as people read it."""

from __future__ import annotations

from penstock.driver.attempts.phases import Phase
from penstock.ids import CheckpointId, Generation
from penstock.spark.status import Status


def test_a_status_is_one_line_without_the_counts_that_are_zero() -> None:
    quiet = Status("orders", Phase.STARTING, None, 0, 0, 0, 0, None, None, detail="0 of 2")
    assert repr(quiet) == "<Status of 'orders': starting workers (0 of 2), no checkpoint yet, 0 rows in, 0 out>"
    busy = Status(
        "orders",
        Phase.RUNNING,
        Generation(3),
        2,
        1_234_567,
        1_200_000,
        25,
        CheckpointId(17),
        "worker 1: it hangs\nat a line",
        rows_late=4,
        rows_skipped=1,
    )
    assert repr(busy) == (
        "<Status of 'orders': running, checkpoint 17, 1,234,567 rows in, 1,200,000 out, 4 late, 1 rows skipped, "
        "2 restarts, backpressure 25 %, last error: worker 1: it hangs>"
    )
