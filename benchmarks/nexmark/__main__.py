"""`python -m benchmarks.nexmark [--only q5] [--runs N] [--events N]`: Penstock and its peers in turns, and one table.

Results are kept in benchmarks/nexmark/results.json, and the tables of docs/nexmark.md are made of them. Runs with
another number of events than the usual one are not kept.
Where an answer is rows that are never taken back, Penstock and Flink must have the same number of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence

from benchmarks import document, runner
from benchmarks.nexmark.catalogue import APPENDED, EVENTS, FLINK, KEPT, cases, name_of
from benchmarks.results import OURS, Case, Runs, details, summary

DOCUMENT = runner.ROOT / "docs" / "nexmark.md"


def geometric_mean(results: Sequence[tuple[Case, Runs]]) -> str:
    """The bar of all questions together: at least 3 times the rate of Flink, and 10 times is the goal."""
    rates = [{name: figures["rate"] for name, figures in runs.medians.items()} for _, runs in results]
    ratios = [each[OURS] / each[FLINK] for each in rates if OURS in each and FLINK in each]
    if not ratios:
        return "There is no peer to compare with."
    mean, least = statistics.geometric_mean(ratios), min(ratios)
    return (
        f"Geometric mean over {len(ratios)} questions: {mean:.2f} × the rate of Flink SQL (bar 3 ×, goal 10 ×); "
        f"the least is {least:.2f} × (bar 1 ×, goal 3 ×)."
    )


def check_counts(case: Case, runs: Runs) -> None:
    """Raise `SystemExit` if the engines differ in the number of rows of an answer that only grows."""
    counts = {each: {figures["out"] for figures in found if "out" in figures} for each, found in runs.figures.items()}
    if name_of(case) in APPENDED and len(set().union(*counts.values())) > 1:
        raise SystemExit(f"{case.name}: the answers differ in their number of rows: {counts}")


def write(results: Sequence[tuple[Case, Runs]]) -> None:
    """Put the results into the page, between its marks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    made = document.updated(text, runner.load(KEPT)["machine"], results)
    before, begin, rest = made.partition(document.BEGIN)
    DOCUMENT.write_text(f"{before}{begin}\n\n{geometric_mean(results)}\n{rest}", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--only", action="append", metavar="QUERY", help="questions by name, such as q5")
    parser.add_argument("--runs", type=int, default=3, help="runs of each contender (default: 3)")
    parser.add_argument("--events", type=int, default=EVENTS, help=f"events of each run (default: {EVENTS:,})")
    parser.add_argument("--write", action="store_true", help="write what is kept into docs/nexmark.md; run nothing")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    os.chdir(runner.ROOT)
    if given.write:
        write(runner.kept_runs(cases(EVENTS), KEPT))
        return 0
    chosen = [case for case in cases(given.events) if not given.only or name_of(case) in given.only]
    results: list[tuple[Case, Runs]] = []
    for case in chosen:
        results.append((case, runner.run_case(case, given.runs)))
        check_counts(*results[-1])
        if given.events == EVENTS:
            runner.keep(results[-1:], KEPT)
    print("\n".join(["", *details(results), *summary(results), "", geometric_mean(results)]))
    if given.events == EVENTS:
        write(runner.kept_runs(cases(EVENTS), KEPT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
