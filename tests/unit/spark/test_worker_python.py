"""Which Python the workers run: the driver's, where both are on one host and nobody has said otherwise."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark.worker_python import use_own_python


def session(master: str, conf: dict[str, str]) -> Any:
    """The parts of a session that say where its workers are."""
    return SimpleNamespace(conf=conf, _sc=SimpleNamespace(master=master, pythonExec="python3"))


@pytest.mark.parametrize(
    ("master", "conf", "environment", "is_own"),
    [
        ("local[2]", {}, None, True),
        ("local[*]", {}, None, True),
        ("local", {}, None, True),
        ("local[2]", {}, "python3.12", False),
        ("local[2]", {"spark.pyspark.python": "python3.12"}, None, False),
        ("local-cluster[2,1,1024]", {}, None, False),
        ("spark://master:7077", {}, None, False),
    ],
)
def test_workers_run_the_drivers_python_unless_they_are_elsewhere_or_the_user_has_chosen(
    master: str, conf: dict[str, str], environment: str | None, is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if environment is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", environment)
    spark = session(master, conf)
    use_own_python(spark)
    assert spark._sc.pythonExec == (sys.executable if is_own else "python3")


def test_a_session_of_spark_connect_is_left_alone() -> None:
    use_own_python(SimpleNamespace(conf={}))  # type: ignore[arg-type]
