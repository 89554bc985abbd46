"""Every example but the demonstration, for real: bounded, on Spark, to its end. `make demo` runs that one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock import Pipeline
from tests.unit.test_examples import EXAMPLES, PIPELINES, example

pytestmark = pytest.mark.spark

BOUNDED: dict[str, tuple[str, dict[str, Any]]] = {
    "page_views": ("by_minute", {"rows": 2_000, "rows_per_second": None}),
    "running_totals": ("totals", {"rows": 2_000, "rows_per_second": None}),
    "spark_data_source": ("pipeline", {"hours": 48}),
    "unusual_readings": ("jumps", {"rows": 5_000, "rows_per_second": None}),
    "word_count": ("pipeline", {}),
}


def test_no_example_is_forgotten() -> None:
    assert sorted(BOUNDED) == sorted(PIPELINES)
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted([*PIPELINES, "demo"])


@pytest.mark.parametrize("name", PIPELINES)
def test_an_example_runs_on_spark_and_leaves_nothing_in_the_repository(
    name: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    function, arguments = BOUNDED[name]
    pipeline = example(name)[function](**arguments)
    assert isinstance(pipeline, Pipeline)
    job = pipeline.start(spark, tmp_path / "checkpoints", parallelism=2, checkpoint_interval=1)
    assert job.wait(280)
    assert job.status.phase.value == "finished"
    assert repr(job).startswith(f"<Job '{pipeline.name}': finished, checkpoint ")
    written = [path for path in (tmp_path / "out").rglob("*.jsonl") if path.stat().st_size]
    assert written or "checkpoint " in capsys.readouterr().out
