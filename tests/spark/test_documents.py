"""The examples of the documents that need Spark, run as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.architecture.test_docs_are_true import examples
from tests.architecture.test_docstrings import ON_SPARK, all_examples, preamble

pytestmark = pytest.mark.spark

BLOCKS = examples("python spark")
FIRST, *OTHERS = BLOCKS
IN_DOCSTRINGS = [pytest.param(source, id=place) for place, source in all_examples(ON_SPARK).items()]


def below(directory: Path, source: str) -> str:
    """The example with its files below `directory`: two runs of the tests must not share any."""
    return source.replace("/tmp/penstock", str(directory))


def test_the_first_example_of_the_readme_runs_as_a_script_that_nothing_was_prepared_for(tmp_path: Path) -> None:
    assert str(FIRST.id).startswith("README.md:")
    script = tmp_path / "first.py"
    script.write_text(below(tmp_path, str(FIRST.values[1])), encoding="utf-8")
    # As `venv/bin/python first.py` without activating the environment: workers must run this Python all the same.
    unset = ("PYSPARK_PYTHON", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["page", "window_start", "window_end", "views"] in lines
    assert lines[-1][0] == "read"
    printed = [line for line in done.stdout.splitlines() if re.match(r"/\S* +2026", line)]
    assert sum(int(line.split()[-1]) for line in printed) == 1000
    assert len(set(printed)) == len(printed) == 3 * 5


@pytest.mark.parametrize(("heading", "source"), OTHERS)
def test_every_other_example_runs_on_spark(
    heading: str, source: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = vars(ModuleType("__main__"))
    exec(compile(below(tmp_path, source), "<example>", "exec"), names)


@pytest.mark.parametrize("source", IN_DOCSTRINGS)
def test_every_example_of_a_docstring_that_needs_a_session_runs(
    source: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {**vars(ModuleType("__main__")), "spark": spark}
    exec(compile(preamble(), "<docs/reference/index.md>", "exec"), names)
    exec(compile(below(tmp_path, source), "<example>", "exec"), names)
