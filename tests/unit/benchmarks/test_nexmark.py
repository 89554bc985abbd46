"""The cases of Nexmark: every question that can be asked, the same events for Flink, and counts that must agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.nexmark import __main__ as nexmark
from benchmarks.nexmark.catalogue import EVENTS, FLINK_QUERIES, FLINK_SQL, PARALLELISM, SPARK_SQL, cases, name_of
from benchmarks.results import OURS, Runs
from examples.nexmark.generator import COLUMNS, GROUP
from examples.nexmark.queries import QUERIES


def test_every_question_that_can_be_asked_is_a_case_and_flink_answers_all_but_one() -> None:
    assert [name_of(case) for case in cases()] == list(QUERIES)
    assert set(QUERIES) - set(FLINK_QUERIES) == {"q6"}


def test_the_usual_number_of_events_is_dealt_out_in_whole_blocks() -> None:
    assert EVENTS % (PARALLELISM * 1024 * GROUP) == 0


@pytest.mark.parametrize(
    "path", [*FLINK_SQL.glob("*.sql"), *SPARK_SQL.glob("*.sql")], ids=lambda path: f"{path.parts[-3]}-{path.stem}"
)
def test_peers_read_columns_that_there_are(path: Path) -> None:
    first = path.read_text("utf-8").splitlines()[0]
    tables = re.findall(r"(\w+) \(([^)]*)\)", first.removeprefix("-- reads "))
    assert tables
    for kind, columns in tables:
        assert set(columns.split(", ")) <= set(COLUMNS[kind])


def runs(ours: int, theirs: int | None) -> Runs:
    other = {} if theirs is None else {"out": float(theirs)}
    return Runs(figures={OURS: [{"rate": 6.0, "out": float(ours)}], "Flink SQL": [{"rate": 2.0, **other}]})


def test_answers_of_different_sizes_are_an_error_where_rows_are_never_taken_back() -> None:
    case = cases()[0]
    nexmark.check_counts(case, runs(10, 10))
    nexmark.check_counts(case, runs(10, None))
    with pytest.raises(SystemExit, match="differ in their number of rows"):
        nexmark.check_counts(case, runs(10, 11))


def test_all_questions_together_are_judged_by_their_geometric_mean() -> None:
    case = cases()[0]
    peers = {"Flink SQL": [{"rate": 1.0}], "Spark streaming": [{"rate": 100.0}]}
    results = [(case, Runs(figures={OURS: [{"rate": rate}], **peers})) for rate in (2.0, 8.0)]
    assert nexmark.geometric_mean(results).startswith("Geometric mean over 2 questions: 4.00 × the rate of Flink SQL")
    assert "the least is 2.00 ×" in nexmark.geometric_mean(results)
    assert nexmark.geometric_mean([]) == "There is no peer to compare with."
