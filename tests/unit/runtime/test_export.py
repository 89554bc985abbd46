"""A checkpoint that is made the newest of a directory, and somebody who starts on that directory meanwhile."""

from __future__ import annotations

import pytest

from penstock.errors import RestoreError
from penstock.ids import CheckpointId, Generation
from penstock.protocol.claims import Reservation
from penstock.protocol.manifest import Manifest, PipelineShape
from penstock.protocol.manifest_codec import encode_manifest, encode_reservation
from penstock.runtime.directory import Directory
from penstock.runtime.export import import_checkpoint, read_manifest
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Data

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
        if getattr(self, "_raced", None) is not None and path == paths.reserved(self._raced):
            self._raced = None
            self.create(paths.reserved(BLOCK.checkpoint), encode_reservation(BLOCK))
        return super().create(path, data)


def test_it_gets_the_next_id_and_a_generation_of_its_own() -> None:
    store = Raced()
    assert import_checkpoint(store, 1) == TWO
    assert read_manifest(store, TWO) == Manifest(TWO, Generation(2), PipelineShape("p", 8))


def test_it_is_refused_if_another_driver_reserves_the_id_first() -> None:
    store = Raced(raced=TWO)
    with pytest.raises(RestoreError, match="somebody else is starting"):
        import_checkpoint(store, 1)
    assert Directory(store).ids(paths.PathKind.MANIFEST) == [ONE]


def test_it_is_refused_if_its_id_turns_out_to_be_in_the_middle_of_another_drivers_block() -> None:
    store = Raced(raced=THREE)
    # The outcome of an id of that block is seen before its reservation is.
    store.create(paths.manifest(TWO), encode_manifest(Manifest(TWO, Generation(1), PipelineShape("p", 8))))
    with pytest.raises(RestoreError, match="somebody else is starting"):
        import_checkpoint(store, 1)
    assert Directory(store).ids(paths.PathKind.MANIFEST) == [ONE, TWO]
