"""`make fuzz`: many seeds, or one of them with its story. See docs/internals/FUZZ.md."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time

from tests.fuzz.run import Outcome, run_quietly, run_seed
from tests.fuzz.shrink import shrink

_TELL_EVERY_S = 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument(
        "--seed", type=int, help="replay one: print its pipeline and its story, and shrink it if it fails"
    )
    parser.add_argument("--no-shrink", action="store_true", help="do not look for a smaller variant")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    arguments = parser.parse_args()
    # Much fails here, on purpose; the story tells about it.
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        return replay(arguments.seed, not arguments.no_shrink)
    return many(range(arguments.first, arguments.first + arguments.seeds), arguments.jobs)


def many(seeds: range, jobs: int) -> int:
    failed: list[Outcome] = []
    checkpoints = restarts = rows = done = 0
    told_at = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for outcome in pool.imap_unordered(run_quietly, seeds, chunksize=4):
            done += 1
            checkpoints, restarts = checkpoints + outcome.checkpoints, restarts + outcome.restarts
            rows += outcome.rows
            if outcome.violations:
                failed.append(outcome)
                print(f"VIOLATION seed {outcome.case.seed}: {outcome.violations[0]}")
                print(f"  replay with: make fuzz SEED={outcome.case.seed}", flush=True)
            if time.monotonic() > told_at + _TELL_EVERY_S:
                told_at = time.monotonic()
                print(f"  {done} of {len(seeds)}, violations {len(failed)}", file=sys.stderr, flush=True)
    print(
        f"{done} seeds, {rows} records published, {checkpoints} checkpoints, {restarts} restarts, "
        f"{len(failed)} violations"
    )
    return 1 if failed else 0


def replay(seed: int, is_shrunk: bool) -> int:
    outcome = run_seed(seed)
    show(outcome)
    if outcome.violations and is_shrunk:
        smallest = shrink(outcome)
        if smallest.case != outcome.case:
            print("\n--- the smallest variant that was found ---\n")
            show(smallest)
    return 1 if outcome.violations else 0


def show(outcome: Outcome) -> None:
    print(outcome.case.text())
    print("\n".join(outcome.story))
    print(f"digest {outcome.digest}, {outcome.checkpoints} checkpoints, {outcome.restarts} restarts")
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")


if __name__ == "__main__":
    sys.exit(main())
