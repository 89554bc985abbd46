"""State of the last checkpoint: sizes by operator, and rows with their largest keys. Reads the store: it may block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from penstock.checkpoints import Checkpoint, CheckpointDirectory
from penstock.dashboard.views import LargestKey, OperatorState, StateRows, StateView
from penstock.errors import OptionError
from penstock.protocol.manifest import StateKind

ROWS_READ_MAX = 200_000
"""Rows of one operator's state that are looked through for its largest keys."""
_LARGEST = 20
_TEXT_MAX = 200


def state_view(checkpoint: Checkpoint | None) -> StateView:
    """Sizes by operator; empty without a checkpoint."""
    if checkpoint is None:
        return StateView(operators=())
    return StateView(operators=tuple(_sizes(checkpoint, each.name) for each in checkpoint.operators() if each.states))


def _sizes(checkpoint: Checkpoint, operator: str) -> OperatorState:
    by_subtask: Counter[int] = Counter()
    rows = 0
    for report in checkpoint.manifest.reports:
        for segment in report.states:
            if segment.operator == operator and (segment.kind is not StateKind.BROADCAST or report.subtask.index == 0):
                by_subtask[report.subtask.index] += segment.segment.length
                rows += segment.rows
    size = sum(by_subtask.values())
    return OperatorState(
        operator=operator,
        state_bytes=size,
        rows=rows,
        key_groups_used=None,
        largest_subtask_share=max(by_subtask.values()) / size if size else None,
    )


def state_rows(checkpoint: Checkpoint, operator: str, limit: int) -> StateRows:
    """Rows of all states of an operator, as text. Raises `OptionError` if there is no such operator."""
    known = {each.name: each for each in checkpoint.operators()}
    if operator not in known:
        raise OptionError(f"checkpoint {checkpoint.info.id} has no operator '{operator}'")
    found: list[Mapping[str, object]] = []
    keys: Counter[str] = Counter()
    read = 0
    states = known[operator].states
    for state in states:
        for batch in checkpoint.batches(operator, state.name):
            if len(found) < limit:
                found += [{"state": state.name, **row} for row in batch.slice(0, limit - len(found)).to_pylist()]
            names = [name for name in batch.schema.names if name.startswith("key.")]
            if names and read < ROWS_READ_MAX:
                for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    keys[", ".join(map(_text, values))] += 1
            read += batch.num_rows
            if read >= ROWS_READ_MAX and len(found) >= limit:
                break
    columns = tuple(dict.fromkeys(name for row in found for name in row))
    total = sum(state.rows for state in states)
    return StateRows(
        columns=columns,
        rows=tuple(tuple(_text(row.get(name)) for name in columns) for row in found),
        largest_keys=tuple(LargestKey(key=key, rows=rows) for key, rows in keys.most_common(_LARGEST)),
        truncated=total > len(found) or read >= ROWS_READ_MAX,
    )


def newest(directory: CheckpointDirectory) -> Checkpoint | None:
    """The newest checkpoint; None before the first."""
    try:
        return directory.read()
    except OptionError:
        return None


def _text(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
