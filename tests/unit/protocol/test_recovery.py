"""Which checkpoint to start from: the newest valid one, and never silently less than there was (I8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import CheckpointId
from penstock.protocol.recovery import (
    Candidate,
    Damaged,
    FallBack,
    Foreign,
    Refuse,
    RestoreFrom,
    Skipped,
    StartEmpty,
    Valid,
    Verdict,
    decide_restore,
)

VALID = Valid()
BROKEN = Damaged("blob x is missing")
OTHER = Foreign("it is of the pipeline 'payments'")


def candidate(number: int, verdict: Verdict = VALID, *, has_committables: bool | None = True) -> Candidate:
    return Candidate(CheckpointId(number), verdict, has_committables)


def skipped(number: int, reason: str = BROKEN.reason) -> Skipped:
    return Skipped(CheckpointId(number), reason)


def test_without_any_completed_checkpoint_the_pipeline_starts_empty() -> None:
    assert decide_restore([], has_committing_sinks=True) == StartEmpty()


def test_the_newest_valid_checkpoint_is_restored_in_whatever_order_they_are_listed() -> None:
    candidates = [candidate(2), candidate(9), candidate(4, BROKEN)]
    assert decide_restore(candidates, has_committing_sinks=True) == RestoreFrom(CheckpointId(9))


def test_without_committing_sinks_a_damaged_checkpoint_is_passed_over() -> None:
    candidates = [candidate(3), candidate(4, BROKEN), candidate(5, BROKEN, has_committables=None)]
    assert decide_restore(candidates, has_committing_sinks=False) == RestoreFrom(
        CheckpointId(3), (skipped(5), skipped(4))
    )


def test_a_damaged_checkpoint_that_had_nothing_to_publish_is_passed_over() -> None:
    candidates = [candidate(3), candidate(4, BROKEN, has_committables=False)]
    assert decide_restore(candidates, has_committing_sinks=True) == RestoreFrom(CheckpointId(3), (skipped(4),))


@pytest.mark.parametrize("has_committables", [True, None])
@pytest.mark.parametrize(("committed", "word"), [(frozenset(), "may have been"), (frozenset({CheckpointId(4)}), "was")])
def test_going_back_past_output_that_may_be_public_is_refused(
    has_committables: bool | None, committed: frozenset[CheckpointId], word: str
) -> None:
    candidates = [candidate(3), candidate(4, BROKEN, has_committables=has_committables)]
    decision = decide_restore(candidates, committed=committed, has_committing_sinks=True)
    assert isinstance(decision, Refuse)
    assert decision.skipped == (skipped(4),)
    assert f"checkpoint 4 cannot be restored: blob x is missing. Its output {word} published" in decision.reason
    assert "allow_output_twice=True" in decision.reason


def test_the_user_may_allow_output_to_be_published_twice() -> None:
    candidates = [candidate(3), candidate(4, BROKEN)]
    decision = decide_restore(candidates, has_committing_sinks=True, fall_back=FallBack.ALLOW_DUPLICATES)
    assert decision == RestoreFrom(CheckpointId(3), (skipped(4),))


def test_checkpoints_of_which_none_is_readable_are_never_an_empty_start() -> None:
    candidates = [candidate(3, BROKEN), candidate(4, Damaged("its manifest is cut short"), has_committables=None)]
    decision = decide_restore(candidates, has_committing_sinks=False)
    assert isinstance(decision, Refuse)
    assert "4: its manifest is cut short; 3: blob x is missing" in decision.reason
    assert "empty checkpoint directory" in decision.reason


@pytest.mark.parametrize("fall_back", list(FallBack))
def test_a_foreign_checkpoint_is_never_passed_over(fall_back: FallBack) -> None:
    candidates = [candidate(3), candidate(4, OTHER)]
    decision = decide_restore(candidates, has_committing_sinks=False, fall_back=fall_back)
    assert isinstance(decision, Refuse)
    assert "cannot continue from checkpoint 4: it is of the pipeline 'payments'" in decision.reason


def test_a_foreign_checkpoint_older_than_a_valid_one_does_not_matter() -> None:
    assert decide_restore([candidate(3, OTHER), candidate(4)], has_committing_sinks=True) == RestoreFrom(
        CheckpointId(4)
    )


def test_a_marker_without_a_manifest_is_a_checkpoint_that_was_removed() -> None:
    decision = decide_restore([], committed=frozenset({CheckpointId(5)}), has_committing_sinks=True)
    assert isinstance(decision, Refuse)
    assert decision.skipped == (skipped(5, "its manifest is gone, although its output was committed"),)
    decision = decide_restore([candidate(4)], committed=frozenset({CheckpointId(5)}), has_committing_sinks=True)
    assert isinstance(decision, Refuse)


def test_the_marker_of_a_retired_checkpoint_does_not_matter() -> None:
    decision = decide_restore([candidate(4)], committed=frozenset({CheckpointId(2)}), has_committing_sinks=True)
    assert decision == RestoreFrom(CheckpointId(4))


verdicts = st.sampled_from([VALID, BROKEN, OTHER])
candidate_lists = st.dictionaries(
    st.integers(1, 9).map(CheckpointId), st.tuples(verdicts, st.sampled_from([True, False, None]))
).map(lambda found: [Candidate(number, *rest) for number, rest in found.items()])


@given(candidate_lists, st.booleans(), st.sampled_from(list(FallBack)))
def test_nothing_valid_is_passed_over_and_nothing_starts_empty_beside_a_checkpoint(
    candidates: list[Candidate], has_committing_sinks: bool, fall_back: FallBack
) -> None:
    decision = decide_restore(candidates, has_committing_sinks=has_committing_sinks, fall_back=fall_back)
    valid = [each.checkpoint for each in candidates if each.verdict == VALID]
    match decision:
        case StartEmpty():
            assert not candidates
        case RestoreFrom(checkpoint, passed):
            assert checkpoint == max(valid)
            newer = {each.checkpoint for each in candidates if each.checkpoint > checkpoint}
            assert {each.checkpoint for each in passed} == newer
        case Refuse(reason):
            assert len(reason) > 50
