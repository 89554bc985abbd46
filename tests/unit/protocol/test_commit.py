"""Permits to publish: not to be had without a durable manifest (I4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import ProtocolViolation
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId
from penstock.protocol.commit import CommitPermit, ManifestDurable, decide_commit, decide_recommit
from penstock.protocol.manifest import Committable, Manifest, PipelineShape, SubtaskReport

ID, OLD, NEW = CheckpointId(7), Generation(2), Generation(3)
FILE = Committable(OperatorName("sink"), 0, b"file")
MANIFEST = Manifest(
    ID, OLD, PipelineShape("orders", 128), (SubtaskReport(SubtaskId(OperatorName("sink"), 0), committables=(FILE,)),)
)
DURABLE = ManifestDurable(ID, OLD)


def test_a_durable_manifest_permits_to_publish_exactly_what_it_names() -> None:
    permit = decide_commit(MANIFEST, DURABLE, OLD)
    assert permit is not None
    assert (permit.checkpoint, permit.generation, permit.committables) == (ID, OLD, (FILE,))
    assert "seal" not in repr(permit)


def test_a_checkpoint_without_committables_needs_no_permit() -> None:
    assert decide_commit(replace(MANIFEST, reports=()), DURABLE, OLD) is None


@pytest.mark.parametrize("durable", [ManifestDurable(CheckpointId(6), OLD), ManifestDurable(ID, NEW)])
def test_the_durability_of_another_manifest_permits_nothing(durable: ManifestDurable) -> None:
    with pytest.raises(ProtocolViolation, match="checkpoint 7 of generation 2 is to be committed, but the durable one"):
        decide_commit(MANIFEST, durable, OLD)


def test_an_older_generation_cannot_publish_a_newer_ones_checkpoint() -> None:
    with pytest.raises(ProtocolViolation, match="checkpoint 7 is of generation 2: 1 cannot commit it"):
        decide_commit(MANIFEST, DURABLE, Generation(1))


def test_a_permit_cannot_be_forged_nor_rewritten() -> None:
    with pytest.raises(ProtocolViolation, match="made without its manifest"):
        CommitPermit(ID, OLD, (FILE,), ID)
    permit = decide_commit(MANIFEST, DURABLE, OLD)
    assert permit is not None
    with pytest.raises((ProtocolViolation, ValueError)):
        replace(permit, checkpoint=CheckpointId(8))


def test_the_restored_checkpoint_is_committed_again_by_the_new_generation() -> None:
    permit = decide_recommit(MANIFEST, NEW, is_committed=False)
    assert permit is not None
    assert (permit.checkpoint, permit.generation, permit.committables) == (ID, NEW, (FILE,))


def test_a_restored_checkpoint_with_its_marker_is_not_committed_again() -> None:
    assert decide_recommit(MANIFEST, NEW, is_committed=True) is None


def test_a_restored_checkpoint_with_nothing_to_publish_is_not_committed_again() -> None:
    assert decide_recommit(replace(MANIFEST, reports=()), NEW, is_committed=False) is None


@pytest.mark.parametrize(
    ("changes", "batch"),
    [({}, 7), ({"batch_offset": 10}, 17), ({"batch_offset": 10, "published_as": CheckpointId(3)}, 3)],
)
def test_sinks_are_told_the_id_that_a_copy_was_first_published_under(changes: dict[str, int], batch: int) -> None:
    permit = decide_recommit(replace(MANIFEST, **changes), NEW, is_committed=False)  # type: ignore[arg-type]
    assert permit is not None
    assert (permit.checkpoint, permit.batch) == (ID, batch)
