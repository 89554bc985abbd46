"""Names for everything that is counted or addressed.

A plain `int` says nothing at a call site; these types say which number is meant, cost nothing at
run time and let mypy refuse a checkpoint id where a generation is wanted.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

CheckpointId = NewType("CheckpointId", int)
"""Grows by one with every attempt at a checkpoint, across restarts too (I5). Starts at 1; 0 means "none yet"."""

Generation = NewType("Generation", int)
"""Grows with every start of the pipeline. What carries an older one is ignored (I6)."""

WorkerId = NewType("WorkerId", int)
"""Index of a worker in its group: 0 … W-1."""

ChannelId = NewType("ChannelId", int)
"""Index of a channel in the physical plan. Two generations may number their channels differently."""

KeyGroup = NewType("KeyGroup", int)
"""0 … max_parallelism-1. Keyed state and keyed records belong to exactly one."""

OperatorName = NewType("OperatorName", str)
"""Unique in a pipeline and stable across its versions: state is found again by this name."""

MAIN_OUTPUT = "main"
"""The output of an operator that its stream reads. Others, the side outputs, have names."""
DEAD_LETTERS = "dead_letters"
"""The side output for input that could not be read."""
LATE = "late"
"""The side output for records that came after their windows had been emitted."""
LATE_OF_SIDE = {"left": "late_left", "right": "late_right"}
"""The side outputs of a join for late records: its sides have different columns."""

COORDINATOR = WorkerId(-1)
"""Address of the coordinator on the transport."""

NO_CHECKPOINT = CheckpointId(0)


class SubtaskId(NamedTuple):
    """One parallel instance of a chain of operators; the chain is named after its first operator."""

    chain: OperatorName
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody asks of an id

    def __str__(self) -> str:
        return f"{self.chain}[{self.index}]"


class EdgeId(NamedTuple):
    """The edge that carries records from one operator to another one's numbered input."""

    upstream: OperatorName
    downstream: OperatorName
    input: int

    def __str__(self) -> str:
        return f"{self.upstream}->{self.downstream}" + (f"#{self.input}" if self.input else "")
