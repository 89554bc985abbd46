"""The examples do what their texts say, without Spark."""

from __future__ import annotations

import compileall
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from penstock import Pipeline
from penstock.testing import run
from penstock.worker.settings import WorkerSettings

EXAMPLES = Path(__file__).parents[2] / "examples"
PIPELINES = ("page_views", "running_totals", "spark_data_source", "unusual_readings", "word_count")


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_all_examples_compile() -> None:
    assert compileall.compile_dir(EXAMPLES, quiet=1, force=True)


@pytest.mark.parametrize("name", PIPELINES)
def test_every_example_says_how_to_run_it_and_has_a_pipeline(name: str) -> None:
    names = example(name)
    assert f"penstock run examples/{name}.py:pipeline --checkpoints " in names["__doc__"]
    found = names["pipeline"]
    assert isinstance(found if isinstance(found, Pipeline) else found(), Pipeline)


def test_an_example_that_writes_files_says_where_and_git_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = (EXAMPLES.parent / ".gitignore").read_text(encoding="utf-8").splitlines()
    for name in ("word_count", "spark_data_source"):
        source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        (place,) = re.findall(r'environ.get\("\w+_OUTPUT", "(.+?)"\)', source)
        assert f"to {place} below the current" in " ".join(example(name)["__doc__"].split())
        assert f"/{place.split('/')[0]}/" in ignored


def test_the_totals_are_those_of_all_orders_whatever_fails(capsys: pytest.CaptureFixture[str]) -> None:
    names = example("running_totals")
    result = run(names["totals"](rows=5_000, rows_per_second=None), parallelism=2, crash_after_checkpoints=1)
    assert result.restarts == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["customer", "total", "orders"] for line in lines)


def test_the_words_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD_COUNT_OUTPUT", str(tmp_path))
    names = example("word_count")
    run(names["pipeline"](), parallelism=2)
    counts: dict[str, int] = {}
    for file in tmp_path.glob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            counts[row["word"]] = max(row["count"], counts.get(row["word"], 0))
    words = [word for line in names["LINES"] for word in line.split()]
    assert counts == {word: words.count(word) for word in words}


def test_the_visits_are_those_of_all_gates_and_every_file_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISITS_OUTPUT", str(tmp_path))
    names = example("spark_data_source")
    result = run(names["pipeline"](hours=100), parallelism=2, crash_after_checkpoints=1)
    assert result.restarts == 1
    totals: dict[int, dict[str, int]] = {}
    for file in sorted(tmp_path.glob("*.jsonl")):
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            totals[row["gate"]] = max(row, totals.get(row["gate"], row), key=lambda row: row["hours"])
    assert totals == {
        gate: {"gate": gate, "hours": 100, "visitors": sum(names["visitors"](gate, hour) for hour in range(100))}
        for gate in range(names["GATES"])
    }


def test_the_readings_that_jump_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    names = example("unusual_readings")
    jump = names["JUMP_EVERY"]
    run(names["jumps"](rows=3 * jump, rows_per_second=None), parallelism=2)
    lines = capsys.readouterr().out.splitlines()
    expected = [str((n * jump - 1) % names["SENSORS"]) for n in (1, 2, 3)]
    assert sorted(line.split()[0] for line in lines if line.strip()[:1].isdigit()) == sorted(expected)


def test_views_are_counted_in_their_minutes_and_those_that_come_very_late_are_told_of() -> None:
    names = example("page_views")
    described = names["by_minute"](rows=20_000, rows_per_second=None)
    # Read in one piece, the records would all be there before the first watermark.
    result = run(described, worker_settings=WorkerSettings(source_rows_max=500))
    assert result.rows_late == 20_000 // names["VERY_LATE_EVERY"]
