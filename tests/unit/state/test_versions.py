"""Versions by key and time: which one a row sees, and which one stays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.state.index.versions import Versions


def stage(versions: Versions, *rows: tuple[str, int, str]) -> None:
    """Rows of key, time and name."""
    keys, times, names = zip(*rows, strict=True)
    batch = pa.record_batch({"name": list(names)})
    versions.stage([(batch, [pa.array(keys)], np.array(times, dtype=np.int64))])


def seen(versions: Versions, key: str, *times: int) -> list[str | None]:
    """The name of the version that a row of each time gets."""
    found = versions.match([pa.array([key] * len(times))], np.array(times, dtype=np.int64))
    return [versions.gather(found[[row]], ["name"])[0][0].as_py() if found[row] else None for row in range(len(times))]


def test_a_row_sees_the_last_version_that_is_not_later() -> None:
    versions = Versions([pa.string()])
    stage(versions, ("a", 10, "first"), ("b", 11, "other"), ("a", 20, "second"))
    assert seen(versions, "a", 9, 10, 19, 20, 99) == [None, "first", "first", "second", "second"]
    versions.settle()
    assert seen(versions, "a", 19, 20) == [None, "second"]
    assert seen(versions, "b", 11) == ["other"]
    assert seen(versions, "c", 11) == [None]


def test_a_version_that_comes_late_neither_hides_nor_replaces_a_newer_one() -> None:
    versions = Versions([pa.string()])
    stage(versions, ("a", 10, "newer"))
    versions.settle()
    stage(versions, ("a", 5, "late"))
    assert seen(versions, "a", 4, 7, 12) == [None, "late", "newer"]
    versions.settle()
    assert seen(versions, "a", 7, 12) == [None, "newer"]


def test_of_equal_times_the_version_that_came_last_counts_wherever_the_batches_end() -> None:
    versions = Versions([pa.string()])
    stage(versions, ("a", 10, "first"), ("a", 10, "second"))
    assert seen(versions, "a", 10) == ["second"]
    versions.settle()
    assert seen(versions, "a", 10) == ["second"]
    stage(versions, ("a", 10, "third"))
    assert seen(versions, "a", 10) == ["third"]
    versions.settle()
    assert seen(versions, "a", 10) == ["third"]


def test_versions_that_are_taken_back_were_never_there() -> None:
    versions = Versions([pa.string()])
    stage(versions, ("a", 10, "stays"))
    versions.settle()
    stage(versions, ("a", 20, "goes"))
    versions.unstage()
    assert seen(versions, "a", 20) == ["stays"]
    assert sum(batch.num_rows for batch in versions.batches) == 1
