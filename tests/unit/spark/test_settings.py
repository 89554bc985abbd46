"""Settings of a pipeline, as its workers get them."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Pipeline
from penstock.driver.settings import SupervisorSettings
from penstock.errors import OptionError
from penstock.spark.settings import Settings
from penstock.spark.watched import shown_settings
from penstock.testing import CollectSink, ListSource
from penstock.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("channel_time", "ms"), [(0.02, 20), (1, 1000), (timedelta(milliseconds=5), 5), (0, 0), (timedelta(), 0), (1e-5, 1)]
)
def test_the_time_on_a_channel_is_what_its_windows_aim_at_and_0_is_none(channel_time: Any, ms: int) -> None:
    assert Settings(channel_time=channel_time).worker().channel_time_ms == ms


@pytest.mark.parametrize(("batch_time", "ms"), [(0.05, 50), (0, 0), (timedelta(seconds=2), 2000), (1e-5, 1)])
def test_the_time_of_a_batch_is_that_of_the_workers(batch_time: Any, ms: int) -> None:
    assert Settings(batch_time=batch_time).worker().batch_time_ms == ms


@pytest.mark.parametrize("channel_time", [-1, "fast", None, False, float("nan")])
def test_a_time_on_a_channel_that_cannot_be_is_an_error_before_anything_starts(channel_time: Any) -> None:
    with pytest.raises(OptionError, match="channel_time is"):
        Settings(channel_time=channel_time)


@pytest.mark.parametrize("interval", [5, 5.0, "5 s", "5s", "5000 ms", timedelta(seconds=5)])
def test_a_time_is_written_as_everywhere_else(interval: Any) -> None:
    assert Settings(checkpoint_interval=interval).supervisor().policy.interval_ms == 5_000


def test_settings_that_are_shown_have_their_units() -> None:
    shown = shown_settings(
        Settings(worker_silence=30, channel_time=0.02, restart_delay=timedelta(seconds=20), channel_size=2 << 20)
    )
    assert (shown["worker_silence"], shown["channel_time"], shown["restart_delay"]) == ("30 s", "0.02 s", "20 s")
    assert (shown["channel_size"], shown["call_timeout"]) == ("2097152 bytes", "10 min")
    assert (shown["restarts_max"], shown["allow_output_twice"]) == ("10", "False")
    assert shown_settings(Settings(checkpoint_interval=None))["checkpoint_interval"] == "None"


def test_the_parts_have_the_defaults_that_the_user_is_told() -> None:
    assert Settings().supervisor() == SupervisorSettings()
    assert Settings().worker() == WorkerSettings()


@pytest.mark.parametrize(
    ("name", "text", "number"), [("inflight_size_max", "2 MiB", 2**21), ("recovery_size_max", "1 MB", 10**6)]
)
def test_a_size_is_written_as_everywhere_else(name: str, text: str, number: int) -> None:
    assert Settings.of({name: text}).worker() == Settings.of({name: number}).worker() != Settings().worker()
    with pytest.raises(OptionError, match=f"^{name} is '2g': it must be a number of bytes, or a text such as '64 KiB'"):
        Settings.of({name: "2g"})


NAMES = [field.name for field in dataclasses.fields(Settings)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, "two", [], 0.5j])
def test_a_value_that_cannot_work_is_told_by_the_name_that_the_user_wrote(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^{name} is "):
        Settings.of({name: value})


@pytest.mark.parametrize("name", ["checkpoint_interval", "checkpoint_timeout", "retained_checkpoints", "channel_size"])
def test_nothing_is_no_value_where_something_is_needed(name: str) -> None:
    with pytest.raises(OptionError, match=f"^{name} is 0: it must be"):
        Settings.of({name: 0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spark": None}, "start needs a SparkSession, not None"),
        ({"checkpoints": None}, "checkpoints is None: it must be the path or URL"),
        ({"parallelism": "two"}, "parallelism is 'two': it must be a whole number"),
        ({"workers": True}, "workers is True: it must be a whole number"),
        ({"restore": -3}, "restore is -3: it must be the id of a checkpoint, such as 17, or the path or URL"),
        ({"restore": 0}, "restore is 0: it must be"),
        ({"restore": "0"}, "restore is '0': it must be"),
        ({"restore": ""}, "restore is '': it must be"),
        ({"restore": True}, "restore is True: it must be"),
        ({"listeners": 5}, r"listeners is 5: it must be a list of penstock\.JobListener"),
        ({"listeners": [5]}, r"listeners has 5: all of them must be a penstock\.JobListener"),
        ({"storage_options": 5}, "storage_options is 5: it must be a dict for fsspec"),
    ],
)
def test_arguments_of_start_are_checked_before_anything_starts(arguments: dict[str, Any], message: str) -> None:
    pipeline = Pipeline("p")
    pipeline.source(ListSource([{"n": 1}])).sink(CollectSink())
    session = SimpleNamespace(createDataFrame=None)
    with pytest.raises(OptionError, match=message):
        pipeline.start(**{"spark": session, "checkpoints": "/nowhere", **arguments})
