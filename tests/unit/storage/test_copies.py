"""Checkpoints that travel: copies that are whole or not there, and copies that publish nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import Pipeline
from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.driver.attempts.takeover import take_over
from penstock.errors import CorruptBlob, RestoreError, StorageError
from penstock.ids import CheckpointId, EdgeId, Generation, OperatorName, SubtaskId
from penstock.protocol.manifest import (
    ChannelSegment,
    Committable,
    EdgeShape,
    Manifest,
    Partitioning,
    PipelineShape,
    Segment,
    Side,
    StateKind,
    StateSegment,
    SubtaskReport,
    blobs_of,
    committables_of,
)
from penstock.protocol.manifest.codec import encode_manifest, encode_reservation, encode_tombstone
from penstock.protocol.ownership import Reservation, Tombstone
from penstock.storage import LocalStore, paths
from penstock.storage.blob import write_segments
from penstock.storage.copies import export_checkpoint, import_checkpoint, newest_completed, read_manifest, verify
from penstock.storage.directory import Directory
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Data, Store
from penstock.testing import ListSource, run

ONE, TWO, THREE = (CheckpointId(number) for number in (1, 2, 3))
BLOCK = Reservation(TWO, Generation(1), count=3)


class Raced(MemoryStore):
    """A block of ids of another driver is there by the time at which the reservation of `raced` is made."""

    def __init__(self, raced: CheckpointId | None = None) -> None:
        super().__init__()
        self.create(paths.reserved(ONE), encode_reservation(Reservation(ONE, Generation(1))))
        self.create(paths.manifest(ONE), encode_manifest(Manifest(ONE, Generation(1), PipelineShape("p", 8))))
        self._raced = raced

    def create(self, path: str, data: Data) -> bool:
        raced: CheckpointId | None = getattr(self, "_raced", None)
        if raced is not None and path == paths.reserved(raced):
            self._raced = None
            self.create(paths.reserved(BLOCK.checkpoint), encode_reservation(BLOCK))
        return super().create(path, data)


def test_it_gets_the_next_id_and_a_generation_of_its_own() -> None:
    store = Raced()
    assert import_checkpoint(store, 1) == TWO
    assert read_manifest(store, TWO) == Manifest(TWO, Generation(2), PipelineShape("p", 8), published_as=ONE)


def test_it_is_refused_if_another_driver_reserves_the_id_first() -> None:
    store = Raced(raced=TWO)
    with pytest.raises(RestoreError, match="another driver is starting"):
        import_checkpoint(store, 1)
    assert Directory(store).ids(paths.PathKind.MANIFEST) == [ONE]


def test_it_is_refused_if_the_reservation_that_was_there_first_has_been_removed_again() -> None:
    class Removed(MemoryStore):
        def create(self, path: str, data: Data) -> bool:
            return path != paths.reserved(TWO) and super().create(path, data)

    store = Removed()
    add_checkpoint(store, 1)
    with pytest.raises(RestoreError, match="another driver is starting"):
        import_checkpoint(store, 1)
    assert Directory(store).ids(paths.PathKind.MANIFEST) == [ONE]


def test_it_is_refused_if_its_id_turns_out_to_be_in_the_middle_of_another_drivers_block() -> None:
    store = Raced(raced=THREE)
    # The outcome of an id of that block is seen before its reservation is.
    store.create(paths.manifest(TWO), encode_manifest(Manifest(TWO, Generation(1), PipelineShape("p", 8))))
    with pytest.raises(RestoreError, match="another driver is starting"):
        import_checkpoint(store, 1)
    assert Directory(store).ids(paths.PathKind.MANIFEST) == [ONE, TWO]


def test_it_is_refused_if_another_driver_takes_over_while_it_is_copied() -> None:
    class Overtaken(MemoryStore):
        def create(self, path: str, data: Data) -> bool:
            if path == paths.manifest(TWO) and b"imported" in bytes(data):
                take_over(self, SHAPE, token="another", has_committing_sinks=False)
            return super().create(path, data)

    store = Overtaken()
    add_checkpoint(store, 1, is_committed=True)
    with pytest.raises(RestoreError, match="another driver is starting"):
        import_checkpoint(store, 1)


def test_it_is_refused_if_another_driver_has_removed_its_licence_meanwhile() -> None:
    class Asleep(MemoryStore):
        """Falls asleep before the manifest is created: the new owner has completed a checkpoint, and cleared away."""

        def create(self, path: str, data: Data) -> bool:
            if path == paths.manifest(TWO):
                self.delete(paths.reserved(TWO))
            return super().create(path, data)

    store = Asleep()
    add_checkpoint(store, 1, is_committed=True)
    with pytest.raises(RestoreError, match="another driver is starting"):
        import_checkpoint(store, 1)
    assert paths.committed(TWO) not in store.blobs


COUNT = SubtaskId(OperatorName("count"), 0)
EDGE = EdgeId(OperatorName("read"), COUNT.chain, 0)
SHAPE = PipelineShape("totals", 8, edges=(EdgeShape(EDGE, Partitioning.FORWARD, 1, 1),))
FILE = Committable(OperatorName("out"), 0, b"file")


def add_checkpoint(
    store: Store,
    number: int,
    content: bytes = b"state of january",
    *,
    refers_to: tuple[Segment, ...] = (),
    is_committed: bool = False,
    is_savepoint: bool = True,
    name: str = "totals",
) -> Segment:
    """A checkpoint with a blob of state, which is returned, one of records in flight, and perhaps earlier ones."""
    checkpoint, generation = CheckpointId(number), Generation(1)
    written = [
        write_segments(store, paths.blob(checkpoint, generation, COUNT, kind), [[content]], 0)[0]
        for kind in paths.BlobContent
    ]
    states = tuple(StateSegment(COUNT.chain, "n", StateKind.LIST, each, 1) for each in (written[0], *refers_to))
    channels = tuple(ChannelSegment(EDGE, 0, 0, Side.RECEIVER, each, 1) for each in written[1:])
    report = SubtaskReport(COUNT, states=states, channels=channels, committables=(FILE,))
    manifest = Manifest(checkpoint, generation, replace(SHAPE, name=name), (report,), is_savepoint=is_savepoint)
    assert store.create(paths.manifest(checkpoint), encode_manifest(manifest))
    if is_committed:
        store.create(paths.committed(checkpoint), b"{}")
    return written[0]


def contents(store: Store, checkpoint: CheckpointId) -> list[bytes]:
    verify(store, read_manifest(store, checkpoint))
    return [store.read(path) for path in sorted(blobs_of(read_manifest(store, checkpoint)))]


class TestExport:
    def test_a_copy_is_complete_in_itself_with_blobs_of_earlier_checkpoints(self) -> None:
        store, to = MemoryStore(), MemoryStore()
        earlier = add_checkpoint(store, 1, b"earlier")
        add_checkpoint(store, 2, b"own", refers_to=(earlier,), is_committed=True)
        export_checkpoint(store, TWO, to)
        assert contents(to, TWO) == [b"earlier", b"own", b"own"]
        assert paths.committed(TWO) in to.blobs
        assert {paths.checkpoint_of(path) for path in to.blobs} == {TWO}
        assert all(paths.kind_of(path) is not None for path in to.blobs)

    def test_another_checkpoint_of_the_same_id_is_refused_before_anything_is_written(self) -> None:
        january, february, to = MemoryStore(), MemoryStore(), MemoryStore()
        add_checkpoint(january, 1, b"state of january", name="january")
        add_checkpoint(february, 1, b"state of february", name="february", is_committed=True)
        export_checkpoint(january, ONE, to)
        before = dict(to.blobs)
        with pytest.raises(StorageError) as refused:
            export_checkpoint(february, ONE, to)
        assert to.blobs == before
        for said in ("'january'", "'february'", repr(february), repr(to), "Copy to another directory, or delete"):
            assert said in str(refused.value)
        assert contents(to, ONE) == [b"state of january"] * 2

    def test_two_checkpoints_of_one_id_that_are_copied_at_once_do_not_damage_each_other(self) -> None:
        january, february = MemoryStore(), MemoryStore()
        add_checkpoint(january, 1, b"state of january", name="january")
        add_checkpoint(february, 1, b"state of february", name="february", is_committed=True)

        class Overtaken(MemoryStore):
            def write(self, path: str, parts: Sequence[Data]) -> None:
                if b"february" in b"".join(parts) and not self.blobs:
                    export_checkpoint(january, ONE, self)
                super().write(path, parts)

        to = Overtaken()
        with pytest.raises(StorageError, match="cannot be copied"):
            export_checkpoint(february, ONE, to)
        assert contents(to, ONE) == [b"state of january"] * 2
        assert paths.committed(ONE) not in to.blobs

    def test_a_copy_that_is_repeated_changes_nothing(self) -> None:
        store, to = MemoryStore(), MemoryStore()
        add_checkpoint(store, 1)
        export_checkpoint(store, ONE, to)
        before = dict(to.blobs)
        export_checkpoint(store, ONE, to)
        assert to.blobs == before

    @pytest.mark.parametrize("crashed_after", range(4))
    def test_a_copy_that_was_interrupted_is_no_checkpoint_and_repeating_it_makes_it_whole(
        self, crashed_after: int
    ) -> None:
        class Crashing(MemoryStore):
            calls = 0

            def count(self) -> None:
                self.calls += 1
                if self.calls > crashed_after:
                    raise KeyboardInterrupt

            def write(self, path: str, parts: Sequence[Data]) -> None:
                self.count()
                super().write(path, parts)

            def create(self, path: str, data: Data) -> bool:
                self.count()
                return super().create(path, data)

        store, crashing, to = MemoryStore(), Crashing(), MemoryStore()
        add_checkpoint(store, 1, is_committed=True)
        with pytest.raises(KeyboardInterrupt):
            export_checkpoint(store, ONE, crashing)
        to.blobs = dict(crashing.blobs)
        if paths.manifest(ONE) in to.blobs:
            # I3: whatever it names is there.
            assert contents(to, ONE) == [b"state of january"] * 2
        export_checkpoint(store, ONE, to)
        assert contents(to, ONE) == [b"state of january"] * 2
        assert paths.committed(ONE) in to.blobs

    def test_what_is_missing_from_a_copy_or_damaged_in_it_is_copied_again(self) -> None:
        store, to = MemoryStore(), MemoryStore()
        add_checkpoint(store, 1)
        export_checkpoint(store, ONE, to)
        first, second = sorted(blobs_of(read_manifest(to, ONE)))
        del to.blobs[first]
        to.blobs[second] = b"x" * len(to.blobs[second])
        export_checkpoint(store, ONE, to)
        assert contents(to, ONE) == [b"state of january"] * 2

    def test_a_copy_whose_bytes_differ_from_the_original_is_no_checkpoint(self) -> None:
        class Careless(MemoryStore):
            def write(self, path: str, parts: Sequence[Data]) -> None:
                super().write(path, [b"".join(parts)[:-1] + b"?"])

        store, to = MemoryStore(), Careless()
        add_checkpoint(store, 1)
        with pytest.raises(CorruptBlob, match="checksum"):
            export_checkpoint(store, ONE, to)
        assert paths.manifest(ONE) not in to.blobs

    def test_a_copy_into_its_own_directory_is_the_original(self) -> None:
        store = MemoryStore()
        add_checkpoint(store, 1)
        store.create(paths.reserved(ONE), encode_reservation(Reservation(ONE, Generation(1))))
        before = dict(store.blobs)
        export_checkpoint(store, ONE, store)
        assert store.blobs == before

    def test_a_copy_into_the_checkpoint_directory_of_another_pipeline_is_refused(self) -> None:
        store, other = MemoryStore(), MemoryStore()
        add_checkpoint(store, 2)
        take_over(other, SHAPE, token="another", has_committing_sinks=False)
        before = dict(other.blobs)
        with pytest.raises(StorageError, match="that is the checkpoint directory of a pipeline"):
            export_checkpoint(store, TWO, other)
        assert other.blobs == before


class TestImport:
    @pytest.mark.parametrize("is_missing", [False, True])
    def test_a_damaged_checkpoint_is_refused_before_an_id_is_taken(self, is_missing: bool) -> None:
        store = MemoryStore()
        path = add_checkpoint(store, 1).path
        assert path is not None
        store.blobs[path] = b"x" * len(store.blobs[path])
        if is_missing:
            del store.blobs[path]
        before = dict(store.blobs)
        with pytest.raises(RestoreError, match=r"checkpoint 1 of .* cannot be restored: .*checkpoints delete DIR 1"):
            import_checkpoint(store, 1)
        assert store.blobs == before

    def test_records_in_flight_that_are_damaged_are_refused_too(self) -> None:
        store = MemoryStore()
        add_checkpoint(store, 1)
        ((channel,),) = (report.channels for report in read_manifest(store, ONE).reports)
        assert channel.segment.path is not None
        store.blobs[channel.segment.path] = b"x" * len(store.blobs[channel.segment.path])
        before = dict(store.blobs)
        with pytest.raises(RestoreError, match="cannot be restored"):
            import_checkpoint(store, 1)
        assert store.blobs == before

    def test_the_copy_is_verified_before_it_counts(self) -> None:
        class Careless(MemoryStore):
            def write(self, path: str, parts: Sequence[Data]) -> None:
                content = b"".join(parts)
                super().write(path, [content[:-1] + b"?" if "imported" in path else content])

        store = Careless()
        add_checkpoint(store, 1)
        with pytest.raises(CorruptBlob, match="checksum"):
            import_checkpoint(store, 1)
        assert newest_completed(store) == ONE

    @pytest.mark.parametrize("is_committed", [False, True])
    def test_what_was_published_stays_behind_and_what_was_not_comes_along(self, is_committed: bool) -> None:
        store = MemoryStore()
        add_checkpoint(store, 1, is_committed=is_committed)
        imported = read_manifest(store, import_checkpoint(store, 1))
        assert committables_of(imported) == (() if is_committed else (FILE,))
        # Should the import end before its marker is there, nothing is published again.
        assert (paths.committed(imported.checkpoint) in store.blobs) is is_committed
        assert not imported.is_savepoint
        assert contents(store, imported.checkpoint) == [b"state of january"] * 2

    def test_the_newest_checkpoint_at_a_path_is_taken_and_void_markers_are_passed_over(self, tmp_path: Path) -> None:
        source = LocalStore(tmp_path)
        add_checkpoint(source, 3)
        add_checkpoint(source, 5, b"the newest")
        for number in (6, 7):
            checkpoint = CheckpointId(number)
            source.create(paths.manifest(checkpoint), encode_tombstone(Tombstone(checkpoint, Generation(1))))
        store = MemoryStore()
        assert contents(store, import_checkpoint(store, str(tmp_path))) == [b"the newest"] * 2

    def test_a_damaged_outcome_at_a_path_is_named_and_never_passed_over(self, tmp_path: Path) -> None:
        source = LocalStore(tmp_path)
        add_checkpoint(source, 3)
        source.write(paths.manifest(CheckpointId(5)), [b"{"])
        store = MemoryStore()
        with pytest.raises(
            RestoreError, match=r"the newest checkpoint of .*, 5, is damaged: .*checkpoints delete DIR 5"
        ):
            import_checkpoint(store, str(tmp_path))
        assert store.blobs == {}

    @pytest.mark.parametrize("is_tombstone", [False, True])
    def test_a_path_without_a_completed_checkpoint_is_refused(self, tmp_path: Path, is_tombstone: bool) -> None:
        if is_tombstone:
            LocalStore(tmp_path).create(paths.manifest(ONE), encode_tombstone(Tombstone(ONE, Generation(1))))
        with pytest.raises(RestoreError, match="no checkpoint or savepoint found at"):
            import_checkpoint(MemoryStore(), str(tmp_path))


class TestBatchIds:
    def test_a_copy_is_published_under_the_batch_id_of_the_original(self) -> None:
        store = MemoryStore()
        add_checkpoint(store, 1)
        imported = [read_manifest(store, import_checkpoint(store, number)) for number in (1, 2)]
        assert [(each.checkpoint, each.batch, each.batch_offset) for each in imported] == [(2, 1, 0), (3, 1, 0)]

    def test_batch_ids_continue_behind_those_of_another_directory(self, tmp_path: Path) -> None:
        source, store = LocalStore(tmp_path), MemoryStore()
        add_checkpoint(source, 17)
        imported = read_manifest(store, import_checkpoint(store, str(tmp_path)))
        assert (imported.checkpoint, imported.batch) == (1, 17)
        assert replace(imported, checkpoint=TWO, published_as=CheckpointId(0)).batch == 18

    def test_batch_ids_never_fall_behind_those_that_the_directory_has_used(self, tmp_path: Path) -> None:
        source, store = LocalStore(tmp_path), MemoryStore()
        add_checkpoint(store, 1)
        add_checkpoint(source, 17)
        import_checkpoint(store, str(tmp_path))
        # Of the time before: no batch id that was used since may come again.
        imported = read_manifest(store, import_checkpoint(store, 1))
        assert (imported.checkpoint, imported.batch, imported.batch_offset) == (3, 1, 15)


class Counted(SinkWriter):
    """Hands over how many records it was given."""

    def __init__(self) -> None:
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows

    def prepare(self) -> Prepared:
        rows, self._rows = self._rows, 0
        return lambda: [str(rows).encode()] if rows else []


class ByBatchId(Sink, Committer):
    """Publishes a batch unless one of its id was published, as Spark asks of its sinks."""

    published: dict[int, Sequence[bytes]]

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return Counted()

    def committer(self) -> Committer:
        return self

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self.published.setdefault(int(checkpoint), committables)

    @property
    def rows(self) -> int:
        return sum(int(each) for batch in self.published.values() for each in batch)


class Killed(BaseException):
    pass


class TestAfterACrashBetweenCommitAndMarker:
    """2,000 records through a sink that is idempotent by batch id; the driver dies before the first marker is there."""

    ROWS = 2_000

    def crashed(self, store: Store) -> ByBatchId:
        sink = ByBatchId()
        sink.published = {}
        create = store.create

        def die(path: str, data: Data) -> bool:
            if path.endswith("committed.json"):
                raise StorageError("the driver dies here, between commit and marker")
            return create(path, data)

        def until() -> bool:
            if sink.published:
                raise Killed
            return False

        store.create = die  # type: ignore[method-assign]
        with pytest.raises(Killed):
            run(self.pipeline(sink), store=store, until=until, restarts=0)
        store.create = create  # type: ignore[method-assign]
        assert 0 < sink.rows < self.ROWS
        return sink

    def pipeline(self, sink: ByBatchId) -> Pipeline:
        pipeline = Pipeline("p")
        source = ListSource([{"n": number} for number in range(self.ROWS)], batch_rows=10)
        pipeline.source(source, name="read").rebalance().map(lambda batch: batch, name="m").sink(sink, name="out")
        return pipeline

    def test_a_restore_by_id_publishes_nothing_twice(self) -> None:
        store = MemoryStore()
        sink = self.crashed(store)
        newest = newest_completed(store)
        assert newest is not None
        import_checkpoint(store, newest)
        run(self.pipeline(sink), store=store)
        assert sink.rows == self.ROWS

    def test_a_restore_into_another_directory_publishes_everything_once(self, tmp_path: Path) -> None:
        # Batch ids that began at 1 again would be those of batches that the sink knows.
        old, new = LocalStore(tmp_path), MemoryStore()
        run(self.pipeline(sink := self.crashed(old)), store=old, until=lambda: len(sink.published) > 3)
        before = set(sink.published)
        import_checkpoint(new, str(tmp_path))
        run(self.pipeline(sink), store=new)
        assert sink.rows == self.ROWS
        assert min(set(sink.published) - before) > max(before)

    def test_a_directory_with_checkpoints_of_its_own_goes_on_behind_both(self, tmp_path: Path) -> None:
        old, new = LocalStore(tmp_path), MemoryStore()
        sink = self.crashed(old)
        other = self.crashed(new)
        assert other.rows
        import_checkpoint(new, str(tmp_path))
        run(self.pipeline(sink), store=new)
        assert sink.rows == self.ROWS
