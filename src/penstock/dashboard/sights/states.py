"""State of the last checkpoint: sizes by operator, and rows with their largest keys. Reads the store: it may block.

The clock of windows is state of the engine and not of the user: its bytes count, and its rows are not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow.compute as pc

from penstock.checkpoints import Checkpoint, CheckpointDirectory
from penstock.dashboard.views import LargestKey, OperatorState, StateRows, StateView
from penstock.errors import OptionError
from penstock.protocol.manifest import StateKind
from penstock.state.pieces import KEY_GROUP
from penstock.state.windows.clock import CLOCK_SUFFIX

ROWS_READ_MAX = 200_000
"""Rows of one operator's state that are looked through for its largest keys."""
KEY_GROUPS_BYTES_MAX = 16 * 1024 * 1024
"""Keyed state of one operator that is read to count its key groups; of more, they are not counted."""
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
                rows += 0 if _is_clock(segment.name) else segment.rows
    size = sum(by_subtask.values())
    return OperatorState(
        operator=operator,
        state_bytes=size,
        rows=rows,
        key_groups_used=_key_groups_used(checkpoint, operator),
        key_groups=checkpoint.manifest.shape.max_parallelism,
        largest_subtask_share=max(by_subtask.values()) / size if size else None,
    )


def _is_clock(state: str) -> bool:
    return state.endswith(CLOCK_SUFFIX)


def _key_groups_used(checkpoint: Checkpoint, operator: str) -> int | None:
    """Key groups with a key; None without keyed state, or if it is too much to read for this."""
    found = next(each for each in checkpoint.operators() if each.name == operator)
    keyed = [state for state in found.states if state.kind == StateKind.KEYED.value and not _is_clock(state.name)]
    if not keyed or sum(state.bytes for state in keyed) > KEY_GROUPS_BYTES_MAX:
        return None
    used: set[int] = set()
    for state in keyed:
        for batch in checkpoint.batches(operator, state.name):
            if KEY_GROUP in batch.schema.names:
                used.update(pc.unique(batch.column(KEY_GROUP)).to_pylist())
    return len(used)


def state_rows(checkpoint: Checkpoint, operator: str, limit: int) -> StateRows:
    """Rows of all states of an operator, as text. Raises `OptionError` if there is no such operator."""
    known = {each.name: each for each in checkpoint.operators()}
    if operator not in known:
        raise OptionError(f"checkpoint {checkpoint.info.id} has no operator '{operator}'")
    found: list[Mapping[str, object]] = []
    keys: Counter[str] = Counter()
    read = 0
    states = [state for state in known[operator].states if not _is_clock(state.name)]
    for state in states:
        for batch in checkpoint.batches(operator, state.name):
            if len(found) < limit:
                found += [{"state": state.name, **row} for row in batch.slice(0, limit - len(found)).to_pylist()]
            names = _key_columns(batch.schema.names, known[operator].key)
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


def _key_columns(columns: Sequence[str], key: Sequence[str]) -> list[str]:
    """The columns of the user's key. State of windows has the beginning of the window beside it."""
    own = [f"key.{name}" for name in key]
    return own if own and set(own) <= set(columns) else [name for name in columns if name.startswith("key.")]


def newest(directory: CheckpointDirectory) -> Checkpoint | None:
    """The newest checkpoint; None before the first."""
    try:
        return directory.read()
    except OptionError:
        return None


def _text(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
