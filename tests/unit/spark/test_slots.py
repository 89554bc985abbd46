"""What is said about slots: how many are free, whose the others are, and the way out."""

from __future__ import annotations

from penstock.spark.slots import Slots, hold_up_of, holding_text


def test_too_few_free_slots_are_counted_and_their_holders_named() -> None:
    found = hold_up_of(Slots(4, 3, ("penstock: orders, generation 2", "job 7 (count at x.py:3)")), 2)
    assert found is not None
    assert found.detail == "1 of 2 free"
    assert "needs 2 slots at the same time, and 1 of the 4 slots of this session is free" in found.text
    assert "held by penstock: orders, generation 2; job 7 (count at x.py:3)" in found.text
    assert "workers=1" in found.text


def test_enough_free_slots_hold_up_nobody() -> None:
    assert hold_up_of(Slots(4, 2, ("job 7",)), 2) is None


def test_slots_that_nobody_holds_are_missing_executors() -> None:
    found = hold_up_of(Slots(0, 0), 2)
    assert found is not None
    assert "executors are missing" in found.text


def test_of_many_holders_a_few_are_named() -> None:
    found = hold_up_of(Slots(9, 9, tuple(f"job {number}" for number in range(9))), 1)
    assert found is not None
    assert "job 4 and 4 more" in found.text
    assert found.text.startswith("the pipeline needs 1 slot, and 0 of the 9 slots")
    assert "job 5" not in found.text


def test_with_spark_connect_nobody_knows_and_that_is_said() -> None:
    found = hold_up_of(None, 2)
    assert found is not None
    assert found.text.startswith("no worker has reported yet. Spark Connect says neither whether the 2 tasks of")
    assert "stop other jobs that hold slots" in found.text
    one = hold_up_of(None, 1)
    assert one is not None and "whether the task of the pipeline has begun nor" in one.text


def test_a_pipeline_says_what_it_leaves_for_others() -> None:
    assert "holds 2 of the 3 slots" in holding_text(2, 3)
    assert "other queries of this session wait until it ends" in holding_text(2, 2)
