"""Key groups: the unit in which keyed state and keyed records move between subtasks.

A key belongs to one of `max_parallelism` key groups, and never moves to another. A subtask owns a contiguous range of
them, so that rescaling is a matter of reading other ranges of the same files. Both functions here
are two views of one partition: every key group has exactly one owner (I9).
"""

from __future__ import annotations

from penstock.ids import KeyGroup


def owner_of(key_group: KeyGroup, parallelism: int, max_parallelism: int) -> int:
    """Index of the subtask that owns `key_group`."""
    return key_group * parallelism // max_parallelism


def key_groups_of(index: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups that subtask `index` owns; never empty while parallelism <= max_parallelism."""
    first = -(-index * max_parallelism // parallelism)
    end = -(-(index + 1) * max_parallelism // parallelism)
    return range(first, end)
