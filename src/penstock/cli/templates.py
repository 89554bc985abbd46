"""The files of a new project. MODULE, PROJECT and VERSION are replaced."""

from __future__ import annotations

_PIPELINE = '''"""Page views by minute of event time.

    penstock run MODULE.py:pipeline --master 'local[2]' --set checkpoint_interval=2

Ctrl-C stops it with a savepoint; the same command goes on from there.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock import ConsoleSink, GeneratorSource, Pipeline, Sink, Source

PAGES = np.array(["/", "/docs", "/blog"])
BEGIN_MS = 1_750_000_020_000  # a full minute


def views(start: int, count: int) -> pa.RecordBatch:
    """The views of these numbers, a second of event time apart. Replace it by your own source, such as FileSource."""
    numbers = np.arange(start, start + count)
    at = pa.array(BEGIN_MS + numbers * 1_000, pa.timestamp("ms", "UTC"))
    return pa.record_batch({"page": PAGES[numbers * 7 % 5 % len(PAGES)], "at": at})


def build(source: Source, sink: Sink) -> Pipeline:
    """The pipeline, with any source and sink: a test has its own."""
    described = Pipeline("PROJECT")
    (
        described.source(source, name="views")
        .with_watermark("at", "10 s", name="times")
        .key_by("page")
        .window("1 min")
        .count("views", name="by minute")
        .sink(sink, name="output")
    )
    return described


def pipeline() -> Pipeline:
    """For `penstock run`: an endless stream of 100 views a second, printed with each checkpoint."""
    return build(GeneratorSource(views, rows_per_second=100), ConsoleSink())
'''

_TEST = '''"""The pipeline without Spark: all workers crash once, and every view is counted once."""

from __future__ import annotations

from MODULE import build, views
from penstock import GeneratorSource
from penstock.testing import CollectSink, run


def test_every_view_is_counted_once_whatever_crashes() -> None:
    output = CollectSink()
    result = run(build(GeneratorSource(views, rows=3_000), output), parallelism=2, crash_after_checkpoints=1)
    assert result.restarts == 1
    assert result.rows_late == 0
    assert sum(row["views"] for row in output.rows()) == 3_000
'''

_README = """# PROJECT

A Penstock pipeline on Spark: page views by minute of event time.

    pip install -e '.[dev]'
    python -m pytest
    mypy .
    penstock run MODULE.py:pipeline --master 'local[2]' --set checkpoint_interval=2

Checkpoints are in `checkpoints/`: `penstock status checkpoints/PROJECT` says how it goes.
"""

_PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "PROJECT"
version = "0.1.0"
requires-python = ">=3.11"
# Penstock VERSION made this project.
dependencies = ["penstock"]

[project.optional-dependencies]
dev = ["mypy", "pytest"]

[tool.setuptools]
py-modules = ["MODULE"]

[tool.pytest.ini_options]
pythonpath = ["."]

[tool.mypy]
strict = true

[[tool.mypy.overrides]]
# pyarrow has no annotations.
module = ["pyarrow.*"]
ignore_missing_imports = true
"""

_IGNORE = """# What runs leave behind
checkpoints/
output/
spark-warehouse/
artifacts/

__pycache__/
.mypy_cache/
.pytest_cache/
*.egg-info/
"""

FILES = {
    "MODULE.py": _PIPELINE,
    "test_MODULE.py": _TEST,
    "README.md": _README,
    "pyproject.toml": _PYPROJECT,
    ".gitignore": _IGNORE,
}
"""By name, in the order in which they are written."""
