"""Key groups: two views of one partition (I9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import KeyGroup
from penstock.protocol.key_groups import key_groups_of, owner_of

shapes = st.integers(1, 300).flatmap(lambda most: st.tuples(st.integers(1, most), st.just(most)))


@given(shapes)
def test_every_key_group_has_exactly_one_owner_and_both_functions_agree(shape: tuple[int, int]) -> None:
    parallelism, max_parallelism = shape
    owned = [(group, index) for index in range(parallelism) for group in key_groups_of(index, *shape)]
    assert [group for group, _ in owned] == list(range(max_parallelism))
    assert all(owner_of(KeyGroup(group), parallelism, max_parallelism) == index for group, index in owned)


@given(shapes)
def test_no_subtask_is_without_key_groups_and_none_has_many_more_than_another(shape: tuple[int, int]) -> None:
    sizes = [len(key_groups_of(index, *shape)) for index in range(shape[0])]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("index", "parallelism", "expected"), [(0, 7, range(19)), (6, 7, range(110, 128)), (1, 2, range(64, 128))]
)
def test_the_ranges_are_the_ones_that_checkpoints_on_disk_rely_on(
    index: int, parallelism: int, expected: range
) -> None:
    assert key_groups_of(index, parallelism, 128) == expected
