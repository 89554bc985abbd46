"""`python -m tests.mutants`: one line for each mutant, saying who caught it, and a summary."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter

from tests.mutants.catalogue import MUTANTS
from tests.mutants.harness import (
    REPOSITORY,
    SEEDS,
    BaselineFailed,
    BySimulator,
    ByTest,
    Harness,
    Survived,
    copy_of,
)
from tests.mutants.mutant import Mutant


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mutants whose name contains these words")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds each is tried with")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried at a time")
    parser.add_argument("--list", action="store_true", help="show the catalogue and run nothing")
    arguments = parser.parse_args()
    words = " ".join(arguments.only or ()).lower()
    chosen = [mutant for mutant in MUTANTS if words in mutant.name.lower()]
    if not chosen:
        parser.error(f"no mutant has '{words}' in its name")
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.origin} {mutant.file}: {mutant.name}. {mutant.why}")
        return 0
    # An exception, so that on the way out everything is cleaned up.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with copy_of(REPOSITORY) as pristine:
        try:
            return run(Harness(pristine, arguments.seeds, arguments.jobs), chosen)
        except BaselineFailed as failure:
            print(f"refused to go on: {failure}")
            return 2


def run(harness: Harness, mutants: list[Mutant]) -> int:
    """Judge and report; 0 only if each one is caught."""
    started = time.monotonic()
    seeds = harness.check_baseline(mutants)
    print(f"the unchanged tree passes {seeds} seeds ({time.monotonic() - started:.0f} s)", flush=True)
    verdicts: Counter[type] = Counter()
    for mutant, verdict in harness.judge_all(mutants):
        verdicts[type(verdict)] += 1
        print(f"{mutant.origin} {mutant.name}: {verdict}", flush=True)
    simulated, tested, survived = verdicts[BySimulator], verdicts[ByTest], verdicts[Survived]
    stale = verdicts.total() - simulated - tested - survived
    print(
        f"{len(mutants)} mutants, {simulated + tested} caught ({simulated} by the simulator, {tested} by unit tests), "
        f"{survived} survived" + (f", {stale} not judged" if stale else "") + f"; {time.monotonic() - started:.0f} s"
    )
    return 1 if survived or stale else 0


if __name__ == "__main__":
    sys.exit(main())
