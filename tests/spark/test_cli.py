"""The command line, as a user runs it: processes of their own, a module in the current directory, real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]

MODULE = """
import pyarrow as pa
from penstock import GeneratorSource, JsonLinesSink, Pipeline
from penstock.testing import ListSource
import words_of_mine

bounded = Pipeline("bounded")
(
    bounded.source(ListSource([{"line": line} for line in ("a b a", "b a c")]))
    .flat_map(words_of_mine.split, format="rows", schema="word string")
    .key_by("word")
    .count("count", name="counts")
    .sink(JsonLinesSink("words"))
)

def numbers(start, count):
    return pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})

def endless():
    pipeline = Pipeline("endless")
    source = GeneratorSource(numbers, rows_per_second=500)
    pipeline.source(source, name="numbers").sink(JsonLinesSink("numbers"), name="output")
    return pipeline
"""

WORDS = """
def split(row):
    return [{"word": word} for word in row["line"].split()]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a pipeline, which imports a module of its own: workers must find both."""
    (tmp_path / "pipelines.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "words_of_mine.py").write_text(WORDS, encoding="utf-8")
    return tmp_path


def environment() -> dict[str, str]:
    """Without what other tests have set: the command line must find everything by itself."""
    return {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYTHONPATH")}


def penstock(project: Path, *arguments: str, timeout: float = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *arguments],
        cwd=project,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run(target: str) -> list[str]:
    return ["run", target, "--checkpoints", "checkpoints", "--master", "local[2]", "--parallelism", "1"]


def rows(directory: Path) -> Iterator[dict[str, object]]:
    for file in directory.glob("*.jsonl"):
        yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def test_a_bounded_pipeline_is_run_to_its_end(project: Path) -> None:
    result = penstock(project, *run("pipelines:bounded"), "--set", "checkpoint_interval=200ms")
    assert result.returncode == 0, result.stderr[-2000:]
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("finished: all input is read")
    assert any(" in=" in line and " restarts=0" in line for line in lines)
    # Nothing of Spark's own start, nor of its tasks.
    assert [line.partition(": ")[2][:8] for line in result.stderr.splitlines()] == ["page at "], result.stderr
    counts: dict[object, int] = {}
    for row in rows(project / "words"):
        counts[row["word"]] = max(counts.get(row["word"], 0), int(str(row["count"])))
    assert counts == {"a": 3, "b": 2, "c": 1}


def test_an_endless_pipeline_takes_orders_and_resumes(project: Path) -> None:
    command = [*PENSTOCK, *run("./pipelines.py:endless"), "--set", "checkpoint_interval=300ms"]
    with (project / "log").open("w", encoding="utf-8") as log:
        running = subprocess.Popen(command, cwd=project, env=environment(), stdout=log, stderr=log)
        try:
            _await_checkpoint(project, running)
            twice = penstock(project, *run("./pipelines.py:endless"))
            assert twice.returncode == 1
            assert "in use by pipeline 'endless'" in twice.stderr
            saved = penstock(project, "savepoint", "checkpoints", "--to", "saved", "--timeout", "100", "--json")
            assert saved.returncode == 0, saved.stderr
            assert json.loads(saved.stdout)["savepoint"] >= 1
            stopped = penstock(project, "stop", "checkpoints", "--drain", "--timeout", "100")
            assert stopped.returncode == 0, stopped.stderr
            assert "stopped with savepoint" in stopped.stdout
            assert running.wait(60) == 0, (project / "log").read_text(encoding="utf-8")[-2000:]
        finally:
            running.kill()
            running.wait()
    before = sorted(int(str(row["n"])) for row in rows(project / "numbers"))
    assert before == list(range(len(before)))
    assert penstock(project, "checkpoints", "verify", "checkpoints").returncode == 0
    assert penstock(project, "checkpoints", "verify", "saved").returncode == 0
    assert "no pipeline is running" in penstock(project, "stop", "checkpoints").stderr
    resumed = penstock(project, *run("./pipelines.py:endless"), "--for", "2")
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert "stopped with savepoint" in resumed.stdout
    after = sorted(int(str(row["n"])) for row in rows(project / "numbers"))
    assert len(after) > len(before)
    assert after == list(range(len(after)))


def _await_checkpoint(project: Path, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        assert running.poll() is None, (project / "log").read_text(encoding="utf-8")[-2000:]
        listed = penstock(project, "checkpoints", "list", "checkpoints", "--json")
        if listed.returncode == 0 and json.loads(listed.stdout):
            return
        time.sleep(0.5)
    raise AssertionError("there was no checkpoint within 200 s")
