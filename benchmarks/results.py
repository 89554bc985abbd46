"""Runs of benchmarks as values: what was measured, what it is held to, and what came of it.

Pure: nothing is run or read here. A *case* is one piece of work with its contenders, and every contender of it runs as
often as the others, in turns. A *bar* is what a case is held to, with the figure that decides.
"""

from __future__ import annotations

import enum
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

OURS = "Penstock"
RUNS_MIN = 3
BUSY_PART_MAX = 0.2
"""Where more of the cores than this is in use by somebody else, figures are not worth much."""

_FIGURE = re.compile(r"\b([a-z][a-z0-9_]*)=(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan)")
_CHECKED = re.compile(r"\b(verified|counted)\b")

CheckpointStats = Mapping[str, float]


class Kind(enum.Enum):
    """How a figure is judged."""

    RATIO = "ratio"
    """Ours to that of the best peer of the same run, where more is better."""
    INVERSE = "inverse"
    """The best peer's to ours, where less is better: above 1 we are better."""
    FIGURE = "figure"
    """Ours as it is, where less is better."""
    NONE = "none"
    """Not judged, only shown."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a case is held to: `bar` must be reached, `goal` is where we want to be."""

    kind: Kind
    figure: str
    bar: float | None = None
    goal: float | None = None
    unit: str = ""

    @property
    def more_is_better(self) -> bool:
        return self.kind in (Kind.RATIO, Kind.INVERSE)

    def of(self, medians: Mapping[str, CheckpointStats]) -> float | None:
        """The value that is judged, or None if somebody who is needed for it is missing."""
        found = {name: figures[self.figure] for name, figures in medians.items() if self.figure in figures}
        ours = found.pop(OURS, None)
        if ours is None or math.isnan(ours) or (not found and self.more_is_better):
            return None
        match self.kind:
            case Kind.RATIO:
                return ours / max(found.values())
            case Kind.INVERSE:
                return min(found.values()) / ours if ours else math.inf
            case _:
                return ours

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        if self.bar is None and self.goal is None:
            return ""
        if self._reaches(value, self.goal):
            return "goal reached"
        if self.bar is None:
            return "below the goal"
        return "bar reached" if self._reaches(value, self.bar) else "**below the bar**"

    def _reaches(self, value: float, mark: float | None) -> bool:
        return mark is not None and (value >= mark if self.more_is_better else value <= mark)

    def shown(self, value: float | None) -> str:
        if value is None:
            return ""
        suffix = " ×" if self.more_is_better else f" {self.unit}".rstrip()
        return f"{number(value)}{suffix}"

    def mark(self, value: float | None) -> str:
        return "" if value is None else f"{'≥' if self.more_is_better else '≤'} {self.shown(value)}"


@dataclass(frozen=True, slots=True)
class Contender:
    """One program that does the work: it prints one line of figures that says `verified`, and exits with 0."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work, done by all contenders in turns. `shown` are the figures of the table, with their units."""

    benchmark: str
    name: str
    contenders: tuple[Contender, ...]
    bars: tuple[Bar, ...]
    shown: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Runs:
    """What the runs of a case came to: by contender the figures of each run, or why there are none."""

    figures: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    busy: list[float] = field(default_factory=list)
    """How many cores were in use before each run: what else the machine had to do."""
    cores: int = 0
    date: str = ""

    @property
    def medians(self) -> dict[str, dict[str, float]]:
        return {name: medians(runs) for name, runs in self.figures.items() if runs}


class NotVerified(Exception):
    """A run whose answer was not checked, or is wrong, counts as a failure."""


def parse(line: str) -> dict[str, float]:
    """The figures of a line: `name=number`, with any unit behind it."""
    if not _CHECKED.search(line) or "WRONG" in line:
        raise NotVerified(line)
    return {name: float(value) for name, value in _FIGURE.findall(line)}


def medians(runs: Sequence[CheckpointStats]) -> dict[str, float]:
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: statistics.median(run[name] for run in runs if name in run) for name in names}


def number(value: float) -> str:
    """Three digits that count; no exponent."""
    if math.isnan(value) or math.isinf(value):
        return "–"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if abs(value) >= 0.001 else f"{value:.4f}"


def spread(runs: Sequence[CheckpointStats], name: str) -> str:
    """The median of a figure, and if there were several runs the least and the greatest."""
    values = [run[name] for run in runs if name in run]
    if not values:
        return ""
    median = number(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({number(min(values))} … {number(max(values))})"


# --- tables ---


def summary(results: Sequence[tuple[Case, Runs]]) -> list[str]:
    """One row for each bar: what we came to, and what is asked for. Losses are shown like everything else."""
    lines = [
        "| benchmark | case | judged by | Penstock | best peer | result | bar | goal | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case, runs in results:
        for bar in case.bars:
            if bar.kind is not Kind.NONE:
                lines.append(_judged(case, runs, bar))
    return lines


def _judged(case: Case, runs: Runs, bar: Bar) -> str:
    value = bar.of(runs.medians)
    ours = runs.medians.get(OURS, {}).get(bar.figure)
    peers = {n: f[bar.figure] for n, f in runs.medians.items() if n != OURS and bar.figure in f}
    best = ""
    if peers:
        name = (min if bar.kind is Kind.INVERSE else max)(peers, key=lambda each: peers[each])
        best = f"{number(peers[name])} ({name})"
    shown_ours = "" if ours is None else number(ours)
    cells = [case.benchmark, case.name, bar.figure, shown_ours, best, bar.shown(value)]
    cells += [bar.mark(bar.bar), bar.mark(bar.goal), bar.verdict(value)]
    return "| " + " | ".join(cells) + " |"


def details(results: Sequence[tuple[Case, Runs]]) -> list[str]:
    """A table for each benchmark: all contenders of all cases, medians with the least and the greatest."""
    lines: list[str] = []
    for benchmark in dict.fromkeys(case.benchmark for case, _ in results):
        mine = [(case, runs) for case, runs in results if case.benchmark == benchmark]
        shown = dict(pair for case, _ in mine for pair in case.shown)
        heads = [f"{name}, {unit}" if unit else name for name, unit in shown.items()]
        lines += [f"### {benchmark[:1].upper()}{benchmark[1:]}", ""]
        lines += ["| " + " | ".join(["case", "contender", "runs", *heads]) + " |", "|---" * (len(heads) + 3) + "|"]
        for case, runs in mine:
            for contender in case.contenders:
                found = runs.figures.get(contender.name, [])
                if found:
                    cells = [case.name, contender.name, str(len(found)), *(spread(found, name) for name in shown)]
                    lines.append("| " + " | ".join(cells) + " |")
        lines += _remarks(mine)
    return lines


def _doubts(mine: Sequence[tuple[Case, Runs]]) -> list[str]:
    """Why these figures should not be believed, if there is a reason."""
    doubts = []
    if any(len(found) < RUNS_MIN for _, runs in mine for name, found in runs.figures.items() if name == OURS):
        doubts.append(f"There are cases with fewer than {RUNS_MIN} runs: not a measurement, only a sign.")
    busy = [value for _, runs in mine for value in runs.busy]
    cores = max(runs.cores for _, runs in mine)
    if cores and busy and statistics.median(busy) > BUSY_PART_MAX * cores:
        doubts.append(f"The machine was busy with other work: {statistics.median(busy):.1f} of its {cores} cores.")
    return doubts


def _remarks(mine: Sequence[tuple[Case, Runs]]) -> list[str]:
    busy = [value for _, runs in mine for value in runs.busy]
    lines = [""]
    dates = sorted({runs.date for _, runs in mine if runs.date})
    if dates:
        others = f"; at most {max(busy):.1f} cores were in use before a run" if busy else ""
        lines += [f"Measured {', '.join(dates)}{others}.", ""]
    doubts = _doubts(mine)
    lines += [f"- {doubt}" for doubt in doubts] + ([""] if doubts else [])
    reasons = dict.fromkeys((name, why) for _, runs in mine for name, why in runs.missing.items())
    lines += [f"- {name} is missing: {why}" for name, why in reasons] + ([""] if reasons else [])
    return lines
