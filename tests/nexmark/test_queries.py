"""Every question of Nexmark is answered as DuckDB answers it, with workers that are killed on the way."""

from __future__ import annotations

import pytest

from examples.nexmark.events import Events
from examples.nexmark.queries import QUERIES
from penstock import Pipeline
from penstock.testing import CollectSink, Result, Schedule, run
from penstock.worker.settings import WorkerSettings
from tests.nexmark.judge import differences, right_answer
from tests.nexmark.questions import QUESTIONS


def asked(name: str) -> tuple[Pipeline, CollectSink]:
    pipeline, output = Pipeline(f"nexmark {name}"), CollectSink()
    QUERIES[name](Events(pipeline, QUESTIONS[name].events, shape=QUESTIONS[name].shape)).sink(output)
    return pipeline, output


def answered(pipeline: Pipeline) -> Result:
    """Run it in small steps, so that there are checkpoints and crashes in between."""
    steps = WorkerSettings(source_rows_max=1_000, driver_silence_ms=3_600_000)
    return run(pipeline, parallelism=2, crash_after_checkpoints=[1, 2], worker_settings=steps, schedule=Schedule(17))


def test_every_question_has_a_query_and_a_judge() -> None:
    assert list(QUERIES) == list(QUESTIONS) == [f"q{number}" for number in range(24)]


@pytest.mark.parametrize("name", QUESTIONS)
def test_duckdb_has_an_answer_to_every_question(name: str) -> None:
    assert right_answer(QUESTIONS[name]).num_rows > 0


@pytest.mark.parametrize("name", QUERIES)
def test_the_answer_is_that_of_duckdb_although_workers_are_killed(name: str) -> None:
    pipeline, output = asked(name)
    result = answered(pipeline)
    assert (result.restarts, result.rows_late) == (2, 0)
    assert differences(QUESTIONS[name], output.batches()) == []


def test_the_judge_sees_a_row_too_few_and_one_too_many() -> None:
    pipeline, output = asked("q2")
    run(pipeline)
    (batch, *_) = batches = output.batches()
    short = differences(QUESTIONS["q2"], [batch.slice(1), *batches[1:]])
    long = differences(QUESTIONS["q2"], [*batches, batch.slice(0, 1)])
    assert [text.split(":")[0] for text in (*short, *long)] == ["missing, 1 times", "not right, 1 times"]
