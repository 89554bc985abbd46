"""Stray manifests are told from checkpoints by what later manifests have found."""

from __future__ import annotations

import pytest

from penstock.ids import CheckpointId
from penstock.protocol.retention import CompletedCheckpoint
from penstock.protocol.strays import is_stray, newest_of, strays_among


def completed(number: int, first: int = 0, *older: int) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        CheckpointId(number), frozenset(), first=CheckpointId(first), older=tuple(map(CheckpointId, older))
    )


def test_what_a_generation_did_not_find_below_its_first_id_is_a_stray() -> None:
    newest = completed(9, 7, 2, 5)
    found = {number for number in range(1, 12) if is_stray(CheckpointId(number), newest)}
    assert found == {1, 3, 4, 6}


def test_the_newest_manifest_that_can_tell_is_the_judge() -> None:
    former, newest, copy = completed(6, 4, 2), completed(9, 8, 2, 6), completed(10)
    assert newest_of((former, copy, newest)) == newest
    # 3 was one of the former generation's, by its own manifest; a later one that has found it knows better.
    assert strays_among((completed(2), completed(3), former, newest, copy)) == {3}
    assert strays_among((completed(2), completed(3), former, completed(9, 8, 2, 3, 6))) == frozenset()


@pytest.mark.parametrize("found", [(), (completed(1), completed(2))])
def test_manifests_of_earlier_versions_and_copies_make_no_strays(found: tuple[CompletedCheckpoint, ...]) -> None:
    assert newest_of(found) is None and not is_stray(CheckpointId(1), None)
    assert strays_among(found) == frozenset()
