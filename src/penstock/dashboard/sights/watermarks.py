"""Event time by operator, and the source, subtask and split that holds it back.

A window is emitted when the watermark of its operator has passed its end. That watermark is the least of what all
senders have said, and theirs the least of what they were told; so the way back from an operator to the slowest source
answers why a window is not emitted.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from penstock.dashboard.sights import readings as names
from penstock.dashboard.sights.graphs import least, watermark_of, whole
from penstock.dashboard.sights.readings import Reading
from penstock.dashboard.views import OperatorWatermark, SplitWatermark, SubtaskWatermark, WatermarksView
from penstock.graph.physical import Chain, PhysicalPlan
from penstock.ids import OperatorName
from penstock.mailbox.notes import SplitClock


def watermarks_view(plan: PhysicalPlan, reading: Reading, splits: Iterable[SplitClock]) -> WatermarksView:
    by_source: dict[str, list[SplitClock]] = {}
    for split in splits:
        by_source.setdefault(split.operator, []).append(split)
    operators = [
        _operator(plan, chain, node.name, reading, by_source) for chain in plan.chains.values() for node in chain.nodes
    ]
    return WatermarksView(operators=tuple(operators))


def _operator(
    plan: PhysicalPlan, chain: Chain, name: str, reading: Reading, splits: dict[str, list[SplitClock]]
) -> OperatorWatermark:
    is_source = name in plan.sources
    subtasks = tuple(
        SubtaskWatermark(index=index, watermark_ms=_reached(chain, name, index, reading, is_source))
        for index in range(chain.parallelism)
    )
    watermark = least(each.watermark_ms for each in subtasks)
    return OperatorWatermark(
        operator=name,
        watermark_ms=watermark,
        lag_ms=None if watermark is None else reading.wall_ms - watermark,
        held_by=held_by(plan, chain, reading, splits),
        subtasks=subtasks,
        splits=tuple(_split(each) for each in _slowest_first(splits.get(name, []))),
    )


def _reached(chain: Chain, name: str, index: int, reading: Reading, is_source: bool) -> int | None:
    if is_source:
        return watermark_of(chain, index, reading)
    told = whole(reading.value(names.INPUT_WATERMARK, (OperatorName(name), index)))
    if told is None and name == chain.nodes[-1].name:
        # It is told none where it takes event time from the records itself.
        return watermark_of(chain, index, reading)
    return told


def _split(clock: SplitClock) -> SplitWatermark:
    return SplitWatermark(split=clock.split, watermark_ms=clock.reached_ms, is_idle=clock.is_idle)


def _slowest_first(splits: list[SplitClock]) -> list[SplitClock]:
    """Splits that hold somebody up come first, those without a record before all others."""
    return sorted(splits, key=lambda each: (each.is_idle, each.reached_ms or 0))


def held_by(plan: PhysicalPlan, chain: Chain, reading: Reading, splits: dict[str, list[SplitClock]]) -> str | None:
    """The source that the watermark of a chain waits for; None if its input has no event time."""
    seen = {chain.name}
    while senders := [plan.chains[edge.upstream] for edge in plan.edges if edge.downstream == chain.name]:
        chain = min(senders, key=lambda sender: _slowest(sender, reading)[0])
        if chain.name in seen:
            return None
        seen.add(chain.name)
    reached, index = _slowest(chain, reading)
    slowest = next((each for each in _slowest_first(splits.get(chain.name, [])) if not each.is_idle), None)
    if slowest is not None:
        return f"source '{chain.name}', split '{slowest.split}': {_shown(slowest.reached_ms)}"
    if reached < 0:
        return None
    return f"source '{chain.name}', subtask {index}: {_shown(reached)}"


def _slowest(chain: Chain, reading: Reading) -> tuple[int, int]:
    """The least watermark of a chain and its subtask; -1 for one that has said nothing yet."""
    reached = [watermark_of(chain, index, reading) for index in range(chain.parallelism)]
    return min((-1 if each is None else each, index) for index, each in enumerate(reached))


def _shown(reached_ms: int | None) -> str:
    if reached_ms is None:
        return "no record of it was read yet"
    try:
        at = datetime.datetime.fromtimestamp(reached_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"it has come to {reached_ms} ms since 1970"
    return f"it has come to {at:%Y-%m-%d %H:%M:%S} UTC"
