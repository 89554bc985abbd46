"""A slice of the random pipelines, for every change; `make fuzz SEEDS=2000` is for the big ones."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.fuzz import kinds
from tests.fuzz.case import draw
from tests.fuzz.run import Outcome, run_case, run_seed
from tests.fuzz.shrink import shrink

CHUNK = 5


@pytest.fixture(autouse=True)
def quiet() -> object:
    # Much fails here, on purpose, and every failure would be a warning.
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def told(outcome: Outcome) -> str:
    first = outcome.violations[0] if outcome.violations else "none"
    return f"replay with: make fuzz SEED={outcome.case.seed}\n{outcome.case.text()}\n{first}"


@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_no_seed_violates_anything(first: int) -> None:
    outcomes = [run_seed(seed) for seed in range(first, first + CHUNK)]
    failed = [outcome for outcome in outcomes if outcome.violations]
    assert not failed, "\n\n".join(map(told, failed))
    assert sum(outcome.checkpoints for outcome in outcomes) >= len(outcomes)


def test_a_seed_is_always_the_same_run() -> None:
    once, again = run_seed(5), run_seed(5)
    assert once.digest == again.digest
    assert len(once.story) > 2


def test_seeds_draw_everything_that_there_is_to_draw() -> None:
    cases = [draw(seed) for seed in range(1500)]
    steps = Counter(step.kind for case in cases for step in case.steps)
    assert min(steps.values()) >= 100, steps
    keys = Counter(text for case in cases for name, text in case.columns.items() if name.startswith("k"))
    assert set(keys) == {kind.text for kind in kinds.KEYS}
    exchanges = Counter(step.exchange for case in cases for step in case.steps)
    assert set(exchanges) == {None, "rebalance", "shuffle", "to_one", "rescale", "forward"}
    forms = Counter(step.options["as_"] for case in cases for step in case.steps if "as_" in step.options)
    assert set(forms) == {"arrow", "rows", "pandas"}
    faults = Counter(fault.kind for case in cases for fault in case.faults)
    assert set(faults) == {"raise", "store", "lost", "read", "commit", "die", "after"}
    endings = Counter((one.ending, two.parallelism != one.parallelism) for case in cases for one, two in _pairs(case))
    assert len(endings) == 6, endings
    unnamed = Counter(step.kind for case in cases for step in case.steps if step.name in case.unnamed)
    # Files are drawn last, and named.
    assert set(unnamed) == set(steps) - {"files"}
    refusing = [step for case in cases for step in case.steps if "on_error" in step.options]
    functions = {(kind, way) for kind in ("map", "filter", "flat_map", "map_async") for way in ("drop", "stream")}
    assert {(step.kind, step.options["on_error"]) for step in refusing} == functions | {
        ("files", "skip"),
        ("files", "dead_letter"),
    }
    assert sum(bool(case.unnamed) and case.inserted_in is not None for case in cases) >= 100


def _pairs(case: object) -> list[tuple[object, object]]:
    return list(zip(case.lives, case.lives[1:], strict=False))  # type: ignore[attr-defined]


def test_every_kind_of_value_is_compared_as_what_it_is() -> None:
    for kind in kinds.PAYLOADS:
        array = kinds.array_of(kind, [0, 1, 2, 1, None])
        plain = [kinds.frozen(value) for value in kinds.plain_values(array)]
        assert plain[1] == plain[3], kind.text
        if kind.type != pa.null():
            assert plain[0] != plain[1], kind.text
            assert plain[4] is None, kind.text


def test_a_failing_case_is_made_smaller() -> None:
    def broken(case: object) -> Outcome:
        # As if every pipeline with an aggregate lost something.
        is_bad = any(step.kind == "aggregate" for step in case.steps)  # type: ignore[attr-defined]
        return Outcome(case, ["sink lost 3 of 4 records"] if is_bad else [])  # type: ignore[arg-type]

    large = next(case for case in map(draw, range(100)) if broken(case).violations and len(case.steps) > 6)
    small = shrink(broken(large), run=broken).case
    assert [step.kind for step in small.steps] == ["source", "aggregate", "fuzz_sink"]
    assert len(small.lives) == 1
    assert set(small.rows.values()) == {1}
    assert not small.faults


def test_a_smaller_case_has_no_dead_letters_that_nobody_reads() -> None:
    def broken(case: object) -> Outcome:
        is_bad = any(step.options.get("on_error") for step in case.steps)  # type: ignore[attr-defined]
        return Outcome(case, ["sink lost 3 of 4 records"] if is_bad else [])  # type: ignore[arg-type]

    with_letters = (case for case in map(draw, range(150)) if any(step.kind == "dead_letters" for step in case.steps))
    for large in itertools.islice(with_letters, 4):
        small = shrink(broken(large), run=broken).case
        assert not any(step.kind == "dead_letters" for step in small.steps)
        assert {step.options.get("on_error") for step in small.steps} <= {None, "drop", "skip"}
        assert not run_case(replace(small, faults=(), lives=small.lives[-1:])).violations


def test_records_that_are_left_out_and_not_counted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [seed for seed in range(60) if any(step.options.get("on_error") == "drop" for step in draw(seed).steps)]
    monkeypatch.setattr("penstock.operators.failures.Failures.report", lambda *_: None)
    found = [violation for seed in seeds[:12] for violation in run_seed(seed).violations]
    assert any(violation.startswith("records left out were counted as") for violation in found)


def test_the_command_runs_seeds_in_processes_of_their_own() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seeds", "2", "--jobs", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("2 seeds, ")
