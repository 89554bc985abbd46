"""Jobs are marked where every thread sees the mark. That Spark acts on it is shown in tests/spark/test_failures.py."""

from __future__ import annotations

from typing import cast

from pyspark.sql import SparkSession

from penstock.spark.cancellation import cancel_jobs, tag_jobs


class Marks:
    """A context and a session of Spark Connect in one: keeps what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> object:
        if name == "_sc":
            raise AttributeError(name)
        return lambda tag: self.calls.append((name, tag))


class Classic:
    def __init__(self) -> None:
        self._sc = Marks()


def test_the_tags_of_a_context_are_used_where_there_is_one() -> None:
    session = Classic()
    tag_jobs(cast(SparkSession, session), "a")
    cancel_jobs(cast(SparkSession, session), "a")
    assert session._sc.calls == [("addJobTag", "a"), ("cancelJobsWithTag", "a")]


def test_with_spark_connect_those_of_the_session_are() -> None:
    session = Marks()
    tag_jobs(cast(SparkSession, session), "a")
    cancel_jobs(cast(SparkSession, session), "a")
    assert session.calls == [("addTag", "a"), ("interruptTag", "a")]
