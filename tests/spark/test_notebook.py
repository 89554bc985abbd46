"""A notebook: a pipeline of functions that are defined in cells, its interrupted `wait`, and its restart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_ROOT = Path(__file__).resolve().parents[2]
_HANG_S = 300.0

SESSION = """
from pyspark.sql import SparkSession
from penstock import CallableSink, GeneratorSource, Pipeline
import pyarrow as pa
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "1g").getOrCreate()
"""
PIPELINE = """
FACTOR = 2

def numbers(first, count):
    return pa.record_batch({"n": range(first, first + count)})

def doubled(batch):
    return batch.append_column("double", pa.array([FACTOR * n for n in batch["n"].to_pylist()]))

def even(batch):
    assert all(n % 2 == 0 for n in batch["double"].to_pylist())

def made():
    pipeline = Pipeline("cells")
    source = pipeline.source(GeneratorSource(numbers, rows_per_second=1000), name="numbers")
    source.map(doubled, name="doubled").sink(CallableSink(even), name="even")
    return pipeline

def started():
    return made().start(spark, CHECKPOINTS, parallelism=1, checkpoint_interval=0.3)
"""
RUNS = """
import time
job = started()
while not any(record.is_completed for record in job.checkpoints()):
    assert not job.wait(0.05)
print("is running:", job)
"""
TYPO = """
def doubled(batch):
    column = batch["n"]
    return batch.append_column("double", column.nonsense)
"""


class Cell:
    """All that a cell has shown."""

    def __init__(self) -> None:
        self.number = 0
        self.printed = ""
        self.error = ""


class Notebook:
    """A kernel in a process of its own, driven as Jupyter does it."""

    def __init__(self, directory: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
        environment["PYTHONPATH"] = str(_ROOT / "src")
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(env=environment, cwd=str(directory))
        self._client: BlockingKernelClient = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_HANG_S)

    def run(self, code: str, on_print: Callable[[str], None] = lambda text: None) -> Cell:
        """Run a cell to its end. `on_print` hears all that it has printed so far, whenever that grows."""
        cell, until = Cell(), time.monotonic() + _HANG_S
        asked = self._client.execute(code)
        while time.monotonic() < until:
            message: dict[str, Any] = self._client.get_iopub_msg(timeout=_HANG_S)
            if message["parent_header"].get("msg_id") != asked:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                cell.printed += content["text"]
                on_print(cell.printed)
            elif message["msg_type"] == "execute_input":
                cell.number = content["execution_count"]
            elif message["msg_type"] == "error":
                cell.error = f"{content['ename']}: {content['evalue']}"
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return cell
        raise AssertionError(f"a cell hangs, and has printed: {cell.printed}")

    def interrupt(self) -> None:
        """The stop button."""
        self._manager.interrupt_kernel()

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    made = Notebook(tmp_path)
    yield made
    made.close()


def test_a_pipeline_of_cells_is_watched_interrupted_and_restarted_and_its_typo_is_found_in_its_cell(
    notebook: Notebook, tmp_path: Path
) -> None:
    for code in (SESSION, f"CHECKPOINTS = {str(tmp_path / 'checkpoints')!r}", PIPELINE):
        assert not notebook.run(code).error

    cell = notebook.run(RUNS)
    assert "is running: <Job 'cells': running, checkpoint" in cell.printed, cell.error or cell.printed

    def press_stop(printed: str) -> None:
        if printed.endswith("waits\n"):
            time.sleep(0.5)
            notebook.interrupt()

    # In a cell that does something else, the button is for that cell.
    cell = notebook.run("print('waits', flush=True)\ntime.sleep(600)", press_stop)
    assert cell.error.startswith("KeyboardInterrupt")
    cell = notebook.run("print(job.wait(2), job.status.phase.value, job.status.restarts)")
    assert cell.printed.endswith("False running 0\n"), cell.error or cell.printed

    cell = notebook.run("print('waits', flush=True)\nprint('returned', job.wait(), job.status.phase.value)", press_stop)
    assert not cell.error
    assert "stopping with a savepoint" in cell.printed
    assert "pipeline 'cells' stopped with savepoint" in cell.printed
    assert "returned True stopped" in cell.printed

    goes_on = "print('goes on:', job.status.rows_in >= read > 0)\njob.stop()"
    cell = notebook.run("read = job.status.rows_in\n" + RUNS + goes_on)
    assert "goes on: True" in cell.printed, cell.error or cell.printed

    number = notebook.run(TYPO).number
    cell = notebook.run("started().wait()")
    assert cell.error.startswith("UserCodeError: operator 'doubled', subtask 0 of 1"), cell.error
    assert "AttributeError" in cell.error
    # IPython drops the empty line at the beginning of a cell.
    assert f"(Cell In[{number}], line 3 in doubled; a batch of" in cell.error
