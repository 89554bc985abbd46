"""Dropping a split: a new checkpoint, made of the newest one, in which a file counts as read to its end.

For a file that is damaged or gone, and that a checkpoint points into. The pipeline must not run: its next checkpoint
would hold the split again. Who starts meanwhile is kept away by the owner's note, or fenced (I6).
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace

from penstock.connectors.files import FileSource
from penstock.errors import OptionError, RestoreError
from penstock.ids import CheckpointId
from penstock.protocol.manifest import Manifest, SplitState
from penstock.storage.copies import import_checkpoint, newest_completed, read_manifest
from penstock.storage.lease import Lease
from penstock.storage.port import Store


@dataclass(frozen=True, slots=True)
class Drop:
    """A split that is to be dropped, as the newest checkpoint has it."""

    checkpoint: CheckpointId
    split: SplitState

    @property
    def is_read(self) -> bool:
        """Whether it was read to its end, so that there is nothing to drop."""
        return bool(_position(self.split).get("end"))


def plan_drop(store: Store, split: str, source: str | None = None) -> Drop:
    """Find the split. Raises `RestoreError` or `OptionError` if it is not there, or cannot be dropped."""
    checkpoint = newest_completed(store)
    if checkpoint is None:
        raise RestoreError(f"{store!r} has no checkpoint to drop a split from")
    manifest = read_manifest(store, checkpoint)
    every = [state for report in manifest.reports for state in report.splits]
    found = [state for state in every if state.split == split and source in (None, state.operator)]
    if not found:
        near = difflib.get_close_matches(split, [state.split for state in every], 3) or [s.split for s in every[:3]]
        there = f"; there are {len(every)}, such as {', '.join(near)}" if every else ": it has none at all"
        raise OptionError(f"checkpoint {checkpoint} has no split '{split}'{there}")
    if len({state.operator for state in found}) > 1:
        operators = ", ".join(sorted({state.operator for state in found}))
        raise OptionError(f"the split '{split}' belongs to several sources, {operators}: name one with --source")
    _require_files(manifest, found[0])
    return Drop(checkpoint, found[0])


def drop_split(store: Store, drop: Drop) -> CheckpointId:
    """Write the new checkpoint, and return its id. Raises `OptionError` if a pipeline runs on the directory."""
    lease = Lease(store, f"penstock checkpoints drop-split {drop.split.split}")
    lease.check()
    lease.beat()
    try:
        return import_checkpoint(store, drop.checkpoint, change=lambda manifest: _without(manifest, drop.split))
    finally:
        lease.release()


def _without(manifest: Manifest, dropped: SplitState) -> Manifest:
    # Its size and time stay: a file that takes its name is noticed, since nobody would read it.
    of = {name: value for name, value in _position(dropped).items() if name == "of"}
    read = replace(dropped, offset=json.dumps({"end": True, **of}).encode(), reached_ms=None)
    reports = tuple(
        replace(report, splits=tuple(read if split == dropped else split for split in report.splits))
        for report in manifest.reports
    )
    return replace(manifest, reports=reports)


def _require_files(manifest: Manifest, split: SplitState) -> None:
    shape = next((shape for shape in manifest.shape.operators if shape.name == split.operator), None)
    definition = dict(shape.definition) if shape is not None else {}
    # An older version did not record the source: its positions tell.
    is_file = definition.get("source", FileSource.__name__) == FileSource.__name__
    if not is_file or not _position(split).keys() & {"piece", "end"}:
        raise OptionError(
            f"'{split.operator}' is not a FileSource: only splits that are files can be dropped, "
            "because the end of any other split is known to its source alone"
        )


def _position(split: SplitState) -> dict[str, object]:
    try:
        position = json.loads(split.offset)
    except ValueError:
        return {}
    return position if isinstance(position, dict) else {}
