"""A worker proves that it sees the directory of its driver."""

from __future__ import annotations

import pytest

from penstock.errors import OptionError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.protocol.manifest.codec import encode_reservation
from penstock.protocol.ownership import Reservation
from penstock.storage import paths
from penstock.storage.memory import MemoryStore
from penstock.worker.shared import require_shared

OURS = Reservation(CheckpointId(7), Generation(4), token="drivers")


def test_a_file_that_a_network_file_system_shows_late_is_waited_for() -> None:
    store = MemoryStore()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            store.create(paths.reserved(OURS.checkpoint), encode_reservation(OURS))

    require_shared(store, OURS, sleep)
    assert len(pauses) == 3


def test_one_that_is_not_there_is_not_waited_for_without_end() -> None:
    pauses: list[float] = []
    with pytest.raises(OptionError, match="not the directory that the driver has under this name"):
        require_shared(MemoryStore(), OURS, pauses.append)
    assert len(pauses) == 4


def test_one_of_another_driver_with_the_same_id_and_generation_is_refused_at_once() -> None:
    store = MemoryStore()
    theirs = Reservation(OURS.checkpoint, OURS.generation, token="theirs")
    store.create(paths.reserved(theirs.checkpoint), encode_reservation(theirs))
    pauses: list[float] = []
    with pytest.raises(OptionError, match="is of another driver"):
        require_shared(store, OURS, pauses.append)
    assert pauses == []


def test_a_store_that_cannot_be_read_at_the_moment_is_another_matter() -> None:
    class Down(MemoryStore):
        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            raise StorageError("the read timed out")

    store = Down()
    store.create(paths.reserved(OURS.checkpoint), encode_reservation(OURS))
    with pytest.raises(StorageError, match="timed out"):
        require_shared(store, OURS, lambda seconds: None)
