"""What is left of a failure of Spark: the reason, without the traces of its scheduler."""

from __future__ import annotations

from penstock.errors import FencedError
from penstock.spark.failures import workers_lost

KILLED = """An error occurred while calling o60.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier stage.
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'spark.…'.
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\t... 21 more
"""

LOST = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed, most recent
failure: ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:4560)
"""

RAISED = """An error occurred while calling o60.collectToPython.
: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "task.py", line 20, in work
    raise ValueError("no such file")
ValueError: no such file

\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:4560)
"""


def test_a_killed_worker_is_one_sentence() -> None:
    text = str(workers_lost(RuntimeError(KILLED)))
    assert text.startswith("the process of a worker is gone: it was killed")
    assert "\n" not in text


def test_a_lost_executor_is_named_with_its_reason() -> None:
    assert str(workers_lost(RuntimeError(LOST))) == (
        "executor 1 of Spark was lost, and the workers on it with it: Command exited with code 137"
    )


def test_an_exception_keeps_its_own_traceback_and_nothing_else() -> None:
    assert str(workers_lost(RuntimeError(RAISED))).splitlines() == [
        "Traceback (most recent call last):",
        '  File "task.py", line 20, in work',
        '    raise ValueError("no such file")',
        "ValueError: no such file",
    ]


def test_the_reason_begins_without_the_classes_of_java() -> None:
    barrier = "Job aborted due to stage failure: Could not recover from a failed barrier stage ResultStage 3."
    said = f"An error occurred while calling o47.save.\n: org.apache.spark.SparkException: {barrier}\n\tat o.x.Y(Z:1)\n"
    assert str(workers_lost(RuntimeError(said))) == barrier


def test_what_spark_said_is_not_lost() -> None:
    original = RuntimeError(KILLED)
    assert workers_lost(original).__cause__ is original


def test_our_own_errors_stay_what_they_are() -> None:
    error = FencedError("somebody else")
    assert workers_lost(error) is error


def test_a_failure_without_words_has_at_least_a_name() -> None:
    assert str(workers_lost(KeyError())) == "KeyError"
