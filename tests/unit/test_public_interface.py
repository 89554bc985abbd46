"""What a user imports, sees at a prompt, and what a type checker knows of it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import ConsoleSink, FileSource, GeneratorSource, ParquetSink, Pipeline
from penstock.operators.contract import Operator
from penstock.spark.settings import Settings, StartOptions
from penstock.testing import ListSource
from tests.unit.user_types import checked_types


def test_every_public_name_is_there_and_the_version_too() -> None:
    assert [name for name in penstock.__all__ if not hasattr(penstock, name)] == []
    assert {"Job", "Status", "WorkersLost", "__version__"} <= set(penstock.__all__) <= set(dir(penstock))
    assert penstock.Job.__module__ == "penstock.spark.job"
    assert penstock.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="no attribute 'Jop'"):
        _ = penstock.Jop  # type: ignore[attr-defined]


def test_nothing_public_is_of_a_kind_that_no_method_takes() -> None:
    assert [name for name in penstock.__all__ if getattr(penstock, name) is Operator] == []


def test_a_pipeline_and_its_parts_say_what_they_are(tmp_path: Path) -> None:
    pipeline = Pipeline("totals")
    assert repr(pipeline) == "<Pipeline 'totals': empty>"
    stream = pipeline.source(ListSource([{"k": 1, "at": 1}]), name="orders").with_watermark(
        "at", delay="1 s", name="times"
    )
    keyed = stream.key_by("k")
    assert repr(stream) == "<Stream of pipeline 'totals' behind 'times'>"
    assert repr(keyed) == "<KeyedStream of pipeline 'totals' behind 'times' by k>"
    assert repr(keyed.window("1 s")).startswith("<WindowedStream of windows of 1000 ms")
    keyed.count(name="counts").sink(ConsoleSink(), name="console")
    assert repr(pipeline) == "<Pipeline 'totals': orders, times, counts, console>"


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (FileSource("/data/orders"), "FileSource(directory='/data/orders', format='parquet')"),
        (GeneratorSource(pa.schema({"a": pa.int64()}), splits=2), "GeneratorSource(splits='2')"),
        (ParquetSink("/data/totals"), "ParquetSink(directory='/data/totals')"),
        (ConsoleSink(), "ConsoleSink()"),
    ],
)
def test_sources_and_sinks_say_what_they_are(made: Any, shown: str) -> None:
    assert repr(made) == shown


def test_the_typed_arguments_of_start_are_all_the_settings() -> None:
    of_launch = {"parallelism", "workers", "restore", "storage_options", "listeners"}
    of_page = {"ui_port", "ui_host", "ui_allowed_hosts", "metrics_names", "otel_endpoint"}
    settings = {field.name: field.type for field in dataclasses.fields(Settings)}
    typed = {name: kind.__forward_arg__ for name, kind in StartOptions.__annotations__.items()}
    assert typed.keys() - of_launch - of_page == settings.keys()
    assert {name for name in settings if typed[name] != settings[name]} == {"checkpoint_mode", "state_backend"}


USER = """\
from pyspark.sql import SparkSession

from penstock import FileSource, ParquetSink, Pipeline


def start(spark: SparkSession) -> None:
    pipeline = Pipeline("totals")
    pipeline.source(FileSource("/in")).key_by("customer").count(name="counts").sink(ParquetSink("/out"))
    job = pipeline.start(spark, "/checkpoints", checkpoint_intervall=1)
    job.wiat()
    print(job.status.rows_read)
    pipeline.start(spark, "/checkpoints", checkpoint_interval=1, checkpoint_mode="aligned", workers=2).wait(timeout=1)
"""


def test_a_type_checker_finds_a_wrong_setting_and_a_wrong_method(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    said = checked_types(tmp_path, "user.py")
    found = re.findall(r"^user\.py:(\d+): error: .*?\"(\w+)\".*\[([a-z-]+)\]$", said, re.MULTILINE)
    assert found == [
        ("9", "checkpoint_intervall", "call-arg"),
        ("10", "Job", "attr-defined"),
        ("11", "Status", "attr-defined"),
    ], said
