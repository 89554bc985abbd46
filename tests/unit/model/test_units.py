"""Spans of time as users write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import PipelineError
from penstock.model.units import duration_ms


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("500 ms", 500),
        ("1s", 1_000),
        (" 1.5 Seconds ", 1_500),
        ("2 min", 120_000),
        ("1 minute", 60_000),
        ("1 hour", 3_600_000),
        ("2 days", 172_800_000),
        ("0 s", 0),
        (timedelta(seconds=2, microseconds=1000), 2_001),
        (250, 250),
    ],
)
def test_what_is_meant(value: Any, ms: int) -> None:
    assert duration_ms("it", value, at_least_ms=0) == ms


@pytest.mark.parametrize("value", ["", "s", "10", "1 fortnight", "-1 s", "1 s 2", "1e3 s", 1.5, True, None, b"1 s"])
def test_what_is_no_duration(value: Any) -> None:
    with pytest.raises(PipelineError, match=r"the size is .*: write a text such as '500 ms'"):
        duration_ms("the size", value, at_least_ms=0)


@pytest.mark.parametrize("value", ["0 s", -1, 0, "0.5 ms", timedelta(microseconds=1500), "400000 days", timedelta(-1)])
def test_what_is_out_of_range(value: Any) -> None:
    with pytest.raises(PipelineError, match="it must be whole milliseconds, at least 1"):
        duration_ms("it", value, at_least_ms=1)
