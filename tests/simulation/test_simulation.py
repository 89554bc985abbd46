"""A slice of the simulator, for every change; `make simulate SEEDS=3000` is for the big ones."""

from __future__ import annotations

import pytest

from tests.simulation.run import Summary, run_seed
from tests.simulation.scenario import FaultKind, draw

CHUNK = 15


def story_of(failed: list[object]) -> str:
    return "\n".join(f"{result.scenario}\n  {result.violations[0]}" for result in failed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", range(0, 12 * CHUNK, CHUNK))
def test_no_seed_violates_anything(first: int) -> None:
    summary = Summary()
    for seed in range(first, first + CHUNK):
        summary.add(run_seed(seed))
    assert not summary.failed, story_of(list(summary.failed))
    assert summary.completed >= CHUNK


@pytest.mark.parametrize(
    "pair",
    [
        "pipeline_1_2",
        "pipeline_2_1",
        "pipeline_3_5",
        "union_2_3",
        "multi_input_3_1",
        "keyed_different_5_3",
        "broadcast_2_5",
        "keyed_broadcast_7_2",
        "keyed_broadcast_2_7",
        "ordered_4_1",
        "part_empty_1_4",
        "tumbling_2_3",
        "sliding_3_1",
        "timers_3_2",
        "two_by_key_2_3",
        "unfolded_2_3",
        "event_timers_3_2",
        "async_ordered_2_3",
        "async_unordered_3_1",
        "two_sinks_1_3",
        "keyed_broadcast_5_3_idle",
    ],
)
def test_no_record_is_lost_or_doubled_by_rescaling(pair: str) -> None:
    results = [run_seed(seed, pair) for seed in range(2)]
    assert not [result.violations for result in results if result.violations]
    restored = [result.restores_inflight for result in results]
    assert sum(result.restores for result in results) > 0
    # Where little is in flight, not every cut meets some; where much is, some does.
    assert min(restored) == 0 if pair.endswith("idle") else sum(restored) > 0


def test_more_than_half_of_the_runs_capture_in_flight_data() -> None:
    summary = Summary()
    for seed in range(1000, 1040):
        summary.add(run_seed(seed))
    assert not summary.failed, story_of(list(summary.failed))
    assert 2 * summary.with_inflight > summary.seeds
    assert summary.overlaps > 0, "no checkpoint began while the manifest of the one before was written"


def test_pipelines_start_again_after_their_end_and_changed_ones_are_refused() -> None:
    summary = Summary()
    chosen = [
        seed
        for seed in range(2000, 2300)
        if (scenario := draw(seed)).lives or any(fault.kind is FaultKind.CHANGE_PIPELINE for fault in scenario.faults)
    ]
    for seed in chosen[:40]:
        summary.add(run_seed(seed))
    assert not summary.failed, story_of(list(summary.failed))
    assert summary.later_lives > 10 and summary.refusals > 0


@pytest.mark.parametrize("kind", [FaultKind.HANG_COMMIT, FaultKind.HANG_STORE, FaultKind.HANG_COMMIT_FOR_EVER])
def test_a_seed_with_calls_that_hang_always_tells_the_same_story(kind: FaultKind) -> None:
    seed = next(seed for seed in range(1000) if any(fault.kind is kind for fault in draw(seed).faults))
    once, again = run_seed(seed, is_verbose=True), run_seed(seed, is_verbose=True)
    assert once.story == again.story


def test_a_manifest_that_takes_effect_after_its_tombstone_is_gone_is_no_checkpoint() -> None:
    # The write of manifest 4 hung; the next life of the pipeline had deleted the tombstone and ended.
    found = run_seed(1676, is_verbose=True)
    assert not found.violations
    assert any("checkpoint 4 of generation 1 is a stray" in line for line in found.story)


def test_a_seed_always_tells_the_same_story() -> None:
    once, again = run_seed(3, is_verbose=True), run_seed(3, is_verbose=True)
    assert once.story == again.story and len(once.story) > 50
