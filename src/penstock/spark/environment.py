"""The Python of the workers: which one Spark starts, and whether it can run the pipeline.

The function that Spark ships to its tasks is pickled by value and refers to nothing of Penstock, so that it can be
loaded where Penstock is missing and say so. Everything else travels inside it as bytes, which are unpickled after
the versions were compared.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import WorkerEnvironment
from penstock.spark.sessions import context_of, is_on_this_host, is_plain_local
from penstock.version import UNKNOWN, __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "this Python cannot run the workers of a Penstock pipeline: "
"""By this the driver knows the error of a worker among the lines of Spark."""
_DEFAULT = "python3"
_MISSING = re.compile(r"No module named '?([\w.]+)'?")
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH[^\n]*")
_ours = threading.Lock()


def versions() -> dict[str, str]:
    """Versions that must be equal in driver and workers: of pyarrow the first number, all of Penstock."""
    import pyarrow

    return {"penstock": "" if __version__ == UNKNOWN else __version__, "pyarrow": pyarrow.__version__.split(".")[0]}


@contextlib.contextmanager
def workers_python(spark: SparkSession) -> Iterator[None]:
    """Functions that are handed to Spark in here run on the driver's interpreter, if nobody has chosen another.

    Only where the workers are on the driver's host: elsewhere there need not be one at the same path.
    """
    context = context_of(spark)
    is_chosen = "PYSPARK_PYTHON" in os.environ or bool(spark.conf.get("spark.pyspark.python", ""))
    if context is None or not sys.executable or is_chosen or not is_plain_local(spark):
        yield
        return
    with _ours:
        before, context.pythonExec = context.pythonExec, sys.executable
        try:
            yield
        finally:
            context.pythonExec = before


def entry(payload: bytes, driver: dict[str, str], mark: str = MARK) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for `mapInArrow`. `payload` is the pickled function that a worker then calls.

    The trap: nothing in here may refer to a name of this module.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pickle
        import sys

        for _ in batches:
            pass
        try:
            from penstock.spark.environment import versions
        except ImportError as error:
            raise ImportError(f"{mark}{sys.executable}: {error}") from error
        here = versions()
        for package, wanted in driver.items():
            if wanted and here.get(package) and here[package] != wanted:
                different = f"it has {package} {here[package]}, and the driver has {wanted}"
                raise ImportError(f"{mark}{sys.executable}: {different}")
        try:
            function = pickle.loads(payload)
        except ImportError as error:
            raise ImportError(f"{mark}{sys.executable}: {error}") from error
        function()
        # Not a single row: for the first one of a session, Spark would compile code, for half a second.
        yield from ()

    return run


def environment_failure(text: str, master: str) -> WorkerEnvironment | None:
    """The error for what Spark says of workers whose Python cannot run the pipeline; None if it says something else."""
    said = next((line.split(MARK, 1)[1].strip() for line in text.splitlines() if MARK in line), None)
    if said is None and (found := _OTHER_PYTHON.search(text)):
        said = found.group(0)
    if said is None and "ModuleNotFoundError" in text and (found := _MISSING.search(text)):
        said = f"No module named '{found.group(1)}'"
    if said is None:
        return None
    return WorkerEnvironment(f"the Python of the workers cannot run this pipeline: {said}. {_cure(said, master)}")


def _cure(said: str, master: str) -> str:
    found = _MISSING.search(said)
    module = found.group(1).split(".")[0] if found else ""
    if module and module not in ("penstock", "pyarrow", "pyspark", "zmq", "msgspec", "numpy", "pandas"):
        return (
            f"If '{module}' is a module of yours, the workers must find it: put its directory on PYTHONPATH before the "
            f"session starts, or ship it with spark.sparkContext.addPyFile; if it is a package, install it there"
        )
    if is_on_this_host(master):
        return f"Set PYSPARK_PYTHON={sys.executable or _DEFAULT} before the session starts, or install it there"
    return (
        "Install the same versions of Penstock and its dependencies on every executor, or ship an environment that has "
        "them, and name its interpreter with PYSPARK_PYTHON or spark.pyspark.python"
    )
