"""What Spark says when a job fails, in the few lines that people need.

Spark wraps the reason into stack traces of its scheduler and of its executors. The whole text stays the cause of the
error that is made here, and is logged at the level DEBUG.
"""

from __future__ import annotations

import re

from penstock.errors import PenstockError, WorkersLost
from penstock.spark.environment import environment_failure

_LINES_MAX = 30
_NOISE = re.compile(r"^\s+at |^\s*\.\.\. \d+ more|^\s*$|^Driver stacktrace:|^An error occurred while calling ")
_JAVA_CLASS = re.compile(r"^:?\s*(?:Caused by: )?(?:[\w$]+\.){2,}[\w$]+(?:Exception|Error): ")
_CRASHED = "Python worker exited unexpectedly"
_EXECUTOR = re.compile(r"ExecutorLostFailure \((executor \S+) [^)]*\)(?: Reason: ([^\n]*))?")


def workers_lost(error: Exception, master: str = "local") -> PenstockError:
    """The reason in words, with what Spark said as its cause."""
    if isinstance(error, PenstockError):
        return error
    text = str(error)
    failure: PenstockError
    if (unfit := environment_failure(text, master)) is not None:
        failure = unfit
    elif found := _EXECUTOR.search(text):
        reason = f": {found.group(2).strip()}" if found.group(2) else ""
        failure = WorkersLost(f"{found.group(1)} of Spark was lost, and the workers on it with it{reason}")
    elif _CRASHED in text and "Traceback (most recent call last)" not in text:
        failure = WorkersLost(
            "the process of a worker is gone: it was killed, ran out of memory, or crashed in native code. "
            "The log of its executor may say more"
        )
    else:
        lines = [_JAVA_CLASS.sub("", line) for line in text.splitlines() if not _NOISE.search(line)]
        failure = WorkersLost("\n".join(dict.fromkeys(lines[:_LINES_MAX])) or type(error).__name__)
    failure.__cause__ = error
    return failure
