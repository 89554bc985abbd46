"""Settings of a pipeline, as its workers get them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.spark.settings import Settings


@pytest.mark.parametrize(
    ("channel_time", "ms"), [(0.02, 20), (1, 1000), (timedelta(milliseconds=5), 5), (0, 0), (timedelta(), 0), (1e-5, 1)]
)
def test_the_time_on_a_channel_is_what_its_windows_aim_at_and_0_is_none(channel_time: Any, ms: int) -> None:
    assert Settings(channel_time=channel_time).worker().queue_ms_target == ms


@pytest.mark.parametrize("channel_time", [-1, "fast", None, False, float("nan")])
def test_a_time_on_a_channel_that_cannot_be_is_an_error_before_anything_starts(channel_time: Any) -> None:
    with pytest.raises(OptionError, match="channel_time is"):
        Settings(channel_time=channel_time)
