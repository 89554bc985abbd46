"""Durations and sizes as users write them."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import OptionError, PipelineError
from penstock.model.units import duration_ms, duration_s, shown_duration, size_bytes

UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "minutes": 60_000, "hours": 3_600_000, "Days": 86_400_000, "": 1_000}
UNITS_BYTES = {"B": 1, "": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


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
        ("10", 10_000),
        (timedelta(seconds=2, microseconds=1000), 2_001),
        (250, 250_000),
        (0.25, 250),
        (0.1, 100),
        (np.int64(2), 2_000),
        (np.float64(0.3), 300),
    ],
)
def test_a_duration_is_a_text_a_timedelta_or_a_number_of_seconds(value: Any, ms: int) -> None:
    assert duration_ms("it", value) == duration_ms("it", value, exactly=True) == ms
    assert duration_s("it", value) == ms / 1000


@pytest.mark.parametrize("value", ["", "s", "1 fortnight", "-1 s", "1 s 2", "1e3 s", "nan", True, None, b"1 s", [1]])
@pytest.mark.parametrize("value_of", [lambda value: value, lambda value: float("nan"), lambda value: float("inf")])
def test_anything_else_is_told_all_forms_in_one_sentence(value: Any, value_of: Any) -> None:
    with pytest.raises(OptionError) as raised:
        duration_ms("the delay", value_of(value), error=OptionError)
    assert str(raised.value) == (
        f"the delay is {value_of(value)!r}: it must be a number of seconds, a timedelta, or a text such as '250 ms', "
        f"'10 s', '1 min', '2 hours' or '1 day'"
    )


@pytest.mark.parametrize("value", ["0 s", -1, 0, -0.5, "0.5 ms", "400000 days", 1e20, timedelta(-1)])
def test_a_duration_that_is_too_short_or_too_long_is_an_error(value: Any) -> None:
    with pytest.raises(PipelineError, match="it must be at least 1 ms, and at most a thousand years"):
        duration_ms("it", value, at_least_ms=1)


def test_only_where_it_must_be_exact_a_fraction_of_a_millisecond_is_an_error() -> None:
    assert duration_ms("it", timedelta(microseconds=1500)) == 2
    with pytest.raises(PipelineError, match="it must be whole milliseconds, at least 0 ms"):
        duration_ms("it", timedelta(microseconds=1500), exactly=True)


def test_a_little_is_not_rounded_to_nothing() -> None:
    assert duration_ms("it", 1e-5) == duration_ms("it", timedelta(microseconds=1)) == 1


@given(number=st.integers(0, 10_000), hundredths=st.integers(0, 99), unit=st.sampled_from(sorted(UNITS_MS)))
def test_a_text_means_its_number_of_its_unit(number: int, hundredths: int, unit: str) -> None:
    exact = Fraction(100 * number + hundredths, 100) * UNITS_MS[unit]
    for gap in ("", " "):
        ms = duration_ms("it", f"{number}.{hundredths:02d}{gap}{unit}")
        assert abs(ms - exact) <= Fraction(1, 2) or (exact > 0 and ms == 1)


@given(ms=st.integers(0, 10**12))
def test_every_form_of_a_duration_means_the_same(ms: int) -> None:
    forms = (f"{ms} ms", timedelta(milliseconds=ms), ms / 1000, f"{ms / 1000:.3f}", shown_duration(ms))
    assert {duration_ms("it", form, exactly=True) for form in forms} == {ms}


@given(text=st.text(max_size=12))
def test_any_text_is_a_duration_and_a_size_or_a_clear_error(text: str) -> None:
    for parse in (duration_ms, size_bytes):
        try:
            assert parse("it", text) >= 0
        except PipelineError as error:
            assert str(error).startswith(f"it is {text!r}: it must be ")


@pytest.mark.parametrize(
    ("value", "size"),
    [(1, 1), ("1", 1), ("1_000", 1_000), ("64 KiB", 65_536), ("256MiB", 2**28), ("1 GB", 10**9), ("1.5 kb", 1_500)],
)
def test_a_size_is_a_text_or_a_number_of_bytes(value: Any, size: int) -> None:
    assert size_bytes("it", value) == size


@given(number=st.integers(1, 10_000), unit=st.sampled_from(sorted(UNITS_BYTES)))
def test_a_size_means_its_number_of_its_unit(number: int, unit: str) -> None:
    assert {size_bytes("it", text) for text in (f"{number}{unit}", f"{number} {unit.lower()}")} == {
        number * UNITS_BYTES[unit]
    }


@pytest.mark.parametrize("value", ["", "MB", "1 XB", "2g", "64k", "0.5", 1.5, True, None, "-1 MB", timedelta(1)])
def test_what_is_no_size_is_told_the_forms(value: Any) -> None:
    with pytest.raises(PipelineError, match="a number of bytes, or a text such as '64 KiB', '256 MiB' or '1 GB'"):
        size_bytes("it", value)


@pytest.mark.parametrize("value", [0, -1, "0 MB", 2**61])
def test_a_size_out_of_range_is_an_error(value: Any) -> None:
    with pytest.raises(PipelineError, match="at least 1 bytes, and at most an exbibyte"):
        size_bytes("it", value)
