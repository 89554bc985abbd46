"""`python -m benchmarks [--quick] [--only NAME] [--runs N] [--write]`: Penstock and its peers in turns, and one table.

Ratios are of medians, taken in one run on one machine; the spread says how far to trust them. Results are kept in
benchmarks/results.json, from which `--write` makes the tables of docs/internals/BENCHMARKS.md. A quick run is not kept.
"""

from __future__ import annotations

import argparse
import os
import sys

from benchmarks import document, runner
from benchmarks.catalogue import every_case
from benchmarks.results import Case, Runs, details, summary
from benchmarks.work import ROWS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run each of the most telling cases; nothing is kept")
    parser.add_argument("--only", action="append", metavar="NAME", help="benchmarks whose name or case has this in it")
    parser.add_argument("--runs", type=int, default=3, help="runs of each contender (default: 3)")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the throughput benchmarks")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument(
        "--write", action="store_true", help="write what is kept into docs/internals/BENCHMARKS.md; run nothing"
    )
    return parser.parse_args()


def write() -> None:
    results = runner.kept_runs(every_case(ROWS))
    text = document.DOCUMENT.read_text(encoding="utf-8")
    document.DOCUMENT.write_text(document.updated(text, runner.load()["machine"], results), encoding="utf-8")


def chosen(cases: list[Case], only: list[str] | None) -> list[Case]:
    return [case for case in cases if not only or any(word in f"{case.benchmark}: {case.name}" for word in only)]


def main() -> int:
    given = arguments()
    os.chdir(runner.ROOT)
    if given.write:
        write()
        return 0
    cases = chosen(every_case(given.rows, given.quick), given.only)
    if given.list or not cases:
        print("\n".join(f"{case.benchmark}: {case.name}" for case in cases) or "there is no such benchmark: see --list")
        return 0 if cases else 2
    results: list[tuple[Case, Runs]] = []
    for case in cases:
        results.append((case, runner.run_case(case, 1 if given.quick else given.runs)))
        if not given.quick and given.rows == ROWS:
            runner.keep(results[-1:])
    print("\n".join(["", *details(results), *summary(results)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
