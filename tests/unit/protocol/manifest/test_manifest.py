"""Manifests as values and as bytes: what was written comes back, and nothing else is accepted."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptBlob, PenstockError, RestoreError
from penstock.ids import CheckpointId, EdgeId, Generation, OperatorName, SubtaskId
from penstock.protocol.manifest import (
    FORMAT,
    ChannelSegment,
    CheckpointStats,
    Committable,
    EdgeShape,
    Manifest,
    OperatorShape,
    Partitioning,
    PipelineShape,
    RecordShape,
    Segment,
    Side,
    SnapshotKind,
    SplitState,
    StateKind,
    StateSegment,
    SubtaskReport,
    blobs_of,
    committables_of,
)
from penstock.protocol.manifest.codec import (
    decode_manifest,
    decode_manifest_or_tombstone,
    decode_reservation,
    encode_manifest,
    encode_reservation,
    encode_tombstone,
)
from penstock.protocol.ownership import Reservation, Tombstone

READ, COUNT = OperatorName("read"), OperatorName("count")
EDGE = EdgeId(READ, COUNT, 1)
FULL = Manifest(
    CheckpointId(2**40),
    Generation(3),
    PipelineShape(
        "orders €",
        128,
        (OperatorShape(COUNT, COUNT, 2, ("user:int64",), "aggregate", (("aggregates", "sum(n)"),)),),
        (EdgeShape(EDGE, Partitioning.HASH, 1, 2, RecordShape(("user",), ("user", "n"), ("user: int64", "n: int64"))),),
    ),
    (
        SubtaskReport(
            SubtaskId(COUNT, 1),
            SnapshotKind.OVERTAKEN,
            states=(StateSegment(COUNT, "total", StateKind.KEYED, Segment(10, 99, "a/blob", 5), 3, 64, 128, "value"),),
            channels=(ChannelSegment(EDGE, 0, 1, Side.SENDER, Segment(2, 7, inline=b"\x00\xff"), 1),),
            splits=(SplitState(READ, "part-0", b'{"offset": 12}'),),
            committables=(Committable(OperatorName("sink"), 1, b"\x80file"),),
            watermarks=((COUNT, -5),),
            figures=CheckpointStats(1, 2, 3, 4, 5, 6, 7),
            totals=((COUNT, "num_records_in", 12), (COUNT, "num_late_records_dropped", 3)),
        ),
        SubtaskReport(
            SubtaskId(READ, 0),
            channels=(ChannelSegment(EDGE, 0, 1, Side.RECEIVER, Segment(1, 1, "b/blob"), 1),),
            committables=(Committable(OperatorName("sink"), 0, b"other"),),
        ),
    ),
    1_000,
    1_100,
    is_savepoint=True,
    is_final=True,
    batch_offset=12,
    published_as=CheckpointId(5),
    first=CheckpointId(6),
    older=(CheckpointId(2), CheckpointId(4)),
)


def sealed(body: bytes, kind: str = "manifest", version: int = 1) -> bytes:
    """An envelope that is right in itself, around any body."""
    digest = hashlib.sha256(kind.encode() + b"\n" + body).hexdigest()
    return b'{"format":%d,"kind":"%s","sha256":"%s","body":%s}' % (version, kind.encode(), digest.encode(), body)


def with_segment(segment: Segment) -> Manifest:
    channel = replace(FULL.reports[0].channels[0], segment=segment)
    return replace(FULL, reports=(replace(FULL.reports[0], channels=(channel,)),))


def test_blobs_are_named_once_and_inline_segments_have_none() -> None:
    assert blobs_of(FULL) == {"a/blob", "b/blob"}


def test_blobs_that_a_recovery_still_reads_are_kept_by_every_checkpoint_it_takes() -> None:
    waiting = replace(FULL.reports[-1].channels[0], age=2, segment=Segment(1, 1, "earlier/blob"))
    report = replace(FULL.reports[-1], channels=(waiting,))
    assert "earlier/blob" in blobs_of(replace(FULL, reports=(report,)))


def test_committables_come_in_the_order_of_the_reports() -> None:
    assert [each.payload for each in committables_of(FULL)] == [b"\x80file", b"other"]


def test_what_was_encoded_comes_back_equal() -> None:
    assert decode_manifest(encode_manifest(FULL)) == FULL
    assert decode_manifest_or_tombstone(encode_manifest(FULL)) == FULL


def test_a_manifest_that_does_not_know_of_batch_ids_is_published_under_its_own_id() -> None:
    body = b'{"checkpoint":8,"generation":4,"shape":{"name":"orders","max_parallelism":128}}'
    manifest = decode_manifest(sealed(body))
    assert manifest == Manifest(CheckpointId(8), Generation(4), PipelineShape("orders", 128))
    assert manifest.batch == CheckpointId(8)


def test_totals_are_pinned_and_a_manifest_without_them_has_none() -> None:
    report = b'{"subtask":["count",0],"totals":[["count","num_records_in",12]]}'
    body = b'{"checkpoint":8,"generation":4,"shape":{"name":"orders","max_parallelism":128},"reports":[%s]}'
    (found,) = decode_manifest(sealed(body % report)).reports
    assert found == SubtaskReport(SubtaskId(COUNT, 0), totals=((COUNT, "num_records_in", 12),))
    assert b'"totals":[["count","num_records_in",12],' in encode_manifest(FULL)
    (old,) = decode_manifest(sealed(body % b'{"subtask":["count",0]}')).reports
    assert old.totals == ()


def test_void_markers_and_reservations_come_back_equal() -> None:
    tombstone, reservation = Tombstone(CheckpointId(7), Generation(4)), Reservation(CheckpointId(8), Generation(4))
    assert decode_manifest_or_tombstone(encode_tombstone(tombstone)) == tombstone
    assert decode_reservation(encode_reservation(reservation)) == reservation
    block = replace(reservation, count=9)
    assert decode_reservation(encode_reservation(block)) == block
    marked = replace(reservation, token="c0ffee")
    assert decode_reservation(encode_reservation(marked)) == marked


def test_a_reservation_that_does_not_say_how_many_ids_it_is_of_is_of_one() -> None:
    body = b'{"checkpoint":8,"generation":4}'
    digest = hashlib.sha256(b"reservation\n" + body).hexdigest()
    data = b'{"format":%d,"kind":"reservation","sha256":"%s","body":%s}' % (FORMAT, digest.encode(), body)
    assert decode_reservation(data) == Reservation(CheckpointId(8), Generation(4), count=1, token="")


def test_a_file_of_this_format_without_the_rest_is_damaged() -> None:
    with pytest.raises(CorruptBlob, match="not a file of a checkpoint, or a damaged one"):
        decode_reservation(b'{"format":%d}' % FORMAT)


@pytest.mark.parametrize(("number", "count"), [(0, 1), (8, 0), (8, 10), (16, 2), (1, 10**9)])
def test_a_reservation_of_ids_that_cannot_be_one_block_is_refused(number: int, count: int) -> None:
    with pytest.raises(CorruptBlob, match="is not one that Penstock makes"):
        decode_reservation(encode_reservation(Reservation(CheckpointId(number), Generation(4), count)))


def test_a_manifest_of_a_version_that_recorded_less_is_read_with_defaults() -> None:
    segment = b'{"length":1,"crc32":2,"path":"a","offset":0,"inline":null}'
    state = b'{"operator":"count","name":"total","kind":"keyed","segment":%s,"rows":3}' % segment
    shape = (
        b'{"name":"orders","max_parallelism":128,'
        b'"operators":[{"name":"count","chain":"count","parallelism":2,"key":["k"]}],'
        b'"edges":[{"edge":["read","count",0],"partitioning":"hash","senders":1,"receivers":2}]}'
    )
    report = b'{"subtask":["count",0],"states":[%s]}' % state
    old = decode_manifest(sealed(b'{"checkpoint":9,"generation":1,"shape":%s,"reports":[%s]}' % (shape, report)))
    assert (old.shape.operators[0].kind, old.shape.operators[0].definition) == ("", ())
    assert old.shape.edges[0].records is None
    assert old.reports[0].states[0].declared == ""


def test_a_void_marker_is_no_checkpoint() -> None:
    with pytest.raises(RestoreError, match="checkpoint 7 never completed: generation 4 wrote its tombstone"):
        decode_manifest(encode_tombstone(Tombstone(CheckpointId(7), Generation(4))))


def test_a_file_of_another_kind_is_not_taken_for_one_of_ours() -> None:
    reservation = encode_reservation(Reservation(CheckpointId(8), Generation(4)))
    with pytest.raises(CorruptBlob, match="expected a manifest and found a 'reservation'"):
        decode_manifest_or_tombstone(reservation)
    with pytest.raises(CorruptBlob, match="expected a reservation and found a 'manifest'"):
        decode_reservation(encode_manifest(FULL))


def test_the_kind_is_under_the_checksum_too() -> None:
    with pytest.raises(CorruptBlob, match="does not match its checksum"):
        decode_manifest_or_tombstone(
            encode_tombstone(Tombstone(CheckpointId(7), Generation(4))).replace(b'"void"', b'"manifest"')
        )


def test_another_format_names_both_versions_and_the_way_out() -> None:
    with pytest.raises(RestoreError, match="has format 2 and this version of Penstock reads format 1: start") as caught:
        decode_manifest(b'{"format":2,"whatever":[]}')
    assert not isinstance(caught.value, CorruptBlob)


def test_a_manifest_cut_short_anywhere_is_corrupt() -> None:
    data = encode_manifest(FULL)
    for length in range(len(data)):
        with pytest.raises(CorruptBlob):
            decode_manifest(data[:length])


@given(st.data())
def test_any_flipped_bit_is_noticed(data: st.DataObject) -> None:
    encoded = bytearray(encode_manifest(FULL))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        # Between the fields of the envelope a flip may leave the meaning as it was; it must never change it.
        assert decode_manifest(bytes(encoded)) == FULL
    except (CorruptBlob, RestoreError) as error:
        assert len(str(error)) > 20


@given(st.binary(max_size=200))
def test_garbage_is_an_error_of_ours_and_nothing_else(garbage: bytes) -> None:
    for data in (garbage, sealed(b'"' + garbage.hex().encode() + b'"')):
        with pytest.raises(PenstockError):
            decode_manifest(data)


def test_nesting_without_end_is_corrupt_and_does_not_crash() -> None:
    with pytest.raises(CorruptBlob):
        decode_manifest(b'{"format":1,"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_a_body_of_another_schema_is_corrupt() -> None:
    with pytest.raises(CorruptBlob, match="damaged"):
        decode_manifest(sealed(b'{"checkpoint":"seven"}'))


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (replace(FULL, checkpoint=CheckpointId(0)), "must be positive"),
        (replace(FULL, generation=Generation(0)), "must be positive"),
        (replace(FULL, batch_offset=-1), "must not be negative"),
        (replace(FULL, published_as=CheckpointId(-1)), "must not be negative"),
        (replace(FULL, first=CheckpointId(-1)), "must not be below the first one"),
        (replace(FULL, first=CheckpointId(FULL.checkpoint + 1)), "must not be below the first one"),
        (replace(FULL, reports=FULL.reports[:1] * 2), "a subtask reported twice"),
        (with_segment(Segment(1, 1)), "either a path or its bytes"),
        (with_segment(Segment(1, 1, "a", inline=b"a")), "either a path or its bytes"),
        (with_segment(Segment(-1, 1, "a")), "negative"),
        (with_segment(Segment(1, 1, "a", -1)), "negative"),
        (with_segment(Segment(1, 1, "/etc/passwd")), "leads out of the checkpoint directory"),
        (with_segment(Segment(1, 1, "a/../../b")), "leads out of the checkpoint directory"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_corrupt(manifest: Manifest, problem: str) -> None:
    with pytest.raises(CorruptBlob, match=problem):
        decode_manifest(sealed(msgspec.json.encode(manifest)))
