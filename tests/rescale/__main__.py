"""`python -m tests.rescale --runs N`: rescale real pipelines on Spark, again and again, killed while they recover.

Every pair of parallelisms `N` times; one line for each pair, and an exit code that says whether anything was lost,
came twice or out of order.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.rescale.play import PAIRS, Outcome, play
from tests.spark.conftest import make_session


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rescale", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="how often each pair is run")
    parser.add_argument("--only", help="one pair: keyed_broadcast_7_2")
    parser.add_argument("--seed", type=int, default=None, help="what is drawn; when things happen is up to the machine")
    arguments = parser.parse_args()
    pairs = [pair for pair in PAIRS if arguments.only in (None, "{}_{}_{}".format(*pair))]
    if not pairs:
        parser.error(f"there is no pair {arguments.only}: " + ", ".join("{}_{}_{}".format(*pair) for pair in PAIRS))
    # Everything fails here, on purpose.
    logging.disable(logging.CRITICAL)
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 30)
    rng = random.Random(seed)
    print(f"rescale seed {seed}: {arguments.runs} runs of each pair", flush=True)
    spark = make_session("local[2]", log_level="OFF")
    wrong = 0
    for name, old, new in pairs:
        began, outcomes = time.monotonic(), []
        for _ in range(arguments.runs):
            with tempfile.TemporaryDirectory(prefix="penstock-rescale-") as directory:
                outcomes.append(play(spark, name, old, new, Path(directory), rng))
                if not outcomes[-1].is_flawless:
                    print(f"  {name} {old}→{new}: {outcomes[-1].verdict}", flush=True)
        wrong += sum(not outcome.is_flawless for outcome in outcomes)
        print(f"{name} {old}→{new}: {summary(outcomes)}; {time.monotonic() - began:.0f} s", flush=True)
    spark.stop()
    return 1 if wrong else 0


def summary(outcomes: list[Outcome]) -> str:
    lost, duplicated, other = (
        sum(_count(outcome.verdict[what]) for outcome in outcomes) for what in ("lost", "duplicated", "violations")
    )
    restored = sum(outcome.inflight_bytes > 0 for outcome in outcomes)
    return (
        f"runs {len(outcomes)}, kills {sum(each.kills for each in outcomes)}, checkpoints "
        f"{sum(each.checkpoints for each in outcomes)} ({sum(each.checkpoints_while_recovering for each in outcomes)} "
        f"seen while recovering), in-flight data restored in {restored} runs, "
        f"lost {lost}, duplicated {duplicated}, other violations {other}"
    )


def _count(value: object) -> int:
    return len(value) if isinstance(value, list) else int(str(value))


if __name__ == "__main__":
    sys.exit(main())
