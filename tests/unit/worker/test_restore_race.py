"""A checkpoint is restored by hand while an old driver, that was asleep, carries out its decision to delete it."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId
from penstock.protocol.manifest import (
    Committable,
    Manifest,
    PipelineShape,
    StateKind,
    SubtaskReport,
    blobs_of,
    committables_of,
)
from penstock.protocol.manifest.codec import encode_manifest, encode_reservation
from penstock.protocol.ownership import Reservation
from penstock.storage import paths
from penstock.storage.copies import import_checkpoint, read_manifest, verify
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Data
from penstock.worker.checkpointing.snapshot import write_state
from penstock.worker.context import Piece
from tests.unit.mailbox.fake_ports import rows

ONE = CheckpointId(1)
MAP = SubtaskId(OperatorName("map"), 0)


class Retiring(MemoryStore):
    """From the `first` call on, one stage of the deletion is done every `every` calls."""

    def __init__(self, first: int, every: int) -> None:
        super().__init__()
        pieces = [Piece(MAP.chain, "seen", StateKind.LIST, [rows(1, 2, 3)])]
        states = write_state(self, ONE, Generation(1), MAP, lambda: pieces, inline_bytes_max=0)
        report = SubtaskReport(MAP, states=states, committables=(Committable(MAP.chain, 0, b"file"),))
        manifest = Manifest(ONE, Generation(1), PipelineShape("p", 8), (report,))
        super().create(paths.reserved(ONE), encode_reservation(Reservation(ONE, Generation(1))))
        super().create(paths.manifest(ONE), encode_manifest(manifest))
        super().create(paths.committed(ONE), b"{}")
        self.stages = [(paths.manifest(ONE),), (paths.committed(ONE),), tuple(blobs_of(manifest))]
        self.first, self.every, self.calls = first, every, 0

    def _called(self) -> None:
        self.calls += 1
        while self.stages and self.calls >= self.first:
            super().delete(*self.stages.pop(0))
            self.first += self.every

    def create(self, path: str, data: Data) -> bool:
        self._called()
        return super().create(path, data)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self._called()
        return super().read(path, offset, length)

    def list(self, prefix: str) -> list[str]:
        self._called()
        return super().list(prefix)


@pytest.mark.parametrize("every", range(6))
@pytest.mark.parametrize("first", range(1, 30))
def test_the_copy_is_whole_and_publishes_nothing_twice_or_there_is_no_copy(first: int, every: int) -> None:
    store = Retiring(first, every)
    try:
        checkpoint = import_checkpoint(store, 1)
    except PenstockError:
        assert paths.manifest(CheckpointId(2)) not in store.blobs
        return
    copy = read_manifest(store, checkpoint)
    verify(store, copy)
    # The output of the original was committed.
    assert committables_of(copy) == ()
