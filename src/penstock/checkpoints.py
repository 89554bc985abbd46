"""Looking into a checkpoint directory: which checkpoints there are, what they hold, whether they are whole.

    from penstock import checkpoints

    directory = checkpoints.open("/data/checkpoints/totals")
    for info in directory.list():
        print(info.id, info.kind, info.completed_at)
    checkpoint = directory.read()                     # the newest; or directory.read(17)
    checkpoint.state("totals", "aggregates")          # a pyarrow.Table
    checkpoint.positions()                            # where each source goes on
    directory.verify()                                # everything is read and compared with its checksum

Nothing is changed, and neither Spark nor the pipeline is needed. The pipeline may run: a checkpoint that its retention
removes while it is read is a `StorageError`.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DataError, OptionError, PenstockError, RestoreError
from penstock.exchange.codec import decode_batches
from penstock.ids import CheckpointId
from penstock.protocol.manifest import Manifest, SnapshotKind, StateKind, StateSegment, committables_of
from penstock.protocol.ownership import Tombstone
from penstock.protocol.strays import STRAY, is_stray
from penstock.storage import open_store, paths
from penstock.storage.blob import read_segment
from penstock.storage.copies import verify as verify_manifest
from penstock.storage.directory import Directory
from penstock.storage.port import Store

__all__ = ["Checkpoint", "CheckpointDirectory", "CheckpointInfo", "OperatorInfo", "StateInfo", "Verdict", "open"]


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint of a directory. One that cannot be read has no `manifest`, and `damage` says why."""

    id: CheckpointId
    manifest: Manifest | None
    damage: str | None
    is_committed: bool
    """Whether its output is published."""
    is_stray: bool = False
    """Whether it had been given up when its manifest was written after all. Nothing is restored from it."""

    @property
    def kind(self) -> str:
        """`"checkpoint"`, `"savepoint"`, `"final"` (of a pipeline that has ended), `"stray"` or `"damaged"`."""
        if self.manifest is None:
            return "damaged"
        if self.is_stray:
            return "stray"
        if self.manifest.is_savepoint:
            return "savepoint"
        return "final" if self.manifest.is_final else "checkpoint"

    @property
    def completed_at(self) -> datetime.datetime | None:
        """When it was complete, by the clock of its driver, in the time zone of whoever looks."""
        if self.manifest is None:
            return None
        return datetime.datetime.fromtimestamp(self.manifest.completed_at_ms / 1000).astimezone()

    @property
    def published(self) -> str:
        """Whether the output of this checkpoint was committed: `"yes"`, `"not yet"`, or `"-"` if it has none."""
        if self.manifest is None or not committables_of(self.manifest):
            return "-"
        return "yes" if self.is_committed else "not yet"

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of all operators; 0 for one that is damaged."""
        reports = self.manifest.reports if self.manifest is not None else ()
        return sum(state.segment.length for report in reports for state in report.states)

    @property
    def inflight_bytes(self) -> int:
        """Bytes of the records that were in flight; 0 for one that is damaged."""
        reports = self.manifest.reports if self.manifest is not None else ()
        return sum(channel.segment.length for report in reports for channel in report.channels)

    @property
    def is_unaligned(self) -> bool:
        reports = self.manifest.reports if self.manifest is not None else ()
        return any(report.cut is not SnapshotKind.ALIGNED for report in reports)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a checkpoint is whole, after all that it refers to was read. `damage` is None if it is."""

    checkpoint: CheckpointInfo
    damage: str | None

    @property
    def is_whole(self) -> bool:
        return self.damage is None


@dataclass(frozen=True, slots=True)
class StateInfo:
    """One state of an operator."""

    name: str
    kind: str
    """`"keyed"`, `"list"` (batches that belong to nobody in particular) or `"broadcast"` (the same everywhere)."""
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """One operator of the pipeline that took a checkpoint."""

    name: str
    kind: str
    chain: str
    parallelism: int
    key: tuple[str, ...]
    states: tuple[StateInfo, ...]


def open(
    directory: str | os.PathLike[str], *, storage_options: Mapping[str, object] | None = None
) -> CheckpointDirectory:
    """Open the directory or URL that was given to `Pipeline.start`, or to a savepoint as its path.

    Raises `OptionError` if it does not exist, or if it holds nothing of Penstock's. `storage_options` are for URLs.
    """
    store = open_store(directory, check=False, storage_options=storage_options)
    known = (paths.PathKind.RESERVED, paths.PathKind.MANIFEST)
    is_owned = paths.OWNER in store.list(paths.OWNER)
    if not is_owned and not any(paths.kind_of(path) in known for path in store.list(paths.CHECKPOINTS)):
        raise OptionError(
            f"{os.fspath(directory)} is not a checkpoint directory: there is no checkpoint in it, and no pipeline runs "
            f"on it. Name the directory that was given to --checkpoints, or to savepoint --to."
        )
    return CheckpointDirectory(store, os.fspath(directory))


class CheckpointDirectory:
    """The checkpoints and savepoints of one directory. Made by `penstock.checkpoints.open`."""

    def __init__(self, store: Store, place: str) -> None:
        self.store = store
        self.place = place

    def __repr__(self) -> str:
        return f"<CheckpointDirectory {self.place}>"

    def list(self) -> Sequence[CheckpointInfo]:
        """All checkpoints, oldest first; without those that never completed."""
        directory = Directory(self.store)
        return [*_infos(directory, directory.ids(paths.PathKind.MANIFEST))]

    def info(self, checkpoint: int | None = None) -> CheckpointInfo:
        """One checkpoint, or the newest, also if it is damaged. Raises `OptionError` if no checkpoint has this id."""
        directory = Directory(self.store)
        ids = directory.ids(paths.PathKind.MANIFEST)
        wanted = ids[::-1] if checkpoint is None else [each for each in ids if each == checkpoint]
        found = next(_infos(directory, wanted), None)
        if found is not None:
            return found
        if checkpoint is None:
            raise OptionError(
                f"there is no checkpoint in {self.place} yet: `penstock status {self.place}` says whether it runs"
            )
        if wanted:
            raise OptionError(f"checkpoint {checkpoint} never completed: only the reservation of its id exists")
        known = ", ".join(str(info.id) for info in self.list()) or "none"
        raise OptionError(f"checkpoint {checkpoint} does not exist; the existing ones are {known}")

    def read(self, checkpoint: int | None = None) -> Checkpoint:
        """Open one checkpoint, or the newest, to look at what it holds. Raises `RestoreError` if it is damaged."""
        info = self.info(checkpoint)
        if info.manifest is None:
            raise RestoreError(f"checkpoint {info.id}: {info.damage}")
        return Checkpoint(self.store, info, info.manifest)

    def verify(self, checkpoint: int | None = None) -> Sequence[Verdict]:
        """Read all that one checkpoint refers to, or all of them, and compare it with the checksums."""
        wanted = self.list() if checkpoint is None else [self.info(checkpoint)]
        return [Verdict(info, _damage_of(self.store, info)) for info in wanted]


class Checkpoint:
    """What one checkpoint holds. Made by `CheckpointDirectory.read`."""

    def __init__(self, store: Store, info: CheckpointInfo, manifest: Manifest) -> None:
        self.info = info
        self.manifest = manifest
        self._store = store

    def __repr__(self) -> str:
        names = ", ".join(operator.name for operator in self.manifest.shape.operators)
        return f"<Checkpoint {self.info.id} of pipeline '{self.manifest.shape.name}': {names}>"

    def operators(self) -> Sequence[OperatorInfo]:
        """All operators, with their states."""
        return [
            OperatorInfo(each.name, each.kind, each.chain, each.parallelism, each.key, self._states_of(each.name))
            for each in self.manifest.shape.operators
        ]

    def state(self, operator: str, name: str | None = None, *, key: Sequence[object] | None = None) -> pa.Table:
        """A state of an operator as one table; `name` may be left out if there is only one.

        Keyed state has the columns `key_group`, `key.<column>` for each column of the key, `user_key.<column>` for the
        entries of a map, and `value.<column>`. `key=("ada",)` keeps the rows of one key. Other state has the columns of
        its records.
        """
        batches = [batch for batch in self.batches(operator, name, key=key) if batch.num_columns]
        if not batches:
            return pa.table({})
        try:
            return pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches])
        except pa.ArrowException as error:
            raise DataError(
                f"the state of operator '{operator}' cannot be returned as one table, because its "
                f"batches have several schemas: use batches() ({error})"
            ) from error

    def batches(
        self, operator: str, name: str | None = None, *, key: Sequence[object] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same, piece by piece: of a large state no more than one piece is in memory."""
        for segment in self._segments(operator, name):
            for batch in decode_batches(read_segment(self._store, segment.segment)):
                if segment.kind is StateKind.KEYED:
                    flat = pa.Table.from_batches([batch]).flatten().combine_chunks()
                    found = flat if key is None else _of_key(flat, key, operator)
                    yield from found.to_batches()
                elif key is None:
                    yield batch
                else:
                    raise OptionError(f"state '{segment.name}' of operator '{operator}' has no keys: leave key= out")

    def positions(self) -> pa.Table:
        """Where each source goes on: `source`, `split`, `offset` (JSON, of the source's own making), `reached`.

        `reached` is the event time that the split has come to, less the delay of the watermark; null if it has none.
        """
        splits = [split for report in self.manifest.reports for split in report.splits]
        columns = {
            "source": pa.array([split.operator for split in splits], pa.string()),
            "split": pa.array([split.split for split in splits], pa.string()),
            "offset": pa.array([split.offset.decode(errors="replace") for split in splits], pa.string()),
            "reached": pa.array([split.reached_ms for split in splits], pa.timestamp("ms", "UTC")),
        }
        return pa.table(columns)

    def in_flight(self) -> pa.Table:
        """How many records were in flight: `edge`, `sender`, `receiver`, `side`, `rows`, `bytes`."""
        found = [channel for report in self.manifest.reports for channel in report.channels]
        columns = {
            "edge": pa.array([str(channel.edge) for channel in found], pa.string()),
            "sender": pa.array([channel.sender for channel in found], pa.int32()),
            "receiver": pa.array([channel.receiver for channel in found], pa.int32()),
            "side": pa.array([channel.side.value for channel in found], pa.string()),
            "rows": pa.array([channel.rows for channel in found], pa.int64()),
            "bytes": pa.array([channel.segment.length for channel in found], pa.int64()),
        }
        return pa.table(columns)

    def _states_of(self, operator: str) -> tuple[StateInfo, ...]:
        found: dict[str, StateInfo] = {}
        for segment in self._all_segments(operator):
            known = found.get(segment.name, StateInfo(segment.name, segment.kind.value, 0, 0))
            size = known.bytes + segment.segment.length
            found[segment.name] = StateInfo(segment.name, segment.kind.value, known.rows + segment.rows, size)
        return tuple(found.values())

    def _segments(self, operator: str, name: str | None) -> Sequence[StateSegment]:
        known = [each.name for each in self.manifest.shape.operators]
        if operator not in known:
            raise OptionError(
                f"checkpoint {self.info.id} has no operator '{operator}'; its operators are {', '.join(known)}"
            )
        found = self._all_segments(operator)
        names = list(dict.fromkeys(segment.name for segment in found))
        if name is None and len(names) == 1:
            return found
        if name not in names:
            shown = ", ".join(names) or "none"
            asked = "several states, or none" if name is None else f"no state '{name}'"
            raise OptionError(
                f"operator '{operator}' has {asked} in checkpoint {self.info.id}: name one of its states ({shown})"
            )
        return [segment for segment in found if segment.name == name]

    def _all_segments(self, operator: str) -> Sequence[StateSegment]:
        """Those of all subtasks; of broadcast state, which all of them have, those of the first one."""
        found: dict[tuple[str, int], list[StateSegment]] = {}
        for report in self.manifest.reports:
            for segment in report.states:
                if segment.operator == operator:
                    found.setdefault((segment.name, report.subtask.index), []).append(segment)
        first: dict[str, int] = {}
        for name, subtask in found:
            first[name] = min(subtask, first.get(name, subtask))
        return [
            segment
            for (name, subtask), segments in found.items()
            for segment in segments
            if segment.kind is not StateKind.BROADCAST or subtask == first[name]
        ]


def _of_key(table: pa.Table, key: Sequence[object], operator: str) -> pa.Table:
    columns = [name for name in table.column_names if name.startswith("key.")]
    if isinstance(key, str) or len(key) != len(columns):
        names = ", ".join(name.removeprefix("key.") for name in columns)
        raise OptionError(f"key is {key!r}: it must have a value for each key column of '{operator}' ({names})")
    for name, value in zip(columns, key, strict=True):
        column = table[name]
        try:
            mask = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
        except (pa.ArrowException, TypeError) as error:
            raise OptionError(f"key is {key!r}: {name.removeprefix('key.')} is of type {column.type}") from error
        table = table.filter(mask)
    return table


def _damage_of(store: Store, info: CheckpointInfo) -> str | None:
    if info.manifest is None:
        return info.damage
    if info.is_stray:
        return f"{STRAY}: nothing is restored from it, and it may be deleted"
    try:
        verify_manifest(store, info.manifest)
    except PenstockError as error:
        return str(error)
    return None


def _infos(directory: Directory, wanted: Sequence[CheckpointId]) -> Iterator[CheckpointInfo]:
    """Those of the wanted ones that completed, or are damaged, in their order."""
    committed = frozenset(directory.ids(paths.PathKind.COMMITTED))
    newest = directory.newest_with_lineage()
    for checkpoint in wanted:
        manifest, damage = None, None
        try:
            found = directory.manifest_or_tombstone(checkpoint)
        except PenstockError as error:
            damage = str(error)
        else:
            if found is None or isinstance(found, Tombstone):
                continue
            manifest = found
        yield CheckpointInfo(checkpoint, manifest, damage, checkpoint in committed, is_stray(checkpoint, newest))
