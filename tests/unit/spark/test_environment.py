"""The Python of the workers: the function that Spark ships can be loaded without Penstock, and says what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from penstock.errors import WorkerEnvironment, WorkersLost, is_final
from penstock.spark.environment import MARK, entry, environment_failure, versions, workers_python
from penstock.spark.failures import workers_lost

_CALLS: list[str] = []

_LOAD = """
import sys
sys.path.append({pyspark!r})
from pyspark import cloudpickle
run = cloudpickle.loads(open({file!r}, "rb").read())
try:
    list(run(iter(())))
except ImportError as error:
    print(error)
"""


def _called() -> None:
    _CALLS.append("called")


def test_where_penstock_is_missing_the_function_can_be_loaded_and_names_interpreter_and_module(tmp_path: Path) -> None:
    file = tmp_path / "function"
    file.write_bytes(cloudpickle.dumps(entry(b"never read", versions())))
    code = _LOAD.format(pyspark=str(Path(pyspark.__file__).parents[1]), file=str(file))
    # -S: without the packages of the environment. PySpark comes from the end of the path, and Penstock from nowhere.
    hidden = "import sys; sys.modules['penstock'] = None\n" + code
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", hidden], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.startswith(f"{MARK}{sys.executable}: ")
    assert "penstock" in done.stdout


def test_another_version_is_an_error_before_anything_is_unpickled() -> None:
    run = entry(b"not a pickle", versions() | {"pyarrow": "1"})
    with pytest.raises(ImportError, match=r"it has pyarrow \d+, and the driver has 1"):
        list(run(iter(())))


def test_equal_versions_run_the_function_and_an_unknown_one_is_no_difference() -> None:
    payload = pickle.dumps(_called)
    for driver in (versions(), versions() | {"penstock": ""}):
        _CALLS.clear()
        assert list(entry(payload, driver)(iter(()))) == []
        assert _CALLS == ["called"]


def test_a_module_that_the_pipeline_needs_and_the_workers_lack_is_named() -> None:
    class Absent:
        def __reduce__(self) -> Any:
            return __import__, ("nowhere_to_be_found",)

    with pytest.raises(ImportError, match="No module named 'nowhere_to_be_found'"):
        list(entry(pickle.dumps(Absent()), versions())(iter(())))


@pytest.mark.parametrize(
    ("text", "said", "cure"),
    [
        (f"ImportError: {MARK}/usr/bin/python3: No module named 'penstock'", "/usr/bin/python3", "PYSPARK_PYTHON="),
        ("x\nModuleNotFoundError: No module named 'pyarrow'\n\tat y", "'pyarrow'", "PYSPARK_PYTHON="),
        (f"ImportError: {MARK}/usr/bin/python3: No module named 'mine.own'", "'mine.own'", "addPyFile"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9", "3.9", "PYSPARK_PYTHON="),
    ],
)
def test_what_spark_says_of_it_becomes_one_sentence_with_the_cure_and_no_restart(
    text: str, said: str, cure: str
) -> None:
    error = workers_lost(RuntimeError(text), "local[2]")
    assert isinstance(error, WorkerEnvironment)
    assert said in str(error)
    assert cure in str(error)
    assert "\n" not in str(error)
    assert is_final(type(error))


def test_on_a_cluster_the_cure_is_to_install_it_on_the_executors() -> None:
    error = environment_failure("ModuleNotFoundError: No module named 'penstock'", "spark://host:7077")
    assert "on every executor" in str(error)


def test_other_failures_are_none_of_this() -> None:
    assert isinstance(workers_lost(RuntimeError("ValueError: no such file")), WorkersLost)


class Context:
    pythonExec = "python3"


class Session:
    def __init__(self, conf: dict[str, str]) -> None:
        self._sc = Context()
        self.conf = conf


@pytest.mark.parametrize(
    ("conf", "chosen", "is_ours"),
    [
        ({"spark.master": "local[2]"}, None, True),
        ({"spark.master": "local[2]"}, "/opt/python", False),
        ({"spark.master": "local[2]", "spark.pyspark.python": "/opt/python"}, None, False),
        ({"spark.master": "spark://host:7077"}, None, False),
        ({"spark.master": "local-cluster[2,1,1024]"}, None, False),
    ],
)
def test_local_workers_run_the_interpreter_of_the_driver_unless_another_was_chosen(
    conf: dict[str, str], chosen: str | None, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
    session = Session(json.loads(json.dumps(conf)))
    with workers_python(cast(SparkSession, session)):
        assert (session._sc.pythonExec == sys.executable) is is_ours
    assert session._sc.pythonExec == "python3"
