"""`python -m tests.simulation --seeds N`: one summary line, and for a violation the command that replays it."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.simulation.matrix import matrix
from tests.simulation.run import Summary, run_seed, run_seeds

_TELL_EVERY_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--only", help="one topology, or one with a rescale: keyed_broadcast_7_2")
    parser.add_argument("--seed", type=int, help="replay one seed and tell its story")
    parser.add_argument(
        "--matrix", action="store_true", help="every pair of the rescale matrix, with this many seeds each"
    )
    parser.add_argument("--jobs", type=int, help="how many processes; default all cores")
    arguments = parser.parse_args()
    # Everything fails here, on purpose; what matters is in the story.
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        return replay(arguments.seed, arguments.only)
    summary = Summary()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    names = list(matrix()) if arguments.matrix else [arguments.only]
    runs = [(seed, name) for name in names for seed in seeds]
    told_at = time.monotonic()
    for only, result in run_seeds(runs, arguments.jobs):
        summary.add(result)
        if time.monotonic() > told_at + _TELL_EVERY_S:
            told_at = time.monotonic()
            print(f"  {summary.seeds} of {len(runs)}, violations {len(summary.failed)}", file=sys.stderr, flush=True)
        if result.violations:
            print(f"VIOLATION {result.scenario}\n  {result.violations[0]}")
            print(f"  replay with: make simulate SEED={result.seed}" + (f" ONLY={only}" if only else ""), flush=True)
    print(f"rescale matrix of {len(names)}: {summary}" if arguments.matrix else summary)
    return 1 if summary.failed else 0


def replay(seed: int, only: str | None) -> int:
    result = run_seed(seed, only, is_verbose=True)
    print("\n".join(result.story))
    print(result.scenario)
    for violation in result.violations:
        print(f"VIOLATION {violation}")
    print(f"{result.completed} checkpoints, {result.unaligned} unaligned, {result.inflight_bytes} in-flight bytes")
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
