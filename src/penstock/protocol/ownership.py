"""Who owns a checkpoint directory, decided with nothing but create-if-absent (I5, I6).

Two kinds of file carry the ownership, and both are only ever created, never replaced:

    reservation of a block   "generation g may use the ids n to m", made before any of them is used for anything
    outcome of id n          its manifest, or a tombstone: at most one of them can ever exist

The file of a reservation is named after the first id of its block. An owner reserves block after block, each where the
one before ends, and the next one when it takes the last id, so that a trigger rarely waits for the store. To take over:

    1. read the listing: the new generation is the highest seen + 1, the first id the one after the highest block
    2. create the reservation of that id alone; lost → somebody else took over in between: begin again, or give up
    3. read the listing again; any other entry that reaches that id → the first reading was old: begin again
    4. create a tombstone for every id below it that was reserved and has none; lost → the former owner completed
       it: it counts
    5. only now choose the checkpoint to restore

Why this is safe however late or slow the former owner is, without a lease and without a clock: the only way for it
to change anything is to create an outcome, for an id of a block that it had reserved. By step 3 all its blocks end
below our first id, and the next one it would reserve *begins* with our first id, so it gets no other. After step 4
every id that it could still create an outcome for has one, so what exists when we choose in step 5 exists for good, and
nothing can be added to it. The former owner finds out on its own: its next reservation is taken, or its outcome is
there already and not its own. Then it is fenced and stops. A lease would only make it stop sooner.

Step 3 is there for two reasons. A driver that was asleep between 1 and 2 can create a reservation anew that was deleted
because it was spent. And a reading takes time: it can show the outcome of an id and not the reservation of the block
that the id is from, and then the id after it is in the middle of a block. In both cases the second reading shows the
block that reaches further, or just as far. What gets a tombstone is taken from the second reading too. The
reservation that was created in vain is worth nothing, and does no harm: ownership is with the block that ends highest,
and of two that end with the same id, with the one that had begun before.

A block never crosses a multiple of `BLOCK_IDS_MAX`. So of a reservation that is damaged it is known how far its block
can reach; and whatever its size was, and that of those after it, its owner must begin a block right behind that
multiple: there it meets who has taken over (I5, I6).

A reservation carries the token of its driver: a random word, made once in the life of a driver and given to nobody
else. A store may carry out a creation and lose its reply, so that whoever created a file hears an error, or hears that
the file was there before. The content tells: a file that holds one's own token is one's own. By the token a driver that
restarts also knows whether it still owns the directory, although it may not know which generations it has taken.

The reservation with which a generation began is also its **licence**. An owner acts on nothing that it has created, be
it a reservation or an outcome, before it has read its licence again and found it unchanged. Whoever has taken over may
therefore revoke the licences of older generations by deleting them, and then delete the rest of what keeps them out.
Files that stop a former owner would otherwise have to stay as long as it may sleep. The order matters:

    1. licences of older generations, durably, one after the other in the order of their ids
    2. tombstones of ids below our own first one

However late a former owner wakes up, one of three things happens to its next creation. The name is taken: it is fenced
as before. The name is free because a tombstone, or the reservation behind its last block, was deleted: then its own
licence was deleted before that, by this order (the reservation behind its last block is the licence of its successor,
whose id is higher), and it finds out when it reads its licence. Or the name is free because nobody has taken over.
A licence that is gone does not come back: a driver that was asleep while it took over may create the file anew, but not
with the same token, and it is told by step 3 of the takeover that it owns nothing. The trap: a creation of the very
same licence that was given up because it hung, and was repeated, must not arrive after all of this.

An owner reads its licence before a creation too. Only one that falls asleep between the two, and is revoked meanwhile,
leaves a file. Nobody acts on it. A manifest has a lower id than the newest completed checkpoint of our own generation,
without which nothing is revoked, and that one does not name it: it is a stray (`protocol.strays`), which no takeover
chooses and retention removes. A block may reach beyond our highest one: then we may take ourselves for fenced until our
ids have passed it.

What stays in a directory that is used for years: the licence of the current generation, its highest reservation, and
whatever the retained checkpoints and savepoints need. All other reservations go once all ids of their block are spent,
tombstones with the next generation that completes a checkpoint (`protocol.retention`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.ids import NO_CHECKPOINT, CheckpointId, Generation

NO_GENERATION = Generation(0)

BLOCK_IDS_MAX = 16
"""The most ids that are reserved at once. It takes nearly all of the cost of a reservation away; and a takeover must
write tombstones for what is left of a block, one marker for each id."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """`generation` alone may use the block of `count` ids that begins with `checkpoint`."""

    checkpoint: CheckpointId
    generation: Generation
    count: int = 1
    token: str = ""
    """Of the driver; empty in files of versions that had none."""

    @property
    def last(self) -> CheckpointId:
        return CheckpointId(self.checkpoint + self.count - 1)

    @property
    def ids(self) -> Iterable[CheckpointId]:
        return map(CheckpointId, range(self.checkpoint, self.last + 1))


def block_ids_max(checkpoint: CheckpointId) -> int:
    """How many ids a block that begins with `checkpoint` may have: up to the next multiple of `BLOCK_IDS_MAX`."""
    return BLOCK_IDS_MAX - (checkpoint - 1) % BLOCK_IDS_MAX


def unreadable_reservation(checkpoint: CheckpointId) -> Reservation:
    """What to make of a damaged one: whose it was is lost, but not which ids it may have given out. All are spent."""
    return Reservation(checkpoint, NO_GENERATION, block_ids_max(checkpoint))


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What stands in a manifest's place: `checkpoint` never completed and never will. By `generation`."""

    checkpoint: CheckpointId
    generation: Generation


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a checkpoint ended, without its content: completed by `generation`, or ended by its tombstone."""

    checkpoint: CheckpointId
    generation: Generation
    is_tombstone: bool = False


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
        """The highest id that was given out, whether it was used or not."""
        return max(map(_last_id, self._entries), default=NO_CHECKPOINT)

    def without(self, reservation: Reservation) -> Listing:
        return replace(self, reservations=tuple(each for each in self.reservations if each != reservation))

    @property
    def owner(self) -> Reservation | None:
        """The reservation by which somebody owns the directory."""
        return max(self.reservations, key=lambda each: (each.last, each.count), default=None)

    @property
    def _entries(self) -> tuple[Reservation | Outcome, ...]:
        return (*self.reservations, *self.outcomes)


def _last_id(entry: Reservation | Outcome) -> CheckpointId:
    return entry.last if isinstance(entry, Reservation) else entry.checkpoint


@dataclass(frozen=True, slots=True)
class Takeover:
    """What to create, in this order: the reservation of `first` by `generation`, then the `tombstone` outcomes.

    Those are known when it is confirmed.
    """

    generation: Generation
    first: CheckpointId
    tombstone: tuple[CheckpointId, ...] = ()
    token: str = ""

    @property
    def reservation(self) -> Reservation:
        return Reservation(self.first, self.generation, token=self.token)


def decide_takeover(listing: Listing, token: str = "") -> Takeover:
    """How to become the owner. Trap: nothing is owned until the reservation was created and `confirm`ed."""
    return Takeover(
        generation=Generation(listing.newest_generation + 1),
        first=CheckpointId(listing.newest_checkpoint + 1),
        token=token,
    )


def confirm(takeover: Takeover, listing: Listing) -> Takeover | None:
    """The takeover with all that gets a tombstone, by a listing read after its reservation was created.

    None if anything else reaches its id: then nothing is owned, and the id is spent.
    """
    others = listing.without(takeover.reservation)
    # Just as high is too high: a block of the former owner may end with this very id.
    if others.newest_checkpoint >= takeover.first:
        return None
    reserved = {checkpoint for reservation in others.reservations for checkpoint in reservation.ids}
    settled = {outcome.checkpoint for outcome in others.outcomes}
    return replace(takeover, tombstone=tuple(sorted(reserved - settled)))


def is_fenced(listing: Listing, generation: Generation) -> bool:
    """Whether another generation owns the directory. Trap: False says nothing about the moment after the reading."""
    return listing.owner is not None and listing.owner.generation != generation


def has_reserved(listing: Listing, token: str) -> bool:
    """Whether the driver of this token has taken the directory over. The trap: a newer owner deletes its reservations,
    so that False says nothing about a driver that has been the owner and knows it."""
    return any(reservation.token == token for reservation in listing.reservations)


def is_taken(listing: Listing, token: str) -> bool:
    """Whether another driver than that of `token` owns the directory. The trap of `is_fenced` holds here too."""
    return listing.owner is not None and listing.owner.token != token
