"""Orders to a running pipeline, through its checkpoint directory: they work with every store, and need no address.

    who gives the order                       the driver
    creates <order>.request.json   ------->   finds it by a look at the directory, about once a second
                                              removes it, then carries it out in its mailbox
    reads the answer, removes it   <-------   creates <order>.answer.json

Rules:

- Whoever may write to the directory may give orders. They are JSON of a fixed schema, and nothing in them can run.
- An order is removed before it is carried out: a driver that died in between and was started again must not stop for
  what was asked of the one before. So an order is carried out once or not at all, and no answer may mean either.
- An order that is older than a minute is refused: whoever gave it has left.
- A pipeline is told to have stopped when it has ended and released its lease, so that it can be started again.
- An answer that nobody has fetched is removed after ten minutes.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import msgspec

from penstock.errors import OptionError, PenstockError, StorageError
from penstock.ids import CheckpointId
from penstock.mailbox.ports import Background, Clock
from penstock.mailbox.timers import Timers
from penstock.protocol.coordinator.events import RequestCompleted, RequestResult
from penstock.protocol.coordinator.state import RequestKind
from penstock.storage import open_store, paths
from penstock.storage.copies import export_checkpoint
from penstock.storage.lease import Lease
from penstock.storage.port import Store

POLL_MS = 1_000
ORDER_AGE_MS_MAX = 60_000
ANSWER_AGE_MS_MAX = 600_000
_LAST_WORD_S = 5.0
"""How long after the end of a driver its answer may still arrive: the lease goes first."""


class Command(enum.Enum):
    """What can be asked of a running pipeline."""

    SAVEPOINT = "savepoint"
    """With the argument `path`: copied there as well, seen from the driver."""
    DRAIN = "drain"
    """Stop with a savepoint."""
    STOP = "stop"
    """Stop at once."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked, and when, by the clock of whoever asks."""

    command: Command
    created_at_ms: int
    arguments: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an order: an error, or the checkpoint where there is one."""

    created_at_ms: int
    checkpoint: CheckpointId | None = None
    error: str | None = None


class Supervised(Protocol):
    """What orders are carried out on: the supervisor of the pipeline."""

    timers: Timers

    def request(self, kind: RequestKind, answer: Callable[[RequestResult], None]) -> None:
        """Answered in any case, be it with a refusal."""
        ...

    def stop(self) -> None: ...


# --- the driver ---


@dataclass(slots=True)
class _Open:
    """An order that was taken and is not answered yet."""

    order: Order
    answer: Answer | None = None
    """What is to be answered, once it is known."""


class Control:
    """The driver's side. All but what runs in the background, and `close`, happens in the mailbox."""

    def __init__(self, store: Store, supervisor: Supervised, background: Background, clock: Clock) -> None:
        self._store = store
        self._supervisor = supervisor
        self._background = background
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._answered_at_ms: dict[str, int] = {}

    def start(self) -> None:
        """Look for orders now and then, until the driver ends."""
        self._background.submit(self._look, self._on_looked)

    def close(self, failure: Exception | None) -> None:
        """The pipeline has ended and its lease is released: answer whoever still waits. Blocks."""
        for order, opened in self._open.items():
            answer = opened.answer or self._last_word(opened.order.command, failure)
            self._put(order, answer)
        self._open.clear()

    def _last_word(self, command: Command, failure: Exception | None) -> Answer:
        if failure is not None:
            return self._error(f"the pipeline failed: {failure}")
        if command is Command.STOP:
            return Answer(self._clock.wall_ms())
        return self._error(f"the pipeline ended before the {command.value} was complete")

    # --- in the mailbox ---

    def _on_looked(self, found: list[tuple[str, Order]] | Exception) -> None:
        # A directory that cannot be read shows itself soon enough, in the checkpoints.
        for name, order in found if not isinstance(found, Exception) else ():
            self._obey(name, order)
        self._supervisor.timers.after(POLL_MS, self.start)

    def _obey(self, name: str, order: Order) -> None:
        self._open[name] = _Open(order)
        match order.command:
            case Command.STOP:
                self._supervisor.stop()
            case Command.SAVEPOINT:
                self._supervisor.request(RequestKind.SAVEPOINT, lambda result: self._on_savepoint(name, result))
            case Command.DRAIN:
                self._supervisor.request(RequestKind.DRAIN, lambda result: self._on_drained(name, result))
            case _:
                assert_never(order.command)

    def _on_savepoint(self, name: str, result: RequestResult) -> None:
        path = self._open[name].order.arguments.get("path") if name in self._open else None
        if not isinstance(result, RequestCompleted) or path is None:
            self._answer(name, self._told(result))
            return

        def copied(outcome: object) -> None:
            if isinstance(outcome, Exception):
                why = f"savepoint {result.checkpoint} is complete, but could not be copied to {path}: {outcome}"
                self._answer(name, self._error(why))
            else:
                self._answer(name, self._told(result))

        store = self._store
        self._background.submit(lambda: export_checkpoint(store, result.checkpoint, open_store(path)), copied)

    def _on_drained(self, name: str, result: RequestResult) -> None:
        if not isinstance(result, RequestCompleted):
            self._answer(name, self._told(result))
        elif name in self._open:
            # Answered by `close`: the pipeline has not ended yet.
            self._open[name].answer = self._told(result)

    def _answer(self, name: str, answer: Answer) -> None:
        if name not in self._open:
            return
        # Open until it is written: should the pipeline end before that, `close` writes it.
        self._open[name].answer = answer
        self._background.submit(lambda: self._put(name, answer), lambda _: self._forget(name))

    def _forget(self, name: str) -> None:
        self._open.pop(name, None)

    def _told(self, result: RequestResult) -> Answer:
        if isinstance(result, RequestCompleted):
            return Answer(self._clock.wall_ms(), result.checkpoint)
        detail = f" ({result.detail})" if result.detail else ""
        return self._error(f"it was declined: {result.reason.value}{detail}")

    def _error(self, text: str) -> Answer:
        return Answer(self._clock.wall_ms(), error=text)

    # --- in the background ---

    def _look(self) -> list[tuple[str, Order]]:
        """Take the orders that have come, and remove answers that nobody has fetched."""
        found = []
        for path in self._store.list(paths.CONTROL):
            name, kind = paths.control_of(path), paths.kind_of(path)
            try:
                if name is not None and kind is paths.PathKind.CONTROL_REQUEST:
                    order = self._take(name)
                    found += [(name, order)] if order is not None else []
                elif name is not None:
                    self._sweep(path)
            except StorageError:
                # Removed by whoever gave the order, or tried again with the next look.
                continue
        return found

    def _take(self, name: str) -> Order | None:
        path = paths.control_request(name)
        data = self._store.read(path)
        self._store.delete(path)
        try:
            order = msgspec.json.decode(data, type=Order)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._put(name, self._error(f"the order cannot be understood: {error}"))
            return None
        age_ms = self._clock.wall_ms() - order.created_at_ms
        if age_ms > ORDER_AGE_MS_MAX:
            self._put(name, self._error(f"the order is {age_ms // 1000} s old by the driver's clock: set the clocks"))
            return None
        return order

    def _sweep(self, path: str) -> None:
        now_ms = self._clock.wall_ms()
        if path not in self._answered_at_ms:
            answer = _decoded(self._store.read(path))
            self._answered_at_ms[path] = answer.created_at_ms if answer is not None else now_ms
        if now_ms - self._answered_at_ms[path] > ANSWER_AGE_MS_MAX:
            self._store.delete(path)
            del self._answered_at_ms[path]

    def _put(self, name: str, answer: Answer) -> None:
        try:
            self._store.create(paths.control_answer(name), msgspec.json.encode(answer))
        except StorageError:
            # Whoever asked sees that there is no answer; the pipeline does not depend on it.
            return


def _decoded(data: bytes) -> Answer | None:
    try:
        return msgspec.json.decode(data, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# --- whoever gives orders ---


def is_driven(store: Store) -> bool:
    """Whether a driver that lives owns the directory."""
    try:
        Lease(store, "").check()
    except OptionError:
        return True
    return False


def give_order(
    store: Store,
    place: str,
    command: Command,
    arguments: dict[str, str] | None = None,
    *,
    timeout_s: float = 60.0,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> CheckpointId | None:
    """Ask the driver on `store` and wait for its answer: the checkpoint, where the order brings one.

    `place` is what the user calls the directory. Raises `PenstockError` if there is no driver, if it does not answer,
    or with what it answers. The trap: after a timeout the order may still be carried out.
    """
    if not is_driven(store):
        raise PenstockError(
            f"no pipeline is running on {place}: start it with `penstock run … --checkpoints "
            f"{place}`, or check that this is its directory (`penstock checkpoints list {place}`)"
        )
    name = paths.control_id()
    order = Order(command, time.time_ns() // 1_000_000, arguments or {})
    try:
        # Inside: a creation that raises may have happened, and then the order is withdrawn.
        store.create(paths.control_request(name), msgspec.json.encode(order))
        answer = _await_answer(store, place, name, timeout_s, monotonic, sleep)
    finally:
        store.delete(paths.control_request(name), paths.control_answer(name))
    if answer.error is not None:
        raise PenstockError(f"{command.value} on {place}: {answer.error}")
    return answer.checkpoint


def _await_answer(
    store: Store,
    place: str,
    name: str,
    timeout_s: float,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
) -> Answer:
    path = paths.control_answer(name)
    started_at = driven_at = monotonic()
    while True:
        if path in store.list(path):
            answer = _decoded(store.read(path))
            if answer is None:
                raise PenstockError(
                    f"the answer of the pipeline on {place} cannot be read: it may run another version of Penstock"
                )
            return answer
        now = monotonic()
        if is_driven(store):
            driven_at = now
        elif now - driven_at > _LAST_WORD_S:
            raise PenstockError(f"the pipeline on {place} ended before it answered: its output has the reason")
        if now - started_at > timeout_s:
            raise PenstockError(_silence(store, place, name, timeout_s))
        sleep(0.2)


def _silence(store: Store, place: str, name: str, timeout_s: float) -> str:
    request = paths.control_request(name)
    if request in store.list(request):
        return (
            f"the pipeline on {place} did not take the order within {timeout_s:g} s: its driver is there, but hangs "
            f"or cannot read the directory. The order is withdrawn."
        )
    return (
        f"the pipeline on {place} took the order and was not done within {timeout_s:g} s: it may still be. "
        f"Wait longer with --timeout, or look at its progress"
    )
