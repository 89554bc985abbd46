"""A separate `TaskContext` for every call of a user's `write`, as on Spark.

Writers name what they write after `TaskContext.get().partitionId()` and `taskAttemptId()`. Spark has one context per
process, because there a process runs one task at a time. Here it runs many writes, at once and one after the other:
with one context for all of them they would write over each other's files.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from typing import Any

_here = threading.local()


@contextlib.contextmanager
def task_context(partition: int) -> Iterator[None]:
    """In this thread, `TaskContext.get()` is one with this partition and an attempt that never was before."""
    from pyspark import TaskContext

    _install(TaskContext)
    made = object.__new__(TaskContext)
    for name, value in {"stageId": 0, "attemptNumber": 0, "cpus": 1, "resources": {}, "localProperties": {}}.items():
        setattr(made, f"_{name}", value)
    made._partitionId = partition
    made._taskAttemptId = secrets.randbits(62)
    _here.context = made
    try:
        yield
    finally:
        del _here.context


class _OfThread:
    """Stands where PySpark keeps the context of the process, and looks for that of the thread first."""

    def __init__(self, of_process: Any) -> None:
        self._of_process = of_process

    def __get__(self, instance: object, owner: type) -> Any:
        return getattr(_here, "context", self._of_process)


def _install(kind: Any) -> None:
    """Again for every write: a Spark task that begins in this process puts its own context there."""
    found = vars(kind)["_taskContext"]
    if not isinstance(found, _OfThread):
        kind._taskContext = _OfThread(found)
