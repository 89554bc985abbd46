"""`python -m benchmarks [--quick]`: Penstock and its peers in turns, so that noise hits both, and one table.

Ratios are of medians, taken in one run on one machine; the spread says how far to trust them.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_RATE = re.compile(r"([\d.]+)M rows/s")


@dataclass(slots=True)
class Contender:
    """One program that does the work, and what it came to."""

    name: str
    command: list[str]
    rates: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def run(self) -> None:
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=900, check=False)
        match = _RATE.search(done.stdout)
        if done.returncode or match is None:
            raise SystemExit(f"{self.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        self.rates.append(float(match.group(1)))
        self.lines.append(next(line for line in done.stdout.splitlines() if "rows/s" in line))
        print(f"  {self.lines[-1]}", flush=True)

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


def contenders(kind: str, rows: int, with_spark: bool) -> list[Contender]:
    peers = str(_HERE / "peers" / "run")
    found = [
        Contender("Penstock", [sys.executable, "-m", "benchmarks.penstock_keyed", "2", str(rows), kind]),
        Contender("Flink (Java)", ["bash", peers, "flink-keyed", "2", str(rows), kind]),
    ]
    if with_spark:
        found.append(Contender("Spark streaming", ["bash", peers, "spark-keyed", "2", str(rows), kind]))
    return found


def measure(kind: str, rows: int, runs: int, with_spark: bool) -> list[Contender]:
    print(f"{kind}: {rows:,} rows, parallelism 2, checkpoints every second, {runs} runs in turns", flush=True)
    found = contenders(kind, rows, with_spark)
    for _ in range(runs):
        for contender in found:
            contender.run()
    return found


def table(results: dict[str, list[Contender]]) -> str:
    lines = ["| work | contender | M rows/s (median) | spread | Penstock is |", "|---|---|---|---|---|"]
    for kind, found in results.items():
        ours = found[0].median
        for each in found:
            spread = f"{min(each.rates):.2f} … {max(each.rates):.2f}"
            ratio = "" if each is found[0] else f"{ours / each.median:.1f} ×"
            lines.append(f"| {kind} | {each.name} | {each.median:.2f} | {spread} | {ratio} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of each, without Spark streaming")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["sum", "map"])
    arguments = parser.parse_args()
    runs = 1 if arguments.quick else arguments.runs
    os.chdir(_HERE.parent)
    kinds = [arguments.only] if arguments.only else ["sum"] if arguments.quick else ["sum", "map"]
    results = {kind: measure(kind, arguments.rows, runs, not arguments.quick) for kind in kinds}
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
