"""Every benchmark: its cases, who takes part, and what they are held to. The runner has no other list."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.results import OURS, Bar, Case, Contender, Kind

_PEERS = str(Path(__file__).resolve().parent / "peers" / "run")

_THROUGHPUT = (
    ("rate", "M rows/s"),
    ("work_rate", "M rows/s"),
    ("tail", "s"),
    ("start", "s"),
    ("worker", "MB"),
)
_CHECKPOINTS = (
    ("ops", "1/s"),
    ("p50", "ms"),
    ("p99", "ms"),
    ("async", "ms"),
    ("inflight", "MB"),
)


def _ours(module: str, *arguments: object, name: str = OURS) -> Contender:
    return Contender(name, (sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)))


def _peer(name: str, *arguments: object, runs_max: int | None = None) -> Contender:
    return Contender(name, ("bash", _PEERS, *map(str, arguments)), runs_max)


def throughput(rows: int, quick: bool) -> list[Case]:
    marks = {"sum": ("keyed sum", 5.0, 10.0), "window": ("windowed sum", 5.0, 10.0), "map": ("stateless map", 1.5, 3.0)}
    cases = []
    for kind, (name, bar, goal) in marks.items():
        if quick and kind == "map":
            continue
        contenders = [
            _ours("throughput", kind, 2, rows),
            _peer("Flink", "flink-keyed", 2, rows, kind),
        ]
        if not quick:
            contenders.append(_peer("Spark streaming", "spark-keyed", 2, rows, kind, runs_max=1))
        if not quick and kind == "sum":
            contenders.append(_peer("Bytewax", "bytewax-keyed", 2, rows // 20, runs_max=1))
            contenders.append(_peer("Pathway", "pathway-keyed", 2, rows // 10, runs_max=1))
        bars = Bar(Kind.RATIO, "rate", bar, goal), Bar(Kind.RATIO, "work_rate")
        cases.append(Case(name, f"{rows:,} rows, parallelism 2", tuple(contenders), bars, _THROUGHPUT))
    return cases


def backpressure(quick: bool) -> list[Case]:
    cases = []
    seconds = 10 if quick else 15
    for mode, theirs in (("timeout", "UNALIGNED_1"), ("unaligned", "UNALIGNED"), ("aligned", "ALIGNED")):
        for parallelism in (1, 2):
            if quick and (mode, parallelism) != ("timeout", 2):
                continue
            contenders = (
                _ours("backpressure", mode, parallelism, seconds),
                _peer("Flink", "flink-checkpoints", theirs, parallelism, seconds, "FILES", 200_000),
            )
            bars = Bar(Kind.RATIO, "ops", 2.0, 5.0), Bar(Kind.INVERSE, "p99", 1.0)
            title = "alignment timeout 1 ms" if mode == "timeout" else mode
            cases.append(
                Case(
                    "checkpoints under backpressure",
                    f"{title}, parallelism {parallelism}",
                    contenders,
                    bars,
                    _CHECKPOINTS,
                )
            )
    return cases


def every_case(rows: int, quick: bool = False) -> list[Case]:
    return [*throughput(rows, quick), *backpressure(quick)]
