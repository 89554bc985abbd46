"""The questions of Nexmark as cases of a benchmark: who answers them, and what they are held to."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import runner
from benchmarks.results import OURS, Bar, Case, Contender, Kind
from examples.nexmark.queries import QUERIES

EVENTS = 5_120_000
"""A multiple of the events of a block for each subtask, so that Flink deals out the same blocks."""
PARALLELISM = 2
LIGHT = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")
"""Questions without state, which are answered in a second or two. They get four times as many events: otherwise half of
that time would be what a job costs at its end."""
PEERS = str(runner.ROOT / "benchmarks" / "peers" / "run")
FLINK_SQL = runner.ROOT / "benchmarks" / "peers" / "flink" / "nexmark"
FLINK_QUERIES = tuple(name for name in QUERIES if (FLINK_SQL / f"{name}.sql").exists())
"""Flink SQL has no answer to q6."""
FLINK = "Flink SQL"
SPARK_SQL = runner.ROOT / "benchmarks" / "peers" / "spark" / "nexmark"
SPARK_QUERIES = tuple(name for name in QUERIES if (SPARK_SQL / f"{name}.sql").exists())
"""Spark Structured Streaming has no distinct counts and no ranks on a stream, nor an aggregate behind a join."""
KEPT = Path(__file__).with_name("results.json")

APPENDED = ("q0", "q1", "q2", "q3", "q5", "q7", "q8", "q10", "q11", "q13", "q14", "q20", "q21", "q22", "q23")
"""Questions whose rows are never taken back: their number does not depend on the engine."""

_SHOWN = (("rate", "M events/s"), ("work_rate", "M events/s"), ("state", "MB"), ("worker", "MB"), ("out", "rows"))


def cases(events: int = EVENTS) -> list[Case]:
    """One case for each question that can be asked."""
    return [_case(name, events) for name in QUERIES]


def _case(name: str, events: int) -> Case:
    events *= 4 if name in LIGHT else 1
    ours = (sys.executable, "-m", "benchmarks.nexmark.ours", name, str(events), str(PARALLELISM))
    contenders = [Contender(OURS, ours)]
    if name in FLINK_QUERIES:
        theirs = ("bash", PEERS, "flink-nexmark", name, str(events), str(PARALLELISM), "FILES")
        contenders.append(Contender(FLINK, theirs))
    if name in SPARK_QUERIES:
        theirs = (sys.executable, "-m", "benchmarks.nexmark.spark", name, str(events // 4), str(PARALLELISM))
        contenders.append(Contender("Spark streaming", theirs))
    bars = (Bar(Kind.RATIO, "rate", 1.0, 3.0),)
    return Case("nexmark", f"{name}: {QUERIES[name].__doc__} {events:,} events.", tuple(contenders), bars, _SHOWN)


def name_of(case: Case) -> str:
    return case.name.partition(":")[0]
