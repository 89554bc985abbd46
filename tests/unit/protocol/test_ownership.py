"""Ownership of a checkpoint directory: single decisions, and drivers that take it from each other at any moment."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.ids import CheckpointId, Generation
from penstock.protocol.coordinator.trigger import decide_next_block
from penstock.protocol.ownership import (
    BLOCK_IDS_MAX,
    Listing,
    Outcome,
    Reservation,
    Takeover,
    confirm,
    decide_takeover,
    has_reserved,
    is_fenced,
    is_taken,
    unreadable_reservation,
)
from penstock.protocol.retention import CompletedCheckpoint, Contents, RetentionBound, decide_retention


def reservation(number: int, generation: int, count: int = 1) -> Reservation:
    return Reservation(CheckpointId(number), Generation(generation), count)


def outcome(number: int, generation: int, *, is_tombstone: bool = False) -> Outcome:
    return Outcome(CheckpointId(number), Generation(generation), is_tombstone)


def takeover(generation: int, first: int, *tombstone: int) -> Takeover:
    return Takeover(Generation(generation), CheckpointId(first), tuple(map(CheckpointId, tombstone)))


def test_the_first_owner_of_a_directory_begins_at_one() -> None:
    assert decide_takeover(Listing()) == takeover(1, 1)
    assert decide_takeover(Listing()).reservation == reservation(1, 1)


def test_a_takeover_goes_on_after_the_highest_id_and_voids_what_has_no_outcome() -> None:
    listing = Listing(
        (reservation(7, 2), reservation(4, 1), reservation(6, 2), reservation(5, 2)),
        (outcome(4, 2, is_tombstone=True), outcome(6, 2)),
    )
    assert decide_takeover(listing) == takeover(3, 8)
    assert confirm(takeover(3, 8), listing) == takeover(3, 8, 5, 7)


def test_a_takeover_goes_on_after_the_highest_block_and_voids_every_id_of_every_block() -> None:
    listing = Listing(
        (reservation(4, 1), reservation(5, 2), reservation(6, 2, 3), reservation(9, 2, 4)), (outcome(7, 2),)
    )
    assert decide_takeover(listing) == takeover(3, 13)
    assert confirm(takeover(3, 13), listing) == takeover(3, 13, 4, 5, 6, 8, 9, 10, 11, 12)


def test_what_was_reserved_since_the_first_reading_is_declared_void_too() -> None:
    # The first reading showed the outcome of 8, and not the block that it is the last of.
    assert decide_takeover(Listing((reservation(5, 2),), (outcome(5, 2), outcome(8, 2)))) == takeover(3, 9)
    second = Listing((reservation(5, 2), reservation(6, 2, 3), reservation(9, 3)), (outcome(5, 2), outcome(8, 2)))
    assert confirm(takeover(3, 9), second) == takeover(3, 9, 6, 7)


def test_ids_never_restart_while_anything_of_an_earlier_run_is_left() -> None:
    assert decide_takeover(Listing(outcomes=(outcome(9, 4),))) == takeover(5, 10)


def test_a_reservation_counts_only_if_nothing_lies_above_it() -> None:
    mine = takeover(3, 8)
    assert confirm(mine, Listing((reservation(7, 2), mine.reservation), (outcome(7, 3, is_tombstone=True),))) == mine
    assert confirm(mine, Listing((mine.reservation, reservation(9, 2)))) is None
    assert confirm(mine, Listing((mine.reservation,), (outcome(9, 2),))) is None


@pytest.mark.parametrize("count", [2, 3])
def test_a_reservation_in_the_middle_or_at_the_end_of_a_block_counts_for_nothing(count: int) -> None:
    # The first reading showed the outcome of 7, and not the block that it is the first of.
    mine = decide_takeover(Listing((reservation(6, 2),), (outcome(7, 2),)))
    listing = Listing((reservation(6, 2), reservation(7, 2, count), mine.reservation), (outcome(7, 2),))
    assert mine == takeover(3, 8)
    assert confirm(mine, listing) is None
    assert not is_fenced(listing, Generation(2))
    assert is_fenced(listing, mine.generation)


def test_a_takeover_stays_clear_of_all_ids_that_a_damaged_reservation_may_have_given_out() -> None:
    listing = Listing(
        (reservation(1, 1), reservation(2, 1, 15), reservation(17, 1), unreadable_reservation(CheckpointId(18)))
    )
    assert decide_takeover(listing) == takeover(2, 2 * BLOCK_IDS_MAX + 1)
    assert confirm(takeover(2, 33), listing) == takeover(2, 33, *range(1, 33))


def test_the_owner_is_the_generation_of_the_highest_reservation() -> None:
    listing = Listing((reservation(5, 2), reservation(4, 3)))
    assert not is_fenced(listing, Generation(2))
    assert is_fenced(listing, Generation(3))
    assert is_fenced(listing, Generation(1))
    assert not is_fenced(Listing(), Generation(1))


def test_a_driver_knows_its_reservations_by_its_token_whatever_their_generation() -> None:
    mine, other = (Reservation(CheckpointId(5), Generation(2), token=token) for token in ("mine", "other"))
    later = Reservation(CheckpointId(6), Generation(2), token="other")
    assert has_reserved(Listing((mine, later)), "mine") and is_taken(Listing((mine, later)), "mine")
    assert not is_taken(Listing((mine,)), "mine") and not is_taken(Listing(), "mine")
    assert not has_reserved(Listing((other,)), "mine") and is_taken(Listing((other,)), "mine")
    assert is_taken(Listing((mine, unreadable_reservation(CheckpointId(6)))), "mine")


def test_a_takeover_is_confirmed_by_its_own_reservation_and_no_other_of_that_generation() -> None:
    mine = decide_takeover(Listing((reservation(4, 1),)), "mine")
    assert mine.reservation == Reservation(CheckpointId(5), Generation(2), token="mine")
    assert confirm(mine, Listing((reservation(4, 1), mine.reservation))) is not None
    assert confirm(mine, Listing((reservation(4, 1), reservation(5, 2)))) is None


@dataclass
class Directory:
    """Files that can be created if absent, listed and deleted; and a memory of what was done with them."""

    reservations: dict[int, Reservation] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    used: list[CheckpointId] = field(default_factory=list)
    """Ids that somebody has begun an attempt with."""
    decided: list[Outcome] = field(default_factory=list)
    """Outcomes that somebody acts on, in the order of their creation, also those deleted since."""
    chosen_at: dict[Generation, int] = field(default_factory=dict)
    """How many outcomes there were when a generation chose what to restore."""

    def reserve(self, new: Reservation) -> bool:
        return self.reservations.setdefault(new.checkpoint, new) is new

    def damage(self, index: int) -> None:
        """Of one reservation nothing is known but its first id. Not of one that says that there was a generation."""
        blocks = [number for number, each in sorted(self.reservations.items()) if each.checkpoint not in self.first_ids]
        if blocks:
            number = blocks[-1 - index % len(blocks)]
            self.reservations[number] = unreadable_reservation(CheckpointId(number))

    @property
    def first_ids(self) -> set[CheckpointId]:
        first: dict[Generation, CheckpointId] = {}
        for number, each in sorted(self.reservations.items()):
            first.setdefault(each.generation, CheckpointId(number))
        return set(first.values())

    def decide(self, new: Outcome) -> bool:
        return self.outcomes.setdefault(new.checkpoint, new) is new

    def is_licensed(self, licence: Reservation) -> bool:
        """Whether this very file is there, and not one that says the same: a token tells them apart."""
        return self.reservations.get(licence.checkpoint) is licence

    @property
    def newest(self) -> CheckpointId:
        """The checkpoint that a takeover would choose."""
        completed = [each.checkpoint for each in self.outcomes.values() if not each.is_tombstone]
        return max(completed, default=CheckpointId(0))

    def read(self, dice: Dice) -> Generator[None, None, Listing]:
        """In two parts, so that there is time for something to happen in between."""
        if dice.throw():
            outcomes = tuple(self.outcomes.values())
            yield
            return Listing(tuple(self.reservations.values()), outcomes)
        reservations = tuple(self.reservations.values())
        yield
        return Listing(reservations, tuple(self.outcomes.values()))


@dataclass
class Dice:
    """What happens next at each fork: drawn by hypothesis."""

    throws: list[bool]

    def throw(self) -> bool:
        return self.throws.pop() if self.throws else True


def driver(directory: Directory, dice: Dice) -> Iterator[None]:
    """Takes over, works until it is fenced, and is started again. Every `yield` is a chance to fall asleep."""
    while True:
        owner = yield from take_over(directory, dice)
        if owner is not None:
            takeover, licence = owner
            assert takeover.generation not in directory.chosen_at, "a generation began twice"
            directory.chosen_at[takeover.generation] = len(directory.decided)
            completed = [each.checkpoint for each in directory.decided if not each.is_tombstone]
            assert directory.newest >= max(completed, default=0), "what a takeover chooses is not the newest"
            yield from work(directory, dice, takeover, licence)
        yield


def take_over(directory: Directory, dice: Dice) -> Generator[None, None, tuple[Takeover, Reservation] | None]:
    listing = yield from directory.read(dice)
    yield
    decided = decide_takeover(listing)
    licence = decided.reservation
    if not directory.reserve(licence):
        return None
    yield
    again = yield from directory.read(dice)
    confirmed = confirm(decided, again)
    for checkpoint in confirmed.tombstone if confirmed is not None else ():
        yield
        tombstone = Outcome(checkpoint, decided.generation, is_tombstone=True)
        if directory.decide(tombstone):
            directory.decided.append(tombstone)
    yield
    return (confirmed, licence) if confirmed is not None else None


def work(directory: Directory, dice: Dice, owner: Takeover, licence: Reservation) -> Iterator[None]:
    block = licence
    while True:
        following = decide_next_block(block, lasted_ms=0 if dice.throw() else 3_000)
        for checkpoint in block.ids:
            directory.used.append(checkpoint)
            yield
            if checkpoint == block.last:
                if not directory.is_licensed(licence):
                    return
                yield
                if not directory.reserve(following):
                    return
                yield
                if not directory.is_licensed(licence):
                    return
            yield
            if dice.throw():
                completed = Outcome(checkpoint, owner.generation)
                if not directory.decide(completed):
                    return
                # It counts from here on, also if its creator falls asleep; unless it was revoked before that.
                if directory.is_licensed(licence):
                    directory.decided.append(completed)
                yield
                if not directory.is_licensed(licence):
                    return
                yield from prune(directory, dice, RetentionBound(owner.generation, checkpoint, 1, first=owner.first))
        block = following


def prune(directory: Directory, dice: Dice, bound: RetentionBound) -> Iterator[None]:
    listing = yield from directory.read(dice)
    completed = tuple(
        CompletedCheckpoint(each.checkpoint, frozenset()) for each in listing.outcomes if not each.is_tombstone
    )
    retirement = decide_retention(Contents(completed, listing=listing), bound)
    for manifest in retirement.manifests:
        yield
        directory.outcomes.pop(manifest, None)
    for spent in (*retirement.reservations, *retirement.licences):
        yield
        directory.reservations.pop(spent, None)
    for tombstone in retirement.tombstones:
        yield
        directory.outcomes.pop(tombstone, None)


@settings(max_examples=500, deadline=None)
@given(
    # Long stretches of one driver make the others old; single turns find the races.
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 1, 2, 3, 30])), min_size=5, max_size=60),
    st.lists(st.booleans(), max_size=60),
)
def test_drivers_in_any_interleaving_share_no_id_and_the_older_one_completes_nothing_more(
    schedule: list[tuple[int, int]], throws: list[bool]
) -> None:
    directory, dice = Directory(), Dice(throws)
    drivers = [driver(directory, dice) for _ in range(3)]
    for turn, steps in schedule:
        for _ in range(steps):
            next(drivers[turn])
    judge(directory)


def judge(directory: Directory) -> None:
    assert len(directory.used) == len(set(directory.used)), "I5: an id was used twice"
    manifests = [each.checkpoint for each in directory.decided if not each.is_tombstone]
    assert manifests == sorted(set(manifests)), "I5: an id was completed twice, or after a later one"
    voided: set[CheckpointId] = set()
    for each in directory.decided:
        assert each.is_tombstone or each.checkpoint not in voided, (
            "a checkpoint was completed after it was declared void"
        )
        voided |= {each.checkpoint} if each.is_tombstone else set()
    for generation, so_far in directory.chosen_at.items():
        late = [each for each in directory.decided[so_far:] if each.generation < generation and not each.is_tombstone]
        assert late == [], "I6: an older generation completed a checkpoint after a newer one had chosen"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([1, 2, 3, 30])), min_size=5, max_size=40),
    st.lists(st.booleans(), max_size=60),
    st.integers(0, 20),
    st.integers(0, 3),
)
def test_drivers_share_no_id_although_the_size_of_a_block_was_lost(
    schedule: list[tuple[int, int]], throws: list[bool], when: int, which: int
) -> None:
    directory, dice = Directory(), Dice(throws)
    drivers = [driver(directory, dice) for _ in range(2)]
    for number, (turn, steps) in enumerate(schedule):
        if number == when:
            directory.damage(which)
        for _ in range(steps):
            next(drivers[turn])
    judge(directory)


@pytest.mark.parametrize("asleep_after", range(6, 60, 3))
def test_a_former_owner_may_wake_up_at_any_step_of_a_takeover_in_the_middle_of_a_block(asleep_after: int) -> None:
    for steps in range(60):
        directory = Directory()
        sleeper, other = driver(directory, Dice([])), driver(directory, Dice([]))
        for _ in range(asleep_after):
            next(sleeper)
        for _ in range(steps):
            next(other)
        for late in (sleeper, other, sleeper):
            for _ in range(40):
                next(late)
        judge(directory)
        assert max(each.count for each in directory.reservations.values()) > 1


def test_a_driver_that_slept_through_a_takeover_is_fenced_however_much_was_retired_since() -> None:
    directory = Directory()
    sleeper, worker = driver(directory, Dice([])), driver(directory, Dice([]))
    while not directory.used:
        next(sleeper)
    for _ in range(300):
        next(worker)
    assert len(directory.reservations) < 10 < len(directory.used)
    before = list(directory.decided)
    # Of what had kept it out nothing is left, and it creates its outcome; then it finds its licence gone.
    assert CheckpointId(1) not in directory.outcomes
    for _ in range(5):
        next(sleeper)
    assert directory.decided == before
    assert directory.used.count(CheckpointId(1)) == 1


def test_a_directory_that_is_taken_over_again_and_again_does_not_grow() -> None:
    directory = Directory()
    sizes = []
    for _ in range(20):
        owner = driver(directory, Dice([True, False] * 200))
        for _ in range(400):
            next(owner)
        sizes.append(len(directory.reservations) + len(directory.outcomes))
    judge(directory)
    assert len(directory.decided) > 500
    # Licence, blocks in use, and the void markers of the ids that its predecessor had not used.
    assert max(sizes[1:]) <= 2 * BLOCK_IDS_MAX + 6


@pytest.mark.parametrize("asleep_after", range(8, 60, 2))
def test_an_owner_may_wake_up_after_several_others_have_come_and_gone(asleep_after: int) -> None:
    for steps in (*range(30, 90, 7), 400):
        directory = Directory()
        sleeper = driver(directory, Dice([]))
        for _ in range(asleep_after):
            next(sleeper)
        others = [driver(directory, Dice([])) for _ in range(3)]
        for other in others:
            for _ in range(steps):
                next(other)
        for late in (sleeper, others[0], sleeper, others[2], sleeper, others[1]):
            for _ in range(17):
                next(late)
        judge(directory)


def test_a_driver_that_slept_between_reading_and_reserving_does_not_own_an_id_that_was_spent() -> None:
    directory = Directory()
    worker, sleeper = driver(directory, Dice([])), driver(directory, Dice([]))
    while len(directory.used) < 3:
        next(worker)
    next(sleeper)
    next(sleeper)
    for _ in range(100):
        next(worker)
    used = list(directory.used)
    for _ in range(4):
        next(sleeper)
    assert directory.used == used
    assert len(directory.chosen_at) == 1


@pytest.mark.parametrize("asleep_after", range(6, 24))
def test_an_owner_may_wake_up_in_the_middle_of_a_retirement_of_a_later_one(asleep_after: int) -> None:
    for steps in range(90):
        directory = Directory()
        # Their attempts fail: the sleeper meets nobody before its next block, and its successor retires nothing.
        sleeper, successor = (driver(directory, Dice([False] * 1000)) for _ in range(2))
        owner = driver(directory, Dice([]))
        for late, count in ((sleeper, asleep_after), (successor, 45), (owner, steps), (sleeper, 30), (owner, 30)):
            for _ in range(count):
                next(late)
        judge(directory)
