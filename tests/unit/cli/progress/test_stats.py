"""Figures for people."""

from __future__ import annotations

import pytest

from penstock.cli.progress.stats import shown_bytes, shown_count, shown_ms, shown_seconds


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (999_960, "1.0 MB"),
        (256 * 2**20, "268 MB"),
    ],
)
def test_sizes(count: int, shown: str) -> None:
    assert shown_bytes(count) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (9_999, "9999"), (10_000, "10.0k"), (310_000, "310k"), (1_200_000, "1.2M"), (2.5e13, "25.0T")],
)
def test_counts(count: float, shown: str) -> None:
    assert shown_count(count) == shown


@pytest.mark.parametrize(("ms", "shown"), [(0, "0ms"), (35, "35ms"), (4_200, "4.2s"), (200_000, "3m20s")])
def test_times(ms: int, shown: str) -> None:
    assert shown_ms(ms) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(12.9, "12s"), (60, "1m00s"), (7_500, "2h05m"), (3 * 86_400 + 4 * 3600, "3d04h")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown
