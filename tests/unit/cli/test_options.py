"""Settings and properties from text."""

from __future__ import annotations

import dataclasses

import pytest
import typer

from penstock.cli.options import properties_of, settings_help, settings_of
from penstock.spark.settings import Settings


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("checkpoint_interval=1", "1"),
        ("checkpoint_interval=500ms", "500ms"),
        ("checkpoint_interval = 2 min", "2 min"),
        ("checkpoint_interval=none", None),
        ("checkpoint_mode=unaligned", "unaligned"),
        ("retained_checkpoints=5", 5),
        ("inflight_size_max=256 MB", "256 MB"),
        ("channel_size=1MiB", "1MiB"),
        ("channel_size=1_000", "1_000"),
        ("allow_output_twice=yes", True),
        ("allow_dropped_state=False", False),
    ],
)
def test_a_setting_is_read_by_its_type(pair: str, value: object) -> None:
    name = pair.partition("=")[0].strip()
    assert settings_of([pair]) == {name: value}
    assert type(settings_of([pair])[name]) is type(value)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("chekpoint_interval=1", "did you mean checkpoint_interval"),
        ("checkpoint_interval", "not of the form name=value"),
        ("=1", "not of the form name=value"),
        ("checkpoint_interval=soon", "must be a number of seconds, a timedelta, or a text"),
        ("checkpoint_interval=-1", "must be a number of seconds, a timedelta, or a text"),
        ("checkpoint_interval=nan", "must be a number of seconds, a timedelta, or a text"),
        ("alignment_timeout=none", "alignment_timeout is 'none': it must be a number of seconds"),
        ("checkpoint_mode=sideways", "must be one of aligned, unaligned"),
        ("retained_checkpoints=1.5", "must be a whole number"),
        ("retained_checkpoints=0", "at least 1"),
        ("restarts_max=3MB", "must be a whole number"),
        ("channel_size=1XB", "must be a number of bytes"),
        ("allow_output_twice=perhaps", "must be true or false"),
    ],
)
def test_a_setting_that_cannot_work_is_wrong_usage(pair: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        settings_of([pair])


def test_the_last_word_on_a_setting_counts() -> None:
    assert settings_of(["restarts_max=1", "restarts_max=2"]) == {"restarts_max": 2}


def test_the_help_shows_every_setting_as_it_can_be_written() -> None:
    shown = [line.strip() for line in settings_help().splitlines()[2:]]
    assert settings_of(shown).keys() == {field.name for field in dataclasses.fields(Settings)}
    assert Settings(**settings_of(shown)) == Settings()


def test_properties_keep_what_follows_the_first_equals_sign() -> None:
    assert properties_of(["spark.a=b=c", "spark.d="]) == {"spark.a": "b=c", "spark.d": ""}
    with pytest.raises(typer.BadParameter, match=r"such as spark\.driver\.memory=2g"):
        properties_of(["spark.a"])
