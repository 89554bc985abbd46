"""The ports on which worker and coordinator run: clock, transport, background work.

On Spark they are real time, ZeroMQ and threads; in the simulator one seeded scheduler plays all of them.
Everything here is called from the mailbox and calls back into the mailbox: there is no other thread in
what is written on these ports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.ids import WorkerId

if TYPE_CHECKING:
    from penstock.mailbox.frames import Frame

T = TypeVar("T")


class Clock(Protocol):
    """Time of this process. All but `wall_ms` is monotonic and says nothing about any other process's."""

    def now_ms(self) -> int: ...

    def now_us(self) -> int:
        """Finer, for measuring."""
        ...

    def own_us(self) -> int:
        """As `now_us`, but it stands still while this thread could run and the system runs something else.

        For measuring how fast something is here, where others share the cores. Sleeping and waiting for input count.
        Where the system does not say it is `now_us`. For the mailbox thread only.
        """
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970: for people, and for timers of user code that outlive the process."""
        ...


class Transport(Protocol):
    """Sends frames to workers and the coordinator; order is kept from one sender to one receiver."""

    def send(self, to: WorkerId, frame: Frame) -> None:
        """Hand over and return at once. A frame to one that is dead is lost, silently."""
        ...


class Background(Protocol):
    """Runs what may block, outside the mailbox."""

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """Run `work` elsewhere, then `done` with its result or exception in the mailbox."""
        ...


class AttemptBackground(Background, Protocol):
    """A background for one attempt: work of an earlier attempt that hangs holds up nothing of it."""

    def close(self) -> None:
        """Drop what has not begun; what is under way is told to nobody."""
        ...
