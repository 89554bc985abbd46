"""The table of the benchmarks, from results that are made up; and every benchmark's parts that run without Spark."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest

from benchmarks import backpressure, barrier_check, document, latency, runner, state_snapshot, work
from benchmarks.__main__ import chosen
from benchmarks.catalogue import every_case
from benchmarks.results import OURS, Bar, Case, Contender, Kind, NotVerified, Runs, details, number, parse, summary
from penstock import Pipeline
from penstock.testing import run

CONTENDERS = tuple(Contender(name, ("true",)) for name in (OURS, "Slow", "Quick"))


def made_up(bar: Bar, **rates: list[float]) -> tuple[Case, Runs]:
    case = Case("made up", "a case", CONTENDERS, (bar,), (("rate", "M rows/s"),))
    figures = {name: [{"rate": rate} for rate in each] for name, each in rates.items()}
    return case, Runs(figures, busy=[0.1, 0.3], cores=2, date="2026-01-02")


# --- judging ---


def test_a_line_of_figures_is_read_whatever_units_it_has() -> None:
    line = "penstock sum p=2 rate=2.847M/s tail=-0.5s p99=nan bytes=28.0/group worker=218MB verified"
    assert parse(line) == pytest.approx(
        {"p": 2, "rate": 2.847, "tail": -0.5, "p99": math.nan, "bytes": 28, "worker": 218}, nan_ok=True
    )


@pytest.mark.parametrize("line", ["", "rate=1", "rate=1 WRONG: 3 rows", "rate=1 WRONG, though it says verified"])
def test_a_line_without_a_checked_answer_is_a_failure(line: str) -> None:
    with pytest.raises(NotVerified):
        parse(line)


def test_the_ratio_is_of_medians_and_to_the_best_peer() -> None:
    case, runs = made_up(Bar(Kind.RATIO, "rate", 5, 10), Penstock=[9, 12, 30], Slow=[1, 1, 1], Quick=[2, 1, 9])
    assert case.bars[0].of(runs.medians) == 6.0
    assert (
        summary([(case, runs)])[-1]
        == "| made up | a case | rate | 12.0 | 2.00 (Quick) | 6.00 × | ≥ 5.00 × | ≥ 10.0 × | bar reached |"
    )


@pytest.mark.parametrize(
    ("bar", "ours", "theirs", "value", "verdict"),
    [
        (Bar(Kind.RATIO, "rate", 5, 10), 10, 1, 10, "goal reached"),
        (Bar(Kind.RATIO, "rate", 5, 10), 3, 1, 3, "**below the bar**"),
        (Bar(Kind.INVERSE, "rate", 1), 2, 1, 0.5, "**below the bar**"),
        (Bar(Kind.INVERSE, "rate", 1), 1, 2, 2, "bar reached"),
        (Bar(Kind.FIGURE, "rate", 7, 1), 8, 1, 8, "**below the bar**"),
        (Bar(Kind.FIGURE, "rate", None, 1), 2, 1, 2, "below the goal"),
        (Bar(Kind.RATIO, "rate"), 2, 1, 2, ""),
    ],
)
def test_a_figure_is_judged_by_its_kind(bar: Bar, ours: float, theirs: float, value: float, verdict: str) -> None:
    _, runs = made_up(bar, Penstock=[ours], Quick=[theirs])
    assert bar.of(runs.medians) == pytest.approx(value)
    assert bar.verdict(bar.of(runs.medians)) == verdict


def test_without_a_peer_nothing_is_judged() -> None:
    bar = Bar(Kind.RATIO, "rate", 5, 10)
    _, runs = made_up(bar, Penstock=[10])
    assert bar.verdict(bar.of(runs.medians)) == "not measured"
    assert bar.of({}) is None


def test_the_details_show_losses_spread_what_else_was_running_and_who_is_missing() -> None:
    case, runs = made_up(Bar(Kind.RATIO, "rate", 5), Penstock=[1, 2, 3], Slow=[4])
    runs.missing["Quick"] = "there is no JDK here"
    text = "\n".join(details([(case, runs)]))
    assert "| a case | Penstock | 3 | 2.00 (1.00 … 3.00) |" in text
    assert "| a case | Slow | 1 | 4.00 |" in text
    assert "Measured 2026-01-02; at most 0.3 cores were in use before a run." in text
    assert "busy with other work" not in text
    assert "- Quick is missing: there is no JDK here" in text


def test_figures_that_should_not_be_believed_say_so() -> None:
    case, runs = made_up(Bar(Kind.RATIO, "rate", 5), Penstock=[1, 2, 3], Slow=[4])
    runs.cores = 2
    assert not any(line.startswith("- ") for line in details([(case, runs)]))
    runs.busy = [0.9]
    assert "- The machine was busy with other work: 0.9 of its 2 cores" in "\n".join(details([(case, runs)]))
    runs.figures[OURS].pop()
    assert "fewer than 3 runs" in "\n".join(details([(case, runs)]))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0262, "0.0262"),
        (0.00002, "0.0000"),
        (1.5, "1.50"),
        (12.345, "12.3"),
        (4321, "4,321"),
        (math.nan, "–"),
    ],
)
def test_three_digits_count(value: float, shown: str) -> None:
    assert number(value) == shown


# --- running and writing ---


def test_contenders_run_in_turns_and_one_that_is_missing_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "log"
    says = Contender(OURS, ("bash", "-c", f"echo ours >> {log}; echo 'x rate=2 verified'"))
    peer = Contender("Peer", ("bash", "-c", f"echo peer >> {log}; echo 'x rate=1 counted'"))
    gone = Contender("Gone", ("bash", "-c", f"echo gone >> {log}; echo 'no such peer' >&2; exit 3"))
    case = Case("made up", "a case", (says, peer, gone), (), ())
    runs = runner.run_case(case, 2)
    assert log.read_text().split() == ["ours", "peer", "gone", "ours", "peer"]
    assert runs.figures == {OURS: [{"rate": 2.0}, {"rate": 2.0}], "Peer": [{"rate": 1.0}, {"rate": 1.0}]}
    assert runs.missing == {"Gone": "no such peer"}
    runner.keep([(case, runs)], tmp_path / "kept.json")
    assert runner.kept_runs([case], tmp_path / "kept.json") == [(case, runs)]


@pytest.mark.parametrize("script", ["echo 'x rate=1'", "echo 'x rate=1 WRONG'", "echo 'x rate=1 verified'; exit 1"])
def test_a_wrong_answer_stops_the_benchmarks(script: str) -> None:
    case = Case("made up", "a case", (Contender(OURS, ("bash", "-c", script)),), (), ())
    with pytest.raises(SystemExit):
        runner.run_case(case, 1)


def test_the_page_is_made_from_the_results_that_are_kept() -> None:
    text = document.DOCUMENT.read_text(encoding="utf-8")
    results = runner.kept_runs(every_case(work.ROWS))
    assert document.updated(text, runner.load()["machine"], results) == text, "run python -m benchmarks --write"


def test_every_case_has_a_name_of_its_own_and_can_be_chosen() -> None:
    cases = every_case(work.ROWS)
    names = [f"{case.benchmark}: {case.name}" for case in cases]
    assert len(set(names)) == len(names)
    assert chosen(cases, ["keyed sum"]) and len(chosen(cases, ["latency", "recovery"])) == 5
    assert {case.benchmark for case in every_case(work.ROWS, quick=True)} <= {case.benchmark for case in cases}


# --- the benchmarks themselves, at a small size ---


@pytest.mark.parametrize("kind", ["sum", "window", "map"])
def test_the_throughput_pipelines_give_the_answer_that_is_expected(kind: str, tmp_path: Path) -> None:
    made, sink = work.pipeline(kind, 5_000, 2, str(tmp_path))
    run(made, parallelism=2)
    work.verify(kind, 5_000, sink.figures)
    assert len(list(tmp_path.glob("first-*"))) == 2


def test_a_wrong_answer_is_noticed() -> None:
    with pytest.raises(work.WrongAnswer):
        work.verify("sum", 1_000, work.expected_totals(999))


def test_the_backpressure_pipeline_counts_every_row_once() -> None:
    source_rows = backpressure.rows_of_a_kib(0, 100)
    assert source_rows.nbytes == 100 * backpressure.ROW_BYTES
    tally = backpressure.Spinning(1, 0)
    tally.take(source_rows)
    assert backpressure.verify(tally.figures(), 1) == 100
    tally.take(backpressure.rows_of_a_kib(101, 1))
    with pytest.raises(work.WrongAnswer):
        backpressure.verify(tally.figures(), 1)


def test_the_small_measurements_run_and_verify_themselves() -> None:
    assert parse(state_snapshot.direct(500, repeats=2))["groups"] == 500
    assert parse(barrier_check.run(64, repeats=100))["batch"] > -1e6


def test_latencies_are_counted_for_each_record() -> None:
    made = Pipeline("bench-latency")
    sink = latency.Checked(functools.partial(latency.Latencies, 0.0))
    source = latency.OpenLoop(2, 1_000, begins_at=0.0, seconds=1.0, wait_s=0.0)
    stream = made.source(source, name="source").key_by("k")
    stream.aggregate(rows="count", due=("last", "due"), name="sum").sink(sink, name="sink")
    run(made, parallelism=2)
    assert sink.figures["rows"] == 1_000
    assert latency.percentile_ms(sink.figures, 0.5) > 1_000  # they were due in 1970


def test_percentiles_come_from_the_histogram() -> None:
    figures = {"bucket 100": 98, "bucket 200": 1, "bucket 300": 1}
    assert latency.percentile_ms(figures, 0.5) == pytest.approx(1.02**101 / 1e3)
    assert latency.percentile_ms(figures, 0.99) == pytest.approx(1.02**201 / 1e3)
    assert latency.percentile_ms(figures, 1.0) == pytest.approx(1.02**301 / 1e3)
