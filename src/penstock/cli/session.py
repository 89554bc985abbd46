"""The Spark session of `penstock run`: quiet, and with workers that run this Python and find the user's modules."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.cli.relay import Relay
from penstock.errors import PenstockError
from penstock.spark.sessions import is_on_this_host
from penstock.spark.worker_group import EXCLUSIVE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*]"
_REACH_S = 5.0
_SAID_MAX = 5
"""Lines of Spark that are shown with the error if it could not be started."""

_TOLD_BY_US = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.api.python",
    "org.apache.spark.sql.execution.datasources.v2",
)


def properties_for(
    name: str, master: str, directories: Sequence[str], conf: Mapping[str, str], *, verbose: bool
) -> dict[str, str]:
    """Spark's properties: ours, then what the user has set, which always wins."""
    properties = {
        "spark.app.name": f"penstock {name}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        EXCLUSIVE: "true",
        "spark.log.level": "WARN" if verbose else "ERROR",
        "spark.executorEnv.PYTHONPATH": _python_path(directories),
    }
    if is_on_this_host(master):
        # The name of the host may lead nowhere, and nobody else has to reach the driver.
        properties |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return properties | dict(conf) | {"spark.master": master}


def make_session(
    properties: Mapping[str, str], directories: Sequence[str], file: str | None, *, verbose: bool
) -> SparkSession:
    """Start Spark. Raises `PenstockError` with the usual reasons where that fails."""
    check_master(properties["spark.master"])
    run_workers_with_this_python()
    # Local workers are children of Spark's process, and have its environment.
    os.environ["PYTHONPATH"] = _python_path(directories)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in properties.items():
        builder = builder.config(key, value)
    relay = Relay()
    try:
        with relay.catching():
            session = builder.getOrCreate()
        if file is not None and not is_on_this_host(properties["spark.master"]):
            session.sparkContext.addPyFile(file)
    except Exception as error:
        said = relay.tail(_SAID_MAX)
        relay.release(show_held=verbose)
        raise PenstockError(
            f"Spark could not be started with master {properties['spark.master']}. Penstock needs "
            f"Java 17 or newer (JAVA_HOME is {os.environ.get('JAVA_HOME', 'not set')}), and a master "
            "that can be reached. --verbose shows all output of Spark, which ended with: "
            f"{error}\n{said}"
        ) from error
    if not verbose:
        _quieten(session)
    relay.release(show_held=verbose)
    return session


def run_workers_with_this_python() -> None:
    """Unless another interpreter was chosen. Before anything of PySpark starts."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def check_master(master: str) -> None:
    """Raise `PenstockError` if nobody listens where a standalone master should be: Spark itself tries for a minute."""
    if not master.startswith("spark://"):
        return
    refusals = []
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_REACH_S):
                return
        except (OSError, ValueError) as error:
            refusals.append(f"{place}: {error}")
    raise PenstockError(
        f"the Spark master {master} cannot be reached ({'; '.join(refusals)}): start it, or name another one with "
        f"--master. The address is the one at the top of the master's own page, such as spark://host:7077"
    )


def _quieten(session: SparkSession) -> None:
    """No log of tasks that failed: the pipeline reports each failure itself, in two lines instead of fifty."""
    log4j = session.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for logger in _TOLD_BY_US:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)


def _python_path(directories: Sequence[str]) -> str:
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([*directories, *(entry for entry in known if entry not in directories)])
