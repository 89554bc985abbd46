"""A standalone cluster on loopback, and a pipeline that `spark-submit` brings to it with its environment in an archive.

As docs/deployment.md says it: the Python of the executors has no Penstock, and the archive has. To keep the archive
small, its `bin/python` is a script that runs the Python of the tests with the packages of the archive in front.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

pytestmark = pytest.mark.spark

SPARK = Path(pyspark.__file__).parent
PACKAGE = Path(__file__).parents[2] / "src" / "penstock"

SCRIPT = """
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock
from penstock import GeneratorSource, JsonLinesSink, Pipeline


def numbers(start, count):
    return pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})


def with_home(batch):
    import penstock

    home = pa.array([penstock.__file__] * batch.num_rows, pa.string())
    return batch.append_column("home", home)


root = Path(sys.argv[1])
pipeline = Pipeline("numbers")
(
    pipeline.source(GeneratorSource(numbers, rows=1_000, splits=2), name="numbers")
    .map(with_home)
    .sink(JsonLinesSink(root / "output"), name="output")
)
spark = SparkSession.builder.getOrCreate()
job = pipeline.start(spark, checkpoints=root / "checkpoints", parallelism=2, checkpoint_interval=0.5)
assert job.wait(200)
spark.stop()
"""


def make_archive(directory: Path) -> Path:
    """`environment.tar.gz` with `bin/python`, and with Penstock in `packages`."""
    home = directory / "environment"
    (home / "bin").mkdir(parents=True)
    shutil.copytree(PACKAGE, home / "packages" / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    python = home / "bin" / "python"
    python.write_text(
        '#!/bin/sh\nhere=$(cd "$(dirname "$0")/.." && pwd)\n'
        f'PYTHONPATH="$here/packages:$PYTHONPATH" exec {sys.executable} "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    archive = directory / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for entry in sorted(home.iterdir()):
            file.add(entry, entry.name)
    return archive


@contextlib.contextmanager
def cluster(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """A master and one worker of two cores; the address of the master."""
    with contextlib.ExitStack() as processes:

        def launch(name: str, *arguments: str) -> Path:
            log = directory / f"{name}.log"
            command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
            with log.open("w", encoding="utf-8") as output:
                process = subprocess.Popen(
                    [*command, "--host", "127.0.0.1", "--webui-port", "0"],
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            processes.callback(process.wait)
            processes.callback(process.kill)
            return log

        master = launch("master.Master", "--port", "0")
        address = until_said(master, r"Starting Spark master at (spark://\S+)")
        worker = launch("worker.Worker", "--cores", "2", "--memory", "1g", "-d", str(directory / "work"), address)
        until_said(worker, r"(Successfully registered with master)")
        yield address


def until_said(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(encoding="utf-8")):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} never said {pattern}:\n{log.read_text(encoding='utf-8')[-2000:]}")


def test_spark_submit_brings_penstock_to_a_standalone_cluster_in_an_archive(tmp_path: Path) -> None:
    script = tmp_path / "submitted.py"
    script.write_text(SCRIPT, encoding="utf-8")
    archive = make_archive(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    environment = kept | {"SPARK_HOME": str(SPARK), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
    with cluster(tmp_path, environment) as master:
        done = subprocess.run(
            [
                *(str(SPARK / "bin" / "spark-submit"), "--master", master),
                *("--archives", f"{archive}#environment", "--conf", "spark.pyspark.python=./environment/bin/python"),
                *("--conf", f"spark.pyspark.driver.python={sys.executable}"),
                *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"),
                *("--conf", "spark.executor.memory=512m", "--driver-memory", "512m"),
                *(str(script), str(tmp_path)),
            ],
            env=environment | {"PYTHONPATH": str(PACKAGE.parent)},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    files = sorted((tmp_path / "output").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(row["n"] for row in rows) == list(range(1_000))
    assert {"/environment/packages/penstock/" in row["home"] for row in rows} == {True}
