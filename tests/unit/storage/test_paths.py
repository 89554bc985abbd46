"""Paths: what is built is read back, and what is hostile is refused."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StorageError
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId
from penstock.storage import paths
from penstock.storage.paths import BlobContent, BlobName, PathKind

checkpoint_ids = st.integers(1, 10**20 - 1).map(CheckpointId)
operator_names = st.text(st.characters(), min_size=0, max_size=400).map(OperatorName)


def test_the_layout_on_disk_is_the_documented_one() -> None:
    seven = CheckpointId(7)
    assert paths.reserved(seven) == "checkpoints/00000000000000000007/reserved.json"
    assert paths.manifest(seven) == "checkpoints/00000000000000000007/manifest.json"
    assert paths.committed(seven) == "checkpoints/00000000000000000007/committed.json"
    subtask = SubtaskId(OperatorName("running-total"), 2)
    blob = "checkpoints/00000000000000000007/blobs/g3-running-total-2-state"
    assert paths.blob(seven, Generation(3), subtask, BlobContent.STATE) == blob
    assert paths.blob(seven, Generation(3), subtask, BlobContent.CHANNELS, 1) == blob[:-5] + "channels-1"


@given(checkpoint_ids, checkpoint_ids)
def test_names_sort_as_their_checkpoints_do(one: CheckpointId, other: CheckpointId) -> None:
    assert (paths.manifest(one) < paths.manifest(other)) == (one < other)


@given(
    checkpoint_ids,
    st.integers(0, 2**63),
    operator_names,
    st.integers(0, 2**31),
    st.sampled_from(BlobContent),
    st.integers(0, 9),
)
def test_every_blob_path_is_valid_and_read_back_as_it_was_built(
    checkpoint: CheckpointId, generation: int, name: OperatorName, index: int, content: BlobContent, part: int
) -> None:
    path = paths.blob(checkpoint, Generation(generation), SubtaskId(name, index), content, part)
    assert paths.is_valid(path)
    assert paths.checkpoint_of(path) == checkpoint
    assert paths.kind_of(path) is PathKind.BLOB
    expected = BlobName(checkpoint, Generation(generation), paths.slug(name), index, content, part)
    assert paths.parse_blob(path) == expected


@given(operator_names, operator_names)
def test_different_operators_never_share_a_slug_not_even_without_regard_to_case(
    one: OperatorName, other: OperatorName
) -> None:
    assert (paths.slug(one).lower() == paths.slug(other).lower()) == (one == other)


@pytest.mark.parametrize(
    "name", ["Map", "map ", "m/ap", "..", "", "a" * 65, "a" * 300 + "b", "é", "\ud800", "map.", "-"]
)
def test_a_name_that_is_not_plain_gets_a_safe_slug_of_its_own(name: str) -> None:
    slug = paths.slug(OperatorName(name))
    assert slug not in {paths.slug(OperatorName("map")), paths.slug(OperatorName("a" * 300))}
    assert paths.is_valid(slug)
    assert "/" not in slug
    assert len(slug) <= 80


def test_names_that_are_not_even_text_are_told_apart() -> None:
    assert paths.slug(OperatorName("\ud800")) != paths.slug(OperatorName("\ud801"))


def test_an_operator_cannot_take_the_slug_of_another_by_spelling_it_out() -> None:
    stolen = OperatorName(paths.slug(OperatorName("Map")))
    assert paths.slug(stolen) != stolen


@given(checkpoint_ids)
def test_the_kind_of_each_file_of_a_checkpoint_is_known(checkpoint: CheckpointId) -> None:
    assert paths.kind_of(paths.reserved(checkpoint)) is PathKind.RESERVED
    assert paths.kind_of(paths.manifest(checkpoint)) is PathKind.MANIFEST
    assert paths.kind_of(paths.committed(checkpoint)) is PathKind.COMMITTED
    assert paths.kind_of(paths.OWNER) is PathKind.OWNER
    assert paths.parse_blob(paths.manifest(checkpoint)) is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "owner",
        "checkpoints/7/manifest.json",
        "checkpoints/00000000000000000000/manifest.json",
        "checkpoints/٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧/manifest.json",
        "x/checkpoints/00000000000000000007/manifest.json",
        "checkpoints/00000000000000000007",
        "checkpoints/00000000000000000007/",
    ],
)
def test_a_path_that_is_not_of_the_layout_belongs_to_no_checkpoint(path: str) -> None:
    assert paths.checkpoint_of(path) is None
    assert paths.kind_of(path) is None
    assert paths.parse_blob(path) is None


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json.bak",
        "blobs/g1-map-0",
        "blobs/g01-map-0-state",
        "blobs/g1-map-0-state-0",
        "blobs/g1-map-0-state\n",
        "blobs/g1-map-0-other",
    ],
)
def test_a_strange_file_in_a_checkpoint_belongs_to_it_but_has_no_kind(name: str) -> None:
    path = paths.checkpoint_prefix(CheckpointId(7)) + name
    assert paths.kind_of(path) is None
    assert paths.parse_blob(path) is None


@pytest.mark.parametrize("number", [-1, 0, 10**20])
def test_a_number_that_no_checkpoint_can_have_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="not the id of a checkpoint"):
        paths.reserved(CheckpointId(number))


def test_a_prefix_of_one_checkpoint_covers_no_other() -> None:
    assert not paths.manifest(CheckpointId(10)).startswith(paths.checkpoint_prefix(CheckpointId(1)))


def test_temporary_names_are_recognised_and_can_never_be_asked_for() -> None:
    name = paths.temporary_name()
    assert name != paths.temporary_name()
    assert paths.temporary_born_ms(name) is not None
    assert paths.temporary_born_ms("manifest.json") is None
    with pytest.raises(StorageError, match="begins with a dot"):
        paths.require_valid(f"checkpoints/{name}")


def test_a_forked_process_gives_out_other_temporary_names() -> None:
    names = []
    for _ in range(2):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, paths.temporary_name().encode())
            os._exit(0)
        os.waitpid(child, 0)
        names.append(os.read(reader, 100).decode().rpartition("-")[2])
        os.close(reader)
        os.close(writer)
    assert len({*names, paths.temporary_name().rpartition("-")[2]}) == 3


def test_an_order_and_its_answer_are_found_where_they_were_put() -> None:
    order = paths.control_id()
    assert order != paths.control_id()
    request, answer = paths.control_request(order), paths.control_answer(order)
    assert (request, answer) == (f"control/{order}.request.json", f"control/{order}.answer.json")
    assert paths.is_valid(request)
    assert [paths.kind_of(path) for path in (request, answer)] == [PathKind.CONTROL_REQUEST, PathKind.CONTROL_ANSWER]
    assert [paths.control_of(path) for path in (request, answer)] == [order, order]
    assert paths.checkpoint_of(request) is None


@pytest.mark.parametrize("order", ["", "7", "A" * 32, "0" * 31, "0" * 33, "../" + "0" * 29, "٧" * 32])
def test_an_order_of_a_strange_name_is_refused(order: str) -> None:
    for path in (paths.control_request, paths.control_answer):
        with pytest.raises(ValueError, match="not the id of an order"):
            path(order)
    assert paths.control_of(f"control/{order}.request.json") is None
    assert paths.kind_of(f"control/{order}.answer.json") is None


@pytest.mark.parametrize("path", ["control/" + "0" * 32 + ".json", "x/control/" + "0" * 32 + ".request.json"])
def test_a_file_that_is_no_order_is_none(path: str) -> None:
    assert paths.control_of(path) is None
    assert paths.kind_of(path) is None
