"""Taking over a checkpoint directory: one owner at a time, ids that only grow, and the newest valid checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.driver.attempts.takeover import Ownership, RestoreOptions, take_over
from penstock.errors import FencedError, IncompatibleCheckpoint, NoReadableCheckpoint, StorageError
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId
from penstock.protocol.coordinator.trigger import decide_next_block
from penstock.protocol.manifest import (
    Committable,
    Manifest,
    OperatorShape,
    PipelineShape,
    StateKind,
    SubtaskReport,
)
from penstock.protocol.manifest.codec import decode_manifest_or_tombstone, encode_manifest, encode_reservation
from penstock.protocol.ownership import Reservation, Tombstone
from penstock.protocol.recovery import FallBack
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Data
from penstock.worker.checkpointing.snapshot import write_state
from penstock.worker.context import Piece
from tests.unit.mailbox.fake_ports import rows

MAP = SubtaskId(OperatorName("map"), 0)
SHAPE = PipelineShape("orders", 128, (OperatorShape(MAP.chain, MAP.chain, 1),))
OUTPUT = (Committable(OperatorName("map"), 0, b"file"),)


def complete(
    store: MemoryStore, ownership: Ownership, number: int, committables: tuple[Committable, ...] = ()
) -> Manifest:
    """A checkpoint of this generation, with a blob."""
    checkpoint = CheckpointId(number)
    reservation = Reservation(checkpoint, ownership.generation)
    store.create(paths.reserved(checkpoint), encode_reservation(reservation))
    pieces = [Piece(MAP.chain, "seen", StateKind.LIST, [rows(number)])]
    states = write_state(store, checkpoint, ownership.generation, MAP, lambda: pieces, inline_bytes_max=0)
    report = SubtaskReport(MAP, states=states, committables=committables)
    manifest = Manifest(
        checkpoint, ownership.generation, SHAPE, (report,), first=ownership.first, older=ownership.older
    )
    assert store.create(paths.manifest(checkpoint), encode_manifest(manifest))
    return manifest


def own(
    store: MemoryStore, *, token: str = "", has_sinks: bool = True, shape: PipelineShape = SHAPE, **options: object
) -> Ownership:
    return take_over(
        store,
        shape,
        token=token,
        has_committing_sinks=has_sinks,
        options=RestoreOptions(**options),  # type: ignore[arg-type]
    )


def outcome(store: MemoryStore, number: int) -> object:
    return decode_manifest_or_tombstone(store.blobs[paths.manifest(CheckpointId(number))])


class TestClaiming:
    def test_the_first_driver_starts_from_nothing_with_the_first_id(self) -> None:
        assert own(MemoryStore()) == Ownership(Generation(1), CheckpointId(1))

    def test_every_start_has_a_newer_generation_and_newer_ids(self) -> None:
        # I5: a coordinator that starts again must not begin with id 1.
        store = MemoryStore()
        owned = [own(store) for _ in range(4)]
        assert [(each.generation, each.first) for each in owned] == [(1, 1), (2, 2), (3, 3), (4, 4)]

    def test_what_the_former_owner_left_open_is_void_and_can_never_complete(self) -> None:
        store = MemoryStore()
        first = own(store)
        store.create(
            paths.reserved(CheckpointId(2)), encode_reservation(Reservation(CheckpointId(2), first.generation))
        )
        second = own(store)
        assert second.first == CheckpointId(3)
        assert outcome(store, 1) == Tombstone(CheckpointId(1), second.generation)
        assert outcome(store, 2) == Tombstone(CheckpointId(2), second.generation)
        late = encode_manifest(Manifest(CheckpointId(2), first.generation, SHAPE))
        assert not store.create(paths.manifest(CheckpointId(2)), late)

    def test_every_id_of_a_half_used_block_is_void_and_the_next_one_is_ours(self) -> None:
        store = MemoryStore()
        first = own(store)
        block = Reservation(CheckpointId(2), first.generation, 4)
        store.create(paths.reserved(block.checkpoint), encode_reservation(block))
        used = Manifest(CheckpointId(3), first.generation, SHAPE)
        store.create(paths.manifest(used.checkpoint), encode_manifest(used))
        second = own(store)
        assert (second.first, second.manifest) == (CheckpointId(6), used)
        assert [number for number in range(1, 6) if isinstance(outcome(store, number), Tombstone)] == [1, 2, 4, 5]
        # The former owner wakes up: the rest of its block is spent, and so is the first id of the next one.
        late = encode_manifest(Manifest(CheckpointId(4), first.generation, SHAPE))
        assert not store.create(paths.manifest(CheckpointId(4)), late)
        following = Reservation(CheckpointId(6), first.generation, 8)
        assert not store.create(paths.reserved(following.checkpoint), encode_reservation(following))

    def test_whoever_owned_a_damaged_reservation_runs_into_the_takeover_whatever_its_size_was(self) -> None:
        for count in range(1, 16):
            store = MemoryStore()
            former = own(store).generation
            block = Reservation(CheckpointId(2), former, count)
            store.blobs[paths.reserved(block.checkpoint)] = b""
            assert own(store).first == CheckpointId(17)
            while block.last < 16:
                block = decide_next_block(block, lasted_ms=0)
                is_free = store.create(paths.reserved(block.checkpoint), encode_reservation(block))
                assert is_free == (block.checkpoint < 17)
                assert all(paths.manifest(each) in store.blobs for each in block.ids if each < 17)

    def test_a_manifest_that_was_written_a_moment_before_is_not_lost(self) -> None:
        store = MemoryStore()
        manifest = complete(store, own(store), 1)
        assert own(store).manifest == manifest

    def test_somebody_who_keeps_winning_fences_us(self) -> None:
        class Contested(MemoryStore):
            def create(self, path: str, data: Data) -> bool:
                return False if path.endswith("reserved.json") else super().create(path, data)

        with pytest.raises(FencedError, match="took this checkpoint directory over first, 16 times in a row"):
            own(Contested())

    def test_a_lost_race_is_tried_again(self) -> None:
        class Raced(MemoryStore):
            races = 2

            def create(self, path: str, data: Data) -> bool:
                if path.endswith("reserved.json") and self.races:
                    self.races -= 1
                    checkpoint = paths.checkpoint_of(path)
                    assert checkpoint is not None
                    other = Reservation(checkpoint, Generation(70 + self.races))
                    super().create(path, encode_reservation(other))
                    return False
                return super().create(path, data)

        assert own(Raced()) == Ownership(Generation(72), CheckpointId(3))

    def test_an_id_below_one_that_is_in_use_is_not_ours_although_we_created_it(self) -> None:
        class Overtaken(MemoryStore):
            """While we looked the other way, ids up to 9 were given out, and the first ones were forgotten."""

            is_first = True

            def create(self, path: str, data: Data) -> bool:
                if path.endswith("reserved.json") and self.is_first:
                    self.is_first = False
                    other = Reservation(CheckpointId(9), Generation(5))
                    super().create(paths.reserved(CheckpointId(9)), encode_reservation(other))
                return super().create(path, data)

        assert own(Overtaken()) == Ownership(Generation(6), CheckpointId(10))

    def test_a_driver_that_restarts_takes_its_own_directory_over_again(self) -> None:
        store = MemoryStore()
        former = own(store, token="one").generation
        assert own(store, token="one").generation == former + 1

    @pytest.mark.parametrize("is_error", [True, False])
    def test_a_reservation_is_known_by_its_content_if_the_reply_to_its_creation_was_lost(self, is_error: bool) -> None:
        # "No" about a file of one's own: the request was sent a second time because the first reply was lost.
        store = Deaf(lambda path: path.endswith("reserved.json"), is_error)
        ownership = own(store, token="one")
        assert (ownership.generation, ownership.first) == (1, 1)
        assert len(store.lost) == 1

    def test_a_takeover_that_failed_after_its_reservation_does_not_fence_the_next_try_of_the_same_driver(self) -> None:
        class Dies(MemoryStore):
            is_down = False

            def create(self, path: str, data: Data) -> bool:
                super().create(path, data)
                raise StorageError("the connection was reset")

            def list(self, prefix: str) -> list[str]:
                if self.blobs and self.is_down:
                    raise StorageError("gone")
                return super().list(prefix)

            def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
                if self.is_down:
                    raise StorageError("gone")
                return super().read(path, offset, length)

        down, store = Dies(), MemoryStore()
        own(store, token="one")
        down.blobs.update(store.blobs)
        down.is_down = True
        with pytest.raises(StorageError, match="gone"):
            own(down, token="one")
        down.is_down = False
        assert own(down, token="one").generation == 2

    def test_void_markers_whose_replies_are_lost_count(self) -> None:
        store = Deaf(lambda path: path.endswith("manifest.json"), is_error=True)
        own(store)
        second = own(store)
        assert len(store.lost) == 1
        assert outcome(store, 1) == Tombstone(CheckpointId(1), second.generation)

    def test_nor_does_it_after_the_other_one_has_removed_every_trace_of_it(self) -> None:
        store = MemoryStore()
        first = take_over(store, SHAPE, token="one", has_committing_sinks=False)
        take_over(store, SHAPE, token="two", has_committing_sinks=False)
        store.delete(paths.reserved(first.first))
        with pytest.raises(FencedError, match="of another driver has since taken this checkpoint directory over"):
            take_over(store, SHAPE, token="one", has_owned=True, has_committing_sinks=False)

    def test_a_driver_that_restarts_does_not_take_back_what_another_one_owns(self) -> None:
        store = MemoryStore()
        own(store, token="one")
        own(store, token="other")
        before = dict(store.blobs)
        with pytest.raises(
            FencedError, match="generation 2 of another driver has since taken this checkpoint directory"
        ):
            own(store, token="one")
        assert store.blobs == before

    def test_nor_does_one_that_has_the_generation_of_the_owner_by_accident(self) -> None:
        # Its reservation was in vain: while it slept, a block was given out up to id 9, and then somebody took over.
        store = MemoryStore()
        for number, token in ((3, "one"), (10, "other")):
            made = Reservation(CheckpointId(number), Generation(2), token=token)
            store.create(paths.reserved(made.checkpoint), encode_reservation(made))
        with pytest.raises(FencedError, match="of another driver"):
            own(store, token="one")


class Deaf(MemoryStore):
    """The reply to the first creation of certain files is lost: it raises, or says that the file was there."""

    def __init__(self, is_meant: Callable[[str], bool], is_error: bool) -> None:
        super().__init__()
        self.is_meant = is_meant
        self.is_error = is_error
        self.lost: list[str] = []

    def create(self, path: str, data: Data) -> bool:
        created = super().create(path, data)
        if self.lost or not created or not self.is_meant(path):
            return created
        self.lost.append(path)
        if self.is_error:
            raise StorageError(f"cannot create {path!r}: the connection was reset")
        return False


class Hiccup(MemoryStore):
    """Certain reads fail, as long as it is told to."""

    is_meant: Callable[[str], bool] = staticmethod(lambda path: False)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if self.is_meant(path):
            raise StorageError(f"cannot read {path!r}: the read timed out")
        return super().read(path, offset, length)


class TestStrays:
    """A manifest of a generation that is gone takes effect after its tombstone was deleted."""

    @staticmethod
    def with_stray() -> tuple[MemoryStore, Ownership, Manifest]:
        """The owner, which has completed checkpoint 4, and a manifest of 2 that came after it. 1 is the only other."""
        store = MemoryStore()
        former = own(store)
        complete(store, former, 1)
        stray = complete(store, former, 2)
        late = store.blobs[paths.manifest(CheckpointId(2))]
        store.delete(paths.manifest(CheckpointId(2)))
        owner = own(store)
        assert (owner.first, owner.older) == (3, (1,))
        complete(store, owner, 4)
        store.delete(paths.manifest(CheckpointId(2)))
        assert store.create(paths.manifest(CheckpointId(2)), late)
        return store, owner, stray

    def test_a_stray_is_not_what_is_gone_back_to(self) -> None:
        store, _, _ = self.with_stray()
        (blob,) = [path for path in store.list(paths.blob_prefix(CheckpointId(4)))]
        store.delete(blob)
        found = own(store)
        assert found.manifest is not None and found.manifest.checkpoint == 1
        assert [each.checkpoint for each in found.skipped] == [4]

    def test_nor_does_one_whose_output_was_never_published_end_the_start(self) -> None:
        store, _, stray = self.with_stray()
        output = replace(stray, reports=(replace(stray.reports[0], committables=OUTPUT),))
        store.blobs[paths.manifest(CheckpointId(2))] = encode_manifest(output)
        for number in (2, 4):
            store.delete(*store.list(paths.blob_prefix(CheckpointId(number))))
        found = own(store)
        assert found.manifest is not None and found.manifest.checkpoint == 1

    def test_a_stray_stays_one_for_all_generations(self) -> None:
        store, _, _ = self.with_stray()
        third = own(store)
        assert third.older == (1, 4)
        complete(store, third, 6)
        assert own(store).older == (1, 4, 6)

    def test_a_checkpoint_that_cannot_be_read_is_no_stray(self) -> None:
        store = MemoryStore()
        complete(store, own(store), 1)
        store.blobs[paths.manifest(CheckpointId(1))] = b"{"
        newest = complete(store, Ownership(Generation(1), CheckpointId(1)), 2)
        assert newest.first == 1
        assert own(store).older == (1, 2)

    def test_a_manifest_of_an_earlier_version_says_nothing_about_others(self) -> None:
        store, _, _ = self.with_stray()
        for number in (1, 4):
            path = paths.manifest(CheckpointId(number))
            known = decode_manifest_or_tombstone(store.blobs[path])
            assert isinstance(known, Manifest)
            store.blobs[path] = encode_manifest(replace(known, first=CheckpointId(0), older=()))
        assert own(store).older == (1, 2, 4)


class TestRestoring:
    def test_the_newest_valid_checkpoint_is_restored(self) -> None:
        store = MemoryStore()
        first = own(store)
        complete(store, first, 1)
        newest = complete(store, first, 2)
        ownership = own(store)
        assert (ownership.manifest, ownership.skipped, ownership.first) == (newest, (), CheckpointId(3))

    def test_its_output_is_published_again_unless_a_marker_says_it_was(self) -> None:
        store = MemoryStore()
        complete(store, own(store), 1, OUTPUT)
        recommit = own(store).recommit
        assert recommit is not None
        assert (recommit.checkpoint, recommit.generation, recommit.committables) == (1, 2, OUTPUT)
        store.create(paths.committed(CheckpointId(1)), b"{}")
        assert own(store).recommit is None

    @pytest.mark.parametrize("how", ["gone", "rotten", "short"])
    def test_a_checkpoint_whose_blob_is_damaged_is_passed_over_if_it_published_nothing(self, how: str) -> None:
        store = MemoryStore()
        first = own(store)
        older = complete(store, first, 1)
        damaged = complete(store, first, 2)
        (path,) = {state.segment.path for report in damaged.reports for state in report.states}
        assert path is not None
        match how:
            case "gone":
                store.delete(path)
            case "rotten":
                store.blobs[path] = b"\0" + store.blobs[path][1:]
            case "short":
                store.blobs[path] = store.blobs[path][:-1]
        ownership = own(store)
        assert ownership.manifest == older
        assert [skipped.checkpoint for skipped in ownership.skipped] == [2]
        assert path in ownership.skipped[0].reason

    @pytest.mark.parametrize("what", ["manifest.json", "/blobs/"])
    @pytest.mark.parametrize("has_sinks", [True, False])
    def test_a_read_that_fails_says_nothing_about_the_checkpoint(self, what: str, has_sinks: bool) -> None:
        store = Hiccup()
        first = own(store, token="one")
        complete(store, first, 1, OUTPUT)
        newest = complete(store, first, 2, OUTPUT)
        store.is_meant = lambda path: what in path and paths.checkpoint_of(path) == 2
        with pytest.raises(StorageError, match="the read timed out"):
            own(store, has_sinks=has_sinks)
        store.is_meant = lambda path: False
        ownership = own(store, has_sinks=has_sinks)
        assert (ownership.manifest, ownership.skipped) == (newest, ())

    def test_a_truncated_manifest_is_refused_where_its_output_may_have_been_published(self) -> None:
        store = MemoryStore()
        first = own(store)
        complete(store, first, 1)
        complete(store, first, 2)
        path = paths.manifest(CheckpointId(2))
        store.blobs[path] = store.blobs[path][:-10]
        with pytest.raises(NoReadableCheckpoint, match="checkpoint 2 cannot be restored"):
            own(store)
        assert own(store, fall_back=FallBack.ALLOW_DUPLICATES).manifest is not None
        assert own(store, has_sinks=False).manifest is not None

    def test_if_none_can_be_read_it_refuses_and_never_begins_from_nothing(self) -> None:
        store = MemoryStore()
        first = own(store)
        for number in (1, 2):
            complete(store, first, number)
            store.blobs[paths.manifest(CheckpointId(number))] = b"{}"
        with pytest.raises(NoReadableCheckpoint, match="none of the checkpoints can be restored"):
            own(store, has_sinks=False)

    @pytest.mark.parametrize("changes", [{"name": "returns"}, {"max_parallelism": 64}, {"operators": ()}])
    def test_a_checkpoint_of_another_pipeline_is_refused_and_not_passed_over(self, changes: dict[str, object]) -> None:
        store = MemoryStore()
        first = own(store)
        complete(store, first, 1)
        complete(store, first, 2)
        with pytest.raises(IncompatibleCheckpoint, match="cannot continue from checkpoint 2: it "):
            own(store, shape=replace(SHAPE, **changes))  # type: ignore[arg-type]

    def test_state_of_an_operator_that_is_gone_is_dropped_if_the_user_allows_it(self) -> None:
        store = MemoryStore()
        complete(store, own(store), 1)
        ownership = own(store, shape=replace(SHAPE, operators=()), allow_dropped_state=True)
        assert ownership.manifest is not None

    def test_voids_alone_are_a_start_from_nothing(self) -> None:
        store = MemoryStore()
        own(store)
        own(store)
        assert own(store).manifest is None

    def test_a_store_that_cannot_be_read_at_the_moment_is_an_error_and_not_an_empty_directory(self) -> None:
        class Down(MemoryStore):
            def list(self, prefix: str) -> list[str]:
                raise StorageError("the bucket does not answer")

        with pytest.raises(StorageError, match="does not answer"):
            own(Down())
