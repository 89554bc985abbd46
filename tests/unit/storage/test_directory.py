"""What lies in a checkpoint directory, as facts, however damaged it is."""

from __future__ import annotations

import pytest

from penstock.driver.attempts.attempt_store import AttemptStore
from penstock.driver.checkpoints.pruning import Pruner, prune
from penstock.errors import CorruptBlob, StorageError
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId
from penstock.mailbox.timers import Timers
from penstock.protocol.manifest import (
    Manifest,
    PipelineShape,
    Segment,
    StateKind,
    StateSegment,
    SubtaskReport,
)
from penstock.protocol.manifest.codec import encode_manifest, encode_reservation, encode_tombstone
from penstock.protocol.ownership import Listing, Outcome, Reservation, Tombstone
from penstock.protocol.retention import Blob, CompletedCheckpoint, Contents, RetentionBound
from penstock.storage import paths
from penstock.storage.directory import Directory
from penstock.storage.memory import MemoryStore
from tests.unit.mailbox.fake_ports import ManualBackground, ManualClock

MAP = SubtaskId(OperatorName("map"), 0)


def blob_of(number: int, generation: int = 1) -> str:
    return paths.blob(CheckpointId(number), Generation(generation), MAP, paths.BlobContent.STATE)


def put(
    store: MemoryStore,
    number: int,
    generation: int = 1,
    *,
    is_savepoint: bool = False,
    is_final: bool = False,
    blob: str | None = None,
) -> Manifest:
    """A reservation, a blob and a manifest that names it."""
    path = blob or blob_of(number, generation)
    state = StateSegment(MAP.chain, "seen", StateKind.LIST, Segment(3, 0x352441C2, path), 1)
    manifest = Manifest(
        CheckpointId(number),
        Generation(generation),
        PipelineShape("orders", 128),
        (SubtaskReport(MAP, states=(state,)),),
        is_savepoint=is_savepoint,
        is_final=is_final,
    )
    reserve(store, number, generation)
    store.write(path, [b"abc"])
    store.create(paths.manifest(manifest.checkpoint), encode_manifest(manifest))
    return manifest


def reserve(store: MemoryStore, number: int, generation: int = 1) -> None:
    reservation = Reservation(CheckpointId(number), Generation(generation))
    store.create(paths.reserved(reservation.checkpoint), encode_reservation(reservation))


def tombstone(store: MemoryStore, number: int, generation: int = 1) -> None:
    reserve(store, number, generation)
    store.create(
        paths.manifest(CheckpointId(number)), encode_tombstone(Tombstone(CheckpointId(number), Generation(generation)))
    )


class TestListing:
    def test_an_empty_directory_has_nothing(self) -> None:
        directory = Directory(MemoryStore())
        assert directory.listing() == Listing()
        assert directory.contents() == Contents((), (), Listing(), frozenset())

    def test_reservations_and_outcomes_are_listed_with_their_generations(self) -> None:
        store = MemoryStore()
        put(store, 1)
        tombstone(store, 2)
        reserve(store, 3, 2)
        assert Directory(store).listing() == Listing(
            (
                Reservation(CheckpointId(1), Generation(1)),
                Reservation(CheckpointId(2), Generation(1)),
                Reservation(CheckpointId(3), Generation(2)),
            ),
            (Outcome(CheckpointId(1), Generation(1)), Outcome(CheckpointId(2), Generation(1), is_tombstone=True)),
        )

    def test_a_damaged_outcome_still_spends_its_id(self) -> None:
        store = MemoryStore()
        put(store, 1)
        store.blobs[paths.manifest(CheckpointId(1))] = b"not a manifest"
        assert Directory(store).listing().outcomes == (Outcome(CheckpointId(1), Generation(0)),)

    @pytest.mark.parametrize(
        "damaged",
        [
            b"{",
            encode_reservation(Reservation(CheckpointId(18), Generation(1), 16)),
            encode_reservation(Reservation(CheckpointId(18), Generation(1), 0)),
            encode_reservation(Reservation(CheckpointId(0), Generation(1))),
        ],
    )
    def test_a_damaged_reservation_spends_all_ids_that_it_may_have_given_out(self, damaged: bytes) -> None:
        store = MemoryStore()
        store.blobs[paths.reserved(CheckpointId(18))] = damaged
        listing = Directory(store).listing()
        assert listing == Listing((Reservation(CheckpointId(18), Generation(0), 15),))
        assert listing.newest_checkpoint == CheckpointId(32)

    def test_files_that_are_not_ours_are_left_alone(self) -> None:
        store = MemoryStore()
        for path in ("checkpoints/readme.txt", "checkpoints/00000000000000000001/notes.txt", "other/file"):
            store.write(path, [b"?"])
        assert Directory(store).listing() == Listing()

    def test_ids_are_in_rising_order(self) -> None:
        store = MemoryStore()
        for number in (10, 9, 100):
            put(store, number)
        assert Directory(store).ids(paths.PathKind.MANIFEST) == [9, 10, 100]

    def test_what_was_read_once_is_remembered_but_not_whether_it_is_still_there(self) -> None:
        store = MemoryStore()
        put(store, 1)
        directory = Directory(store)
        before = directory.listing()
        store.blobs[paths.manifest(CheckpointId(1))] = b"damaged meanwhile"
        assert directory.listing() == before
        store.delete(paths.manifest(CheckpointId(1)))
        assert directory.listing().outcomes == ()

    def test_a_damaged_outcome_is_read_again_because_the_fault_may_pass(self) -> None:
        store = MemoryStore()
        put(store, 1)
        whole = store.blobs[paths.manifest(CheckpointId(1))]
        directory = Directory(store)
        store.blobs[paths.manifest(CheckpointId(1))] = b"damaged"
        assert directory.listing().outcomes[0].generation == 0
        store.blobs[paths.manifest(CheckpointId(1))] = whole
        assert directory.listing().outcomes[0].generation == 1

    def test_what_is_gone_is_forgotten_so_that_what_takes_its_place_is_read(self) -> None:
        store = MemoryStore()
        put(store, 1)
        directory = Directory(store)
        directory.listing()
        store.delete(paths.manifest(CheckpointId(1)), paths.reserved(CheckpointId(1)))
        assert directory.listing() == Listing()
        tombstone(store, 1, 3)
        assert directory.listing() == Listing(
            (Reservation(CheckpointId(1), Generation(3)),),
            (Outcome(CheckpointId(1), Generation(3), is_tombstone=True),),
        )


class Vanishing(MemoryStore):
    """Between the listing and the reading, `gone` is deleted; `broken` cannot be read."""

    gone: str | None = None
    broken: str | None = None

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path == self.gone:
            self.delete(path)
        if path == self.broken:
            raise StorageError(f"cannot read {path}")
        return super().read(path, offset, length)


class Recording(MemoryStore):
    """Notes what is deleted in one call, and what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.deletions: list[tuple[str, ...]] = []
        self.reads: list[str] = []

    def delete(self, *doomed: str) -> None:
        self.deletions.append(doomed)
        super().delete(*doomed)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads.append(path)
        return super().read(path, offset, length)


class TestReading:
    @pytest.mark.parametrize("path", [paths.reserved, paths.manifest])
    def test_what_is_deleted_between_listing_and_reading_is_not_there(self, path: object) -> None:
        store = Vanishing()
        put(store, 1)
        store.gone = path(CheckpointId(1))  # type: ignore[operator]
        listing = Directory(store).listing()
        assert len(listing.reservations) + len(listing.outcomes) == 1

    def test_a_reservation_that_is_there_and_cannot_be_read_is_an_error(self) -> None:
        # I6: whoever overlooked it would use the id a second time.
        store = Vanishing()
        reserve(store, 1)
        store.broken = paths.reserved(CheckpointId(1))
        with pytest.raises(StorageError, match="cannot read"):
            Directory(store).listing()

    def test_an_outcome_that_is_there_and_cannot_be_read_is_an_error_and_not_damage(self) -> None:
        store = Vanishing()
        put(store, 1)
        store.broken = paths.manifest(CheckpointId(1))
        for read in (Directory(store).listing, Directory(store).contents):
            with pytest.raises(StorageError, match="cannot read"):
                read()

    def test_retention_deletes_nothing_while_a_manifest_cannot_be_read(self) -> None:
        # Only the second checkpoint still refers to the blob of the first: it must not go because of a timeout.
        store = Vanishing()
        put(store, 1)
        put(store, 2, blob=blob_of(1))
        put(store, 3)
        store.delete(paths.manifest(CheckpointId(1)))
        store.broken = paths.manifest(CheckpointId(2))
        before = dict(store.blobs)
        with pytest.raises(StorageError, match="cannot read"):
            prune(store, Directory(store), RetentionBound(Generation(1), CheckpointId(3), 2, frozenset()))
        assert store.blobs == before

    def test_the_outcome_itself_is_read_or_an_error_or_gone(self) -> None:
        store = MemoryStore()
        manifest = put(store, 1)
        tombstone(store, 2, 5)
        directory = Directory(store)
        assert directory.manifest_or_tombstone(CheckpointId(1)) == manifest
        assert directory.manifest_or_tombstone(CheckpointId(2)) == Tombstone(CheckpointId(2), Generation(5))
        assert directory.manifest_or_tombstone(CheckpointId(3)) is None
        store.blobs[paths.manifest(CheckpointId(1))] = b"damaged"
        with pytest.raises(CorruptBlob):
            directory.manifest_or_tombstone(CheckpointId(1))


class TestRetention:
    def test_contents_are_what_retention_must_know(self) -> None:
        store = MemoryStore()
        put(store, 1)
        put(store, 2, is_savepoint=True, blob=blob_of(1))
        tombstone(store, 3)
        store.write(blob_of(3, 2), [b"left behind"])
        store.create(paths.committed(CheckpointId(1)), b"{}")
        contents = Directory(store).contents()
        shared = frozenset({blob_of(1)})
        assert contents.completed == (
            CompletedCheckpoint(CheckpointId(1), shared),
            CompletedCheckpoint(CheckpointId(2), shared, is_savepoint=True),
        )
        assert contents.blobs == (
            Blob(blob_of(1), CheckpointId(1), Generation(1)),
            Blob(blob_of(3, 2), CheckpointId(3), Generation(2)),
        )
        assert contents.committed == frozenset({CheckpointId(1)})

    def test_savepoints_of_stops_go_after_a_while_and_no_other_ones(self) -> None:
        store = MemoryStore()
        for number in range(1, 6):
            put(store, number, is_savepoint=True, is_final=True)
        for number in range(6, 11):
            put(store, number, is_savepoint=True)
        put(store, 11, is_final=True)
        prune(store, Directory(store), RetentionBound(Generation(1), CheckpointId(11), 1))
        assert Directory(store).ids(paths.PathKind.MANIFEST) == [3, 4, 5, 6, 7, 8, 9, 10, 11]

    def test_what_a_damaged_checkpoint_refers_to_is_unknown_and_not_nothing(self) -> None:
        store = MemoryStore()
        put(store, 1)
        store.blobs[paths.manifest(CheckpointId(1))] = b"damaged"
        assert Directory(store).contents().completed == (CompletedCheckpoint(CheckpointId(1), None),)

    def test_older_checkpoints_go_and_the_newest_can_still_be_read(self) -> None:
        store = MemoryStore()
        for number in range(1, 5):
            put(store, number)
            store.create(paths.committed(CheckpointId(number)), b"{}")
        directory = Directory(store)
        bound = RetentionBound(Generation(1), CheckpointId(4), 2, frozenset())
        assert prune(store, directory, bound) > 0
        assert directory.ids(paths.PathKind.MANIFEST) == [3, 4]
        assert {path for path in store.blobs if "/blobs/" in path} == {blob_of(3), blob_of(4)}
        assert prune(store, directory, bound) == 0

    def test_what_was_just_written_is_not_read(self) -> None:
        store = Recording()
        written, other = put(store, 1), put(store, 2)
        directory = Directory(store)
        directory.remember(written)
        assert directory.contents().completed == Directory(store).contents().completed
        manifests = [path for path in store.reads if path.endswith("manifest.json")]
        assert manifests.count(paths.manifest(written.checkpoint)) == 1
        assert manifests.count(paths.manifest(other.checkpoint)) == 2

    def test_each_kind_of_file_goes_in_one_call_and_durably_before_the_next(self) -> None:
        # I3: a manifest that is still there never names a blob that is gone.
        store = Recording()
        for number in range(1, 5):
            put(store, number)
            store.create(paths.committed(CheckpointId(number)), b"{}")
        bound = RetentionBound(Generation(1), CheckpointId(4), 2, first=CheckpointId(1))
        assert prune(store, Directory(store), bound) == 8
        first, second, third = CheckpointId(1), CheckpointId(2), CheckpointId(3)
        assert store.deletions == [
            (paths.manifest(first), paths.manifest(second)),
            (paths.committed(first), paths.committed(second)),
            (blob_of(1), blob_of(2)),
            (paths.reserved(second), paths.reserved(third)),
        ]

    def test_licences_go_one_after_the_other_and_void_markers_after_the_last(self) -> None:
        # I6: whoever finds the place of a void marker free, or that of his next block, finds his licence gone.
        store = Recording()
        for number in (2, 3, 4):
            reserve(store, number, generation=number)
        for number in (2, 3):
            tombstone = Tombstone(CheckpointId(number), Generation(4))
            store.create(paths.manifest(CheckpointId(number)), encode_tombstone(tombstone))
        put(store, 4, 4)
        bound = RetentionBound(Generation(4), CheckpointId(4), 1, first=CheckpointId(4))
        assert prune(store, Directory(store), bound) == 4
        second, third = CheckpointId(2), CheckpointId(3)
        assert store.deletions == [
            (paths.reserved(second),),
            (paths.reserved(third),),
            (paths.manifest(second), paths.manifest(third)),
        ]
        assert Directory(store).ids(paths.PathKind.RESERVED) == [4]

    def test_no_manifest_is_read_twice_for_retention_unless_it_could_not_be_read(self) -> None:
        store = Recording()
        for number in (1, 2, 3):
            put(store, number)
        broken = paths.manifest(CheckpointId(2))
        whole, store.blobs[broken] = store.blobs[broken], b"damaged"
        directory = Directory(store)
        directory.contents()
        store.reads.clear()
        assert directory.contents().completed[1] == CompletedCheckpoint(CheckpointId(2), None)
        assert set(store.reads) == {broken}
        store.blobs[broken] = whole
        assert directory.contents().completed[1].blobs == frozenset({blob_of(2)})
        store.reads.clear()
        put(store, 4)
        directory.contents()
        assert store.reads == [paths.manifest(CheckpointId(4)), paths.reserved(CheckpointId(4))]

    def test_a_driver_that_lost_the_directory_deletes_nothing(self) -> None:
        # I6: the newer generation may be restoring from just these.
        store = MemoryStore()
        for number in range(1, 5):
            put(store, number)
        reserve(store, 5, generation=2)
        before = dict(store.blobs)
        assert prune(store, Directory(store), RetentionBound(Generation(1), CheckpointId(4), 1, frozenset())) == 0
        assert store.blobs == before


class TestPruner:
    def setup_method(self) -> None:
        self.background = ManualBackground()
        self.clock = ManualClock()
        self.timers = Timers(self.clock)

    def pruner(self, store: MemoryStore) -> Pruner:
        return Pruner(store, Directory(store), self.background, self.timers)

    def pause(self) -> None:
        self.clock.us += 500_000
        self.timers.fire()

    def test_one_is_under_way_at_a_time_and_only_the_newest_of_those_that_wait_follows_after_a_pause(
        self,
    ) -> None:
        store, background = Recording(), self.background
        for number in range(1, 6):
            put(store, number)
        pruner = self.pruner(store)
        for newest in (2, 3, 4, 5):
            pruner.ask(RetentionBound(Generation(1), CheckpointId(newest), 1))
        assert len(background.jobs) == 1
        background.run_one()
        assert Directory(store).ids(paths.PathKind.MANIFEST) == [2, 3, 4, 5]
        assert not background.jobs
        self.pause()
        assert len(background.jobs) == 1
        background.run_one()
        assert Directory(store).ids(paths.PathKind.MANIFEST) == [5]
        self.pause()
        assert not background.jobs
        pruner.ask(RetentionBound(Generation(1), CheckpointId(5), 1))
        assert len(background.jobs) == 1

    def test_one_that_fails_is_said_and_not_every_half_second(self, caplog: pytest.LogCaptureFixture) -> None:
        store, background = Vanishing(), self.background
        put(store, 1)
        put(store, 2)
        pruner = self.pruner(store)
        store.broken = paths.reserved(CheckpointId(1))
        for _ in range(3):
            pruner.ask(RetentionBound(Generation(1), CheckpointId(2), 1))
            background.run_one()
            self.pause()
        (said,) = [record.getMessage() for record in caplog.records]
        assert "old checkpoints could not be deleted from" in said and "use space" in said

    def test_one_that_the_end_of_its_attempt_interrupts_is_no_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        store = AttemptStore(MemoryStore())
        pruner = Pruner(store, Directory(store), self.background, self.timers)
        pruner.sweep(CheckpointId(1))
        pruner.ask(RetentionBound(Generation(1), CheckpointId(2), 1))
        pruner.stop()
        store.close()
        self.background.run_one()
        self.background.run_one()
        assert not caplog.records

    def test_temporary_files_that_cannot_be_removed_are_said(self, caplog: pytest.LogCaptureFixture) -> None:
        class Stuck(MemoryStore):
            def sweep_temporary(self, age_s: float = 0.0, is_over: object = None) -> int:
                raise StorageError("the disk is read-only")

        self.pruner(Stuck()).sweep(CheckpointId(1))
        self.background.run_one()
        (said,) = [record.getMessage() for record in caplog.records]
        assert "temporary files" in said and "the disk is read-only" in said

    def test_one_that_fails_is_made_up_for_by_the_next(self) -> None:
        store, background = Vanishing(), self.background
        for number in (1, 2):
            put(store, number)
        pruner = self.pruner(store)
        store.broken = paths.reserved(CheckpointId(1))
        for newest in (1, 2):
            pruner.ask(RetentionBound(Generation(1), CheckpointId(newest), 1))
        background.run_one()
        store.broken = None
        self.pause()
        background.run_one()
        assert Directory(store).ids(paths.PathKind.MANIFEST) == [2]

    def test_at_the_end_of_the_pipeline_what_waits_for_the_pause_is_done_at_once(self) -> None:
        store, background = MemoryStore(), self.background
        for number in range(1, 4):
            put(store, number)
        pruner = self.pruner(store)
        pruner.ask(RetentionBound(Generation(1), CheckpointId(2), 1))
        background.run_one()
        pruner.ask(RetentionBound(Generation(1), CheckpointId(3), 1))
        assert not background.jobs
        pruner.finish()
        background.run_one()
        assert Directory(store).ids(paths.PathKind.MANIFEST) == [3]

    def test_at_the_end_of_the_pipeline_the_pruning_under_way_also_does_the_last_one(self) -> None:
        # Nobody reads the mailbox of a driver that has ended: the thread goes on by itself.
        store, background = MemoryStore(), self.background
        for number in range(1, 4):
            put(store, number)
        pruner = self.pruner(store)
        for newest in (2, 3):
            pruner.ask(RetentionBound(Generation(1), CheckpointId(newest), 1))
        pruner.finish()
        pruner.stop()
        background.run_one()
        assert Directory(store).ids(paths.PathKind.MANIFEST) == [3]
        assert not background.jobs

    def test_at_the_end_of_the_pipeline_a_pruning_that_is_through_need_not_have_said_so(self) -> None:
        store, background = MemoryStore(), self.background
        for number in range(1, 4):
            put(store, number)
        pruner = self.pruner(store)
        for newest in (2, 3):
            pruner.ask(RetentionBound(Generation(1), CheckpointId(newest), 1))
        work, _ = background.jobs.popleft()
        work()
        pruner.finish()
        pruner.stop()
        background.run_one()
        assert Directory(store).ids(paths.PathKind.MANIFEST) == [3]

    def test_when_the_generation_is_over_none_is_begun(self) -> None:
        background = self.background
        pruner = self.pruner(MemoryStore())
        for newest in (1, 2):
            pruner.ask(RetentionBound(Generation(1), CheckpointId(newest), 1))
        pruner.stop()
        background.run_one()
        self.pause()
        assert not background.jobs
