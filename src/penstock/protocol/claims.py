"""Who owns a checkpoint directory, decided with nothing but create-if-absent (I5, I6).

Two kinds of file carry the ownership, and both are only ever created, never replaced:

    reservation of id n   "generation g may use n", made before n is used for anything
    outcome of id n       its manifest, or a void marker: at most one of them can ever exist

An owner reserves its ids in order, and one ahead, so that a trigger never waits for the store. To take over:

    1. read the listing: the new generation is the highest seen + 1, the first id the highest reserved + 1
    2. create the reservation of that first id; lost → somebody else took over in between: begin again, or give up
    3. read the listing again; anything above that id → the first reading was old, and the id spent: begin again
    4. create a void outcome for every id below it that has none; lost → the former owner completed it: it counts
    5. only now choose the checkpoint to restore

Why this is safe however late or slow the former owner is, without a lease and without a clock: the only way for it
to change anything is to create an outcome, for an id that it had reserved. All those ids lie below our first one,
because the next one it would reserve *is* our first one. After step 4 every one of them has an outcome, so what
exists when we choose in step 5 exists for good, and nothing can be added to it. The former owner finds out on its
own: its next reservation is taken, or its outcome is there already and not its own. Then it is fenced and stops.
A lease would only make it stop sooner.

What must never be deleted, because an owner that was asleep for a week still has to run into it: the reservation with
which a generation began, the highest reservation, and every void marker. All other reservations may go once their id
is spent (`protocol.retention`); step 3 is there because a driver that was asleep between 1 and 2 can then create one
of those anew. Such a reservation is worth nothing, and does no harm: ownership is with the highest one.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.ids import NO_CHECKPOINT, CheckpointId, Generation

NO_GENERATION = Generation(0)


@dataclass(frozen=True, slots=True)
class Reservation:
    """`generation` alone may use `checkpoint`."""

    checkpoint: CheckpointId
    generation: Generation


@dataclass(frozen=True, slots=True)
class Void:
    """What stands in a manifest's place: `checkpoint` never completed and never will. By `generation`."""

    checkpoint: CheckpointId
    generation: Generation


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a checkpoint ended, without its content: completed by `generation`, or declared void by it."""

    checkpoint: CheckpointId
    generation: Generation
    is_void: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """What lay in the directory when it was read, the outcomes before the reservations.

    Trap: by the time it is used, there may be more.
    """

    reservations: tuple[Reservation, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    @property
    def newest_generation(self) -> Generation:
        return max((entry.generation for entry in self._entries), default=NO_GENERATION)

    @property
    def newest_checkpoint(self) -> CheckpointId:
        return max((entry.checkpoint for entry in self._entries), default=NO_CHECKPOINT)

    @property
    def _entries(self) -> tuple[Reservation | Outcome, ...]:
        return (*self.reservations, *self.outcomes)


@dataclass(frozen=True, slots=True)
class Takeover:
    """What to create, in this order: the reservation of `first` by `generation`, then the `void` outcomes."""

    generation: Generation
    first: CheckpointId
    void: tuple[CheckpointId, ...] = ()

    @property
    def reservation(self) -> Reservation:
        return Reservation(self.first, self.generation)


def decide_takeover(listing: Listing) -> Takeover:
    """How to become the owner. Trap: nothing is owned until the reservation was created and `is_confirmed`."""
    settled = {outcome.checkpoint for outcome in listing.outcomes}
    reserved = {reservation.checkpoint for reservation in listing.reservations}
    return Takeover(
        generation=Generation(listing.newest_generation + 1),
        first=CheckpointId(listing.newest_checkpoint + 1),
        void=tuple(sorted(reserved - settled)),
    )


def is_confirmed(takeover: Takeover, listing: Listing) -> bool:
    """Whether a reservation that was created is the highest, by a listing read after it was created."""
    return listing.newest_checkpoint <= takeover.first


def is_fenced(listing: Listing, generation: Generation) -> bool:
    """Whether another generation owns the directory. Trap: False says nothing about the moment after the reading."""
    highest = max(listing.reservations, key=lambda reservation: reservation.checkpoint, default=None)
    return highest is not None and highest.generation != generation
