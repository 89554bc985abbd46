"""What may be deleted: only what nothing that can be restored, or can still complete, refers to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import CheckpointId, Generation
from penstock.protocol.ownership import Listing, Outcome, Reservation, unreadable_reservation
from penstock.protocol.retention import (
    Blob,
    CompletedCheckpoint,
    Contents,
    Pruning,
    RetentionBound,
    decide_retention,
)

OLD, OWN, NEXT = Generation(2), Generation(3), Generation(4)


def ids(*numbers: int) -> frozenset[CheckpointId]:
    return frozenset(map(CheckpointId, numbers))


def completed(number: int, *blobs: str, is_savepoint: bool = False) -> CompletedCheckpoint:
    return CompletedCheckpoint(CheckpointId(number), frozenset(blobs), is_savepoint)


def unreadable(number: int) -> CompletedCheckpoint:
    return CompletedCheckpoint(CheckpointId(number), None)


def blob(path: str, number: int, generation: Generation = OWN) -> Blob:
    return Blob(path, CheckpointId(number), generation)


def bound(newest: int, retained: int = 2, *in_use: int, first: int = 0) -> RetentionBound:
    return RetentionBound(OWN, CheckpointId(newest), retained, ids(*in_use), CheckpointId(first))


def reservation(number: int, generation: Generation, count: int = 1) -> Reservation:
    return Reservation(CheckpointId(number), generation, count)


def test_the_newest_checkpoints_stay_and_older_ones_go_with_what_only_they_reached() -> None:
    contents = Contents(
        completed=(completed(1, "a", "b"), completed(2, "b", "c"), completed(3, "b", "d")),
        blobs=(blob("a", 1), blob("b", 1), blob("c", 2), blob("d", 3)),
    )
    assert decide_retention(contents, bound(3)) == Pruning(manifests=(CheckpointId(1),), blobs=("a",))


def test_no_more_are_retired_than_there_are() -> None:
    contents = Contents(completed=(completed(1, "a"),), blobs=(blob("a", 1),))
    assert decide_retention(contents, bound(1, 5)) == Pruning()


def test_savepoints_stay_and_do_not_count() -> None:
    contents = Contents(
        completed=(
            completed(1, "s", is_savepoint=True),
            completed(2, "a"),
            completed(3, is_savepoint=True),
            completed(4),
        ),
        blobs=(blob("s", 1, OLD), blob("a", 2)),
    )
    assert decide_retention(contents, bound(4, 2)) == Pruning()
    assert decide_retention(contents, bound(4, 1)).manifests == (CheckpointId(2),)


def test_a_stray_goes_at_once_and_takes_the_place_of_no_checkpoint() -> None:
    newest = replace(completed(9, "n"), first=CheckpointId(8), older=(CheckpointId(2),))
    stray = completed(5, "gone", "left")
    contents = Contents(
        completed=(completed(2, "o"), stray, newest),
        blobs=(blob("o", 2, OLD), blob("left", 5, OLD), blob("n", 9)),
    )
    assert decide_retention(contents, bound(9, 2)) == Pruning(manifests=(CheckpointId(5),), blobs=("left",))


@pytest.mark.parametrize(("is_stop", "gone"), [(True, (CheckpointId(5),)), (False, ())])
def test_a_stray_savepoint_stays_if_somebody_asked_for_it(is_stop: bool, gone: tuple[CheckpointId, ...]) -> None:
    newest = replace(completed(9), first=CheckpointId(8), older=(CheckpointId(2),))
    stray = replace(completed(5, is_savepoint=True), is_stop=is_stop)
    contents = Contents(completed=(stop(2), stray, newest))
    assert decide_retention(contents, replace(bound(9, 2), stops_retained=1)).manifests == gone


def stop(number: int, *blobs: str) -> CompletedCheckpoint:
    return CompletedCheckpoint(CheckpointId(number), frozenset(blobs), is_savepoint=True, is_stop=True)


def test_only_the_newest_savepoints_of_stops_stay_and_never_one_that_was_asked_for() -> None:
    contents = Contents(
        completed=(stop(1, "a"), completed(2, "asked", is_savepoint=True), stop(3), stop(4), completed(5), stop(6)),
        blobs=(blob("a", 1, OLD), blob("asked", 2, OLD)),
    )
    assert decide_retention(contents, bound(6)) == Pruning(manifests=(CheckpointId(1),), blobs=("a",))
    fewer = replace(bound(6), stops_retained=1)
    assert decide_retention(contents, fewer).manifests == ids_in_order(1, 3, 4)
    assert decide_retention(contents, replace(fewer, in_use=ids(3))).manifests == ids_in_order(1, 4)
    # One that completes after the horizon is none of this round's business.
    assert decide_retention(contents, replace(fewer, newest=CheckpointId(4))).manifests == ids_in_order(1, 3)


def ids_in_order(*numbers: int) -> tuple[CheckpointId, ...]:
    return tuple(map(CheckpointId, numbers))


def test_a_checkpoint_in_use_stays() -> None:
    contents = Contents(completed=(completed(1, "a"), completed(2), completed(3)), blobs=(blob("a", 1),))
    assert decide_retention(contents, bound(3, 1, 1)) == Pruning(manifests=(CheckpointId(2),))


def test_a_manifest_that_cannot_be_read_stays_with_its_blobs() -> None:
    contents = Contents(completed=(unreadable(1), completed(2), completed(3)), blobs=(blob("a", 1, OLD),))
    assert decide_retention(contents, bound(3, 2)) == Pruning()


def test_the_orphans_of_failed_attempts_and_of_older_generations_go() -> None:
    contents = Contents(
        completed=(completed(5, "e"),),
        blobs=(blob("declined", 4), blob("crashed", 4, OLD), blob("later", 6, OLD), blob("e", 5)),
    )
    assert decide_retention(contents, bound(5)).blobs == ("crashed", "declined", "later")


def test_what_an_attempt_in_progress_has_written_stays() -> None:
    contents = Contents(completed=(completed(5),), blobs=(blob("pending", 6),))
    assert decide_retention(contents, bound(5)) == Pruning()


def test_nothing_of_a_newer_generation_is_touched() -> None:
    contents = Contents(
        completed=(completed(5), completed(6), completed(7, "n")), blobs=(blob("m", 3, NEXT), blob("n", 7, NEXT))
    )
    assert decide_retention(contents, bound(5, 1)) == Pruning()


def test_a_fenced_generation_deletes_nothing() -> None:
    contents = Contents(
        completed=(completed(1), completed(2), completed(3)),
        blobs=(blob("orphan", 1),),
        listing=Listing((reservation(4, NEXT),)),
    )
    assert decide_retention(contents, bound(3, 1)) == Pruning()
    assert decide_retention(replace(contents, listing=Listing()), bound(3, 1)).manifests == (1, 2)


def test_a_marker_goes_with_or_after_its_manifest_and_never_before() -> None:
    contents = Contents(completed=(completed(2), completed(3), completed(4)), committed=ids(1, 2, 3, 4, 9))
    retirement = decide_retention(contents, bound(4, 2))
    assert (retirement.manifests, retirement.committed) == ((2,), (1, 2))


def tombstone(number: int, generation: Generation = OWN) -> Outcome:
    return Outcome(CheckpointId(number), generation, is_tombstone=True)


def test_spent_reservations_go_except_the_licence_of_this_generation() -> None:
    listing = Listing(
        tuple(reservation(number, OLD) for number in (5, 3, 4)) + tuple(reservation(n, OWN) for n in (6, 7, 8, 9)),
        (tombstone(5),),
    )
    retirement = decide_retention(Contents(listing=listing, completed=(completed(8),)), bound(8, first=6))
    assert retirement.reservations == (7,)
    # In the order of their ids: each one keeps the owner before it out.
    assert retirement.licences == (3, 4, 5)
    assert retirement.tombstones == (5,)


def test_a_licence_that_is_damaged_is_still_the_licence() -> None:
    listing = Listing((unreadable_reservation(CheckpointId(17)), reservation(33, OWN)))
    retirement = decide_retention(Contents(listing=listing, completed=(completed(40),)), bound(40, first=17))
    assert retirement.licences == ()
    others = decide_retention(Contents(listing=listing, completed=(completed(40),)), bound(40, first=33))
    assert others.licences == (17,)


def test_a_void_marker_stays_until_this_generation_has_completed_a_checkpoint() -> None:
    # The licence of 5 is there while the restored checkpoint, 4, is the newest.
    listing = Listing((reservation(4, OLD), reservation(5, OLD), reservation(6, OWN)), (tombstone(5),))
    contents = Contents(listing=listing, completed=(completed(4),))
    assert decide_retention(contents, bound(4, first=6)) == Pruning()
    assert decide_retention(contents, bound(6, first=6)) == Pruning(licences=(4, 5), tombstones=(5,))  # type: ignore[arg-type]


def test_the_void_markers_of_this_generations_own_ids_stay_and_so_do_those_of_a_newer_one() -> None:
    listing = Listing(
        (reservation(6, OWN, 3),), (tombstone(4, NEXT), tombstone(5), tombstone(7), Outcome(CheckpointId(3), OLD))
    )
    assert decide_retention(Contents(listing=listing), bound(8, first=6)).tombstones == (5,)


@pytest.mark.parametrize(("newest", "spent"), [(7, ()), (8, (6,)), (11, (6,)), (12, (6, 8))])
def test_a_reservation_stays_until_every_id_of_its_block_is_spent(newest: int, spent: tuple[int, ...]) -> None:
    listing = Listing((reservation(5, OWN), reservation(6, OWN, 2), reservation(8, OWN, 4), reservation(12, OWN, 4)))
    retirement = decide_retention(Contents(listing=listing, completed=(completed(newest),)), bound(newest, first=5))
    assert retirement.reservations == spent


contents_of_a_store = st.builds(
    Contents,
    completed=st.dictionaries(
        st.integers(1, 8), st.tuples(st.none() | st.frozensets(st.sampled_from("abcdef")), st.booleans())
    ).map(lambda found: tuple(CompletedCheckpoint(CheckpointId(n), *rest) for n, rest in found.items())),
    blobs=st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.integers(1, 10).map(CheckpointId), st.sampled_from([OLD, OWN, NEXT])),
    ).map(lambda found: tuple(Blob(path, *rest) for path, rest in found.items())),
    committed=st.frozensets(st.integers(1, 8).map(CheckpointId)),
)


@given(contents_of_a_store, st.integers(1, 9), st.integers(1, 3), st.integers(1, 8))
def test_whatever_is_kept_can_reach_all_its_blobs_and_twice_finds_nothing_more(
    contents: Contents, newest: int, retained: int, in_use: int
) -> None:
    asked = bound(newest, retained, in_use)
    retirement = decide_retention(contents, asked)
    kept = tuple(each for each in contents.completed if each.checkpoint not in retirement.manifests)
    for each in kept:
        assert not (each.blobs or frozenset()) & set(retirement.blobs)
    assert {in_use}.isdisjoint(retirement.manifests)
    readable = [each.checkpoint for each in contents.completed if each.blobs is not None and not each.is_savepoint]
    newest_ones = sorted(number for number in readable if number <= newest)[-retained:]
    assert set(newest_ones).isdisjoint(retirement.manifests)
    after = Contents(
        kept,
        tuple(each for each in contents.blobs if each.path not in retirement.blobs),
        contents.listing,
        contents.committed - set(retirement.committed),
    )
    assert decide_retention(after, asked) == Pruning()
