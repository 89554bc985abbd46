"""Every benchmark: its cases, who takes part, and what they are held to. The runner has no other list."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.results import OURS, Bar, Case, Contender, Kind

_PEERS = str(Path(__file__).resolve().parent / "peers" / "run")

_SNAPSHOT = "snapshot of keyed state"
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


def _ours(module: str, *arguments: object) -> Contender:
    return Contender(OURS, (sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)))


def _peer(name: str, *arguments: object) -> Contender:
    return Contender(name, ("bash", _PEERS, *map(str, arguments)))


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
            contenders.append(_peer("Spark streaming", "spark-keyed", 2, rows, kind))
        if not quick and kind == "sum":
            contenders.append(_peer("Bytewax", "bytewax-keyed", 2, rows // 20))
            contenders.append(_peer("Pathway", "pathway-keyed", 2, rows // 10))
        bars = Bar(Kind.RATIO, "rate", bar, goal), Bar(Kind.RATIO, "work_rate")
        cases.append(Case(name, f"{rows:,} rows, parallelism 2", tuple(contenders), bars, _THROUGHPUT))
    return cases


def user_code() -> list[Case]:
    """Functions that users write. Each contender gets as many rows as it can do in some ten seconds."""
    cases = []
    shown = (*_THROUGHPUT, ("p99", "ms"))

    def case(name: str, kind: str, keys: int, rows: int, peer: tuple[str, str, int], bar: float, goal: float) -> None:
        title, command, peer_rows = peer
        contenders = _ours("user_code", kind, keys, 2, rows), _peer(title, command, 2, peer_rows, kind, keys)
        detail = f"{name}, {keys:,} keys" if keys > 1 else name
        cases.append(Case("users' own Python", detail, contenders, (Bar(Kind.RATIO, "rate", bar, goal),), shown))

    spark, bytewax = ("Spark streaming", "spark-user-code"), ("Bytewax", "bytewax-user-code")
    flink = ("PyFlink", "flink-user-code")
    for keys in (1_000, 100_000):
        case("StatefulProcessor in pandas", "processor", keys, 2_000_000, (*spark, 400_000), 3.0, 10.0)
        case("StatefulProcessor in rows", "processor-rows", keys, 2_000_000, (*spark, 400_000), 3.0, 10.0)
        case("KeyedFunction in rows", "keyed", keys, 4_000_000, (*bytewax, 2_000_000), 2.0, 5.0)
        case("reduce in rows", "reduce", keys, 4_000_000, (*bytewax, 2_000_000), 2.0, 5.0)
        case("KeyedFunction in rows, beside PyFlink", "keyed", keys, 4_000_000, (*flink, 400_000), 3.0, 10.0)
    for kind, rows in (("map", 16_000_000), ("filter", 16_000_000), ("flat_map", 8_000_000)):
        case(f"{kind} in rows", kind, 1, rows, (*bytewax, 4_000_000), 2.0, 5.0)
    case("map in pandas", "map-pandas", 1, 20_000_000, (*spark, 8_000_000), 2.0, 5.0)
    return cases


def backed_up() -> list[Case]:
    """A checkpoint waits for one call of a function that is backed up, and for little else."""
    benchmark = "checkpoints of a backed-up function"
    shown = ("call", "ms"), ("p50", "ms"), ("p99", "ms"), ("beyond", "ms"), ("checkpoints", "")
    bars = (Bar(Kind.FIGURE, "beyond", 50.0, 10.0, "ms"),)
    return [
        Case(
            benchmark,
            f"{name}, 1,000 keys",
            (_ours("backed_up", kind, 1_000, 2, rows),),
            bars,
            shown,
        )
        for name, kind, rows in (
            ("StatefulProcessor in pandas", "processor", 3_000_000),
            ("StatefulProcessor in rows", "processor-rows", 6_000_000),
            ("KeyedFunction in rows", "keyed", 12_000_000),
        )
    ]


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


def kafka(rows: int) -> list[Case]:
    """Spark's sink is at least once, and is a peer all the same."""
    cases = []
    for format in ("json", "avro"):
        module, count = "benchmarks.kafka.keyed_sum", rows // 4
        contenders = tuple(
            Contender(title, (sys.executable, "-m", module, name, format, str(count)))
            for title, name in ((OURS, "penstock"), ("Flink", "flink"), ("Spark streaming (at least once)", "spark"))
        )
        bars = (Bar(Kind.RATIO, "rate", 1.5, 3.0),)
        detail = f"{count:,} messages of 100 bytes, {format}, exactly once, parallelism 2"
        cases.append(
            Case("Kafka to keyed sum to Kafka", detail, contenders, bars, (("rate", "M rows/s"), ("net", "s")))
        )
    return cases


def kafka_to_delta() -> list[Case]:
    """The rate is one that both keep up with."""
    rate, seconds, warm_up = 50_000, 20, 10
    contenders = tuple(
        Contender(
            title, (sys.executable, "-m", "benchmarks.kafka.delta_latency", name, *map(str, (rate, seconds, warm_up)))
        )
        for title, name in ((OURS, "penstock"), ("Spark streaming", "spark"))
    )
    bars = Bar(Kind.INVERSE, "p50", 3.0, 10.0), Bar(Kind.INVERSE, "p99", 3.0, 10.0)
    shown = (("p50", "ms"), ("p99", "ms"), ("p999", "ms"), ("versions", ""))
    detail = f"{rate:,} messages/s of 100 bytes, exactly once, parallelism 2"
    return [Case("Kafka to Delta", detail, contenders, bars, shown)]


def checkpoint_cost() -> list[Case]:
    bars = (Bar(Kind.FIGURE, "cost", 5.0, 1.0, "%"),)
    shown = ("cost", "%"), ("least", "%"), ("most", "%"), ("rate", "M rows/s"), ("p50", "ms")
    ours = (_ours("checkpoint_cost", 2, 30),)
    return [Case("cost of checkpointing", "a checkpoint every second against none, keyed sum", ours, bars, shown)]


def state_snapshot() -> list[Case]:
    cases = []
    direct = (("stall", "ms"), ("stall_max", "ms"), ("dearer", "ms"), ("encode", "ms"), ("bytes", "per group"))
    running = (("sync", "ms"), ("async", "ms"), ("durable", "ms"))
    for groups, bar in ((10_000, 7.0), (100_000, 93.0), (1_000_000, 1_100.0)):
        stall = (Bar(Kind.FIGURE, "stall", bar, 1.0, "ms"),)
        name = f"{groups:,} groups, the state alone"
        cases.append(Case(_SNAPSHOT, name, (_ours("state_snapshot", "direct", groups),), stall, direct))
        sync = (Bar(Kind.FIGURE, "sync", bar, 1.0, "ms"),)
        name = f"{groups:,} groups, in a pipeline"
        cases.append(Case(_SNAPSHOT, name, (_ours("state_snapshot", "pipeline", groups),), sync, running))
    return cases


def barrier_check() -> list[Case]:
    bars = (Bar(Kind.FIGURE, "row", 10.0, 1.0, "ns"),)
    shown = ("batch", "ns"), ("row", "ns")
    return [
        Case("barrier check", f"batches of {rows:,} rows", (_ours("barrier_check", rows),), bars, shown)
        for rows in (64, 1_024, 65_536)
    ]


def recovery() -> list[Case]:
    bars = (Bar(Kind.FIGURE, "beyond", None, 1.0, "s"),)
    times = ("noticed", "up", "out", "checkpoint", "spark", "beyond")
    shown = (*((name, "s") for name in times), ("read", "ms"))
    return [
        Case("recovery", f"{groups:,} groups, parallelism 2", (_ours("recovery", groups),), bars, shown)
        for groups in (10_000, 1_000_000)
    ]


def latency() -> list[Case]:
    """The highest rate is half of what Flink's keyed sum sustains, the slower of the two."""
    cases = []
    shown = (("p50", "ms"), ("p99", "ms"), ("p999", "ms"), ("combined", "%"))
    for rate in (100_000, 500_000, 1_000_000):
        contenders = _ours("latency", 2, rate, 10, 5), _peer("Flink", "flink-latency", 2, rate, 10, 5)
        bars = (Bar(Kind.INVERSE, "p99", None, 1.0),)
        cases.append(Case("latency", f"{rate:,} rows/s, parallelism 2", contenders, bars, shown))
    return cases


def growth(rows: int) -> list[Case]:
    """No bar: on a machine with fewer cores than workers, a rate that does not fall is all that can be had.

    With twice the rows: what is spent once, when many processes begin on few cores, should not hide what a row costs.
    """
    rows *= 2
    shown = ("work_rate", "M rows/s"), ("row", "ns"), ("p50", "ms"), ("start", "s")
    bars = (Bar(Kind.NONE, "work_rate"),)
    cases = []
    for workers in (1, 2, 4, 8, 16):
        ours = _ours("throughput", "sum", workers, rows, 1.0, workers)
        cases.append(Case("growth", f"{workers} workers", (ours,), bars, shown))
    for parallelism in (2, 4, 8, 16, 32):
        ours = _ours("throughput", "sum", parallelism, rows, 1.0, 2)
        cases.append(Case("growth", f"2 workers, {parallelism**2:,} channels", (ours,), bars, shown))
    return cases


def every_case(rows: int, quick: bool = False) -> list[Case]:
    if quick:
        return [*throughput(rows, quick), *backpressure(quick)]
    alone = [*checkpoint_cost(), *state_snapshot(), *barrier_check(), *recovery(), *latency(), *growth(rows)]
    mine = [*user_code(), *backed_up()]
    return [*throughput(rows, quick), *mine, *backpressure(quick), *kafka(rows), *kafka_to_delta(), *alone]
