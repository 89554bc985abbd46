"""Orders through the checkpoint directory: what the driver does with them, and what whoever gives them is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.driver.control import ANSWER_AGE_MS_MAX, ORDER_AGE_MS_MAX, POLL_MS, Command, Control, give_order
from penstock.errors import PenstockError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.mailbox.timers import Timers
from penstock.protocol.coordinator.events import RequestCompleted, RequestDeclined, RequestResult
from penstock.protocol.coordinator.state import RequestKind
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Manifest, PipelineShape
from penstock.protocol.manifest.codec import encode_manifest
from penstock.storage import paths
from penstock.storage.lease import Lease
from penstock.storage.local import LocalStore
from penstock.storage.memory import MemoryStore
from penstock.storage.port import Store
from tests.unit.mailbox.fake_ports import ManualBackground, ManualClock

NINE = CheckpointId(9)
ORDER = "0" * 32


class FakeSupervisor:
    """Remembers what it was asked; answers when the test says so."""

    def __init__(self, clock: ManualClock) -> None:
        self.timers = Timers(clock)
        self.requests: list[tuple[RequestKind, Callable[[RequestResult], None]]] = []
        self.is_stopped = False

    def request(self, kind: RequestKind, answer: Callable[[RequestResult], None]) -> None:
        self.requests.append((kind, answer))

    def stop(self) -> None:
        self.is_stopped = True


class WallClock(ManualClock):
    """Wall time is real here, because whoever gives an order has no other; it can be put forward."""

    ahead_ms = 0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class Driver:
    """A driver's control on ports that are moved by hand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = WallClock()
        self.background = ManualBackground()
        self.supervisor = FakeSupervisor(self.clock)
        self.lease = Lease(store, "totals")
        self.lease.beat()
        self.control = Control(store, self.supervisor, self.background, self.clock)
        self.control.start()
        self.background.run()

    def turn(self) -> None:
        """A second passes: one look at the directory, and all that follows from it."""
        self.clock.advance(POLL_MS)
        self.supervisor.timers.fire()
        self.background.run()

    def end(self, failure: Exception | None = None) -> None:
        self.lease.release()
        self.control.close(failure)

    def answers(self, order: str = ORDER) -> dict[str, object] | None:
        path = paths.control_answer(order)
        if path not in self.store.list(path):
            return None
        answer: dict[str, object] = json.loads(self.store.read(path))
        assert answer.pop("created_at_ms")
        return answer


def ask(
    driver: Driver,
    command: Command,
    steps: Callable[[], None],
    arguments: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> CheckpointId | None:
    """Give an order; every time its giver sleeps, `steps` is called and a second passes for it."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 1.0
        driver.turn()
        steps()

    return give_order(driver.store, "DIR", command, arguments, timeout_s=timeout_s, monotonic=lambda: now, sleep=sleep)


def put_order(driver: Driver, command: str = "savepoint", age_ms: int = 0, order: str = ORDER) -> None:
    value = {"command": command, "created_at_ms": driver.clock.wall_ms() - age_ms, "arguments": {}}
    driver.store.create(paths.control_request(order), json.dumps(value).encode())


@pytest.fixture
def driver() -> Driver:
    return Driver(MemoryStore())


def left_over(store: Store) -> list[str]:
    return store.list(paths.CONTROL)


def test_a_savepoint_is_taken_and_told(driver: Driver) -> None:
    def answer() -> None:
        if driver.supervisor.requests:
            kind, told = driver.supervisor.requests.pop()
            assert kind is RequestKind.SAVEPOINT
            told(RequestCompleted(NINE))
            driver.background.run()

    assert ask(driver, Command.SAVEPOINT, answer) == NINE
    assert left_over(driver.store) == []


def test_a_savepoint_is_copied_where_it_was_asked_for(driver: Driver, tmp_path: Path) -> None:
    manifest = Manifest(NINE, Generation(1), PipelineShape("totals", 128), is_savepoint=True)
    driver.store.create(paths.manifest(NINE), encode_manifest(manifest))

    def answer() -> None:
        if driver.supervisor.requests:
            driver.supervisor.requests.pop()[1](RequestCompleted(NINE))
            driver.background.run()

    assert ask(driver, Command.SAVEPOINT, answer, {"path": str(tmp_path / "copy")}) == NINE
    assert LocalStore(tmp_path / "copy").list("") == [paths.manifest(NINE)]


def test_a_savepoint_that_cannot_be_copied_is_told_with_its_id(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def answer() -> None:
        if driver.supervisor.requests:
            driver.supervisor.requests.pop()[1](RequestCompleted(NINE))
            driver.background.run()

    with pytest.raises(PenstockError, match=r"savepoint 9 is complete, but could not be copied"):
        ask(driver, Command.SAVEPOINT, answer, {"path": str(tmp_path / "file")})


def test_a_savepoint_that_is_declined_is_an_error_with_the_reason(driver: Driver) -> None:
    def answer() -> None:
        if driver.supervisor.requests:
            driver.supervisor.requests.pop()[1](RequestDeclined(DeclineReason.EXPIRED, "sum[0] is silent"))
            driver.background.run()

    with pytest.raises(PenstockError, match=r"savepoint on DIR: it was declined: expired \(sum\[0\] is silent\)"):
        ask(driver, Command.SAVEPOINT, answer)
    assert left_over(driver.store) == []


def test_stop_is_answered_when_the_pipeline_has_ended(driver: Driver) -> None:
    def end() -> None:
        if driver.supervisor.is_stopped:
            assert left_over(driver.store) == []
            driver.end()

    assert ask(driver, Command.STOP, end) is None
    assert driver.supervisor.is_stopped


def test_drain_is_answered_with_its_savepoint_when_the_pipeline_has_ended(driver: Driver) -> None:
    def end() -> None:
        if driver.supervisor.requests:
            kind, told = driver.supervisor.requests.pop()
            assert kind is RequestKind.DRAIN
            told(RequestCompleted(NINE))
            driver.background.run()
            assert left_over(driver.store) == []
            driver.end()

    assert ask(driver, Command.DRAIN, end) == NINE


def test_a_pipeline_that_fails_instead_says_so(driver: Driver) -> None:
    with pytest.raises(PenstockError, match="drain on DIR: the pipeline failed: disk full"):
        ask(driver, Command.DRAIN, lambda: driver.end(StorageError("disk full")))


def test_a_pipeline_that_ends_first_says_so(driver: Driver) -> None:
    with pytest.raises(PenstockError, match="ended before the savepoint was complete"):
        ask(driver, Command.SAVEPOINT, driver.end)


def test_an_answer_on_its_way_when_the_pipeline_ends_still_arrives(driver: Driver) -> None:
    put_order(driver)
    driver.turn()
    driver.supervisor.requests.pop()[1](RequestCompleted(NINE))
    # The background was closed before it could write the answer.
    driver.background.jobs.clear()
    driver.end()
    assert driver.answers() == {"checkpoint": 9, "error": None}


def test_nobody_is_asked_where_no_driver_lives() -> None:
    store = MemoryStore()
    with pytest.raises(PenstockError, match="no pipeline is running on DIR"):
        give_order(store, "DIR", Command.STOP)
    assert store.blobs == {}


def test_a_driver_that_never_looks_is_told_apart_from_one_that_takes_long(driver: Driver) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 1.0

    with pytest.raises(PenstockError, match="did not take the order within 3 s"):
        give_order(driver.store, "DIR", Command.STOP, timeout_s=3.0, monotonic=lambda: now, sleep=sleep)
    # Withdrawn: a driver that wakes up must not stop for it.
    assert left_over(driver.store) == []
    with pytest.raises(PenstockError, match="took the order and was not done within 3 s"):
        ask(driver, Command.SAVEPOINT, lambda: None, timeout_s=3.0)


def test_a_driver_that_dies_is_noticed(driver: Driver) -> None:
    with pytest.raises(PenstockError, match="ended before it answered"):
        ask(driver, Command.SAVEPOINT, driver.lease.release)


def test_an_order_is_removed_before_it_is_carried_out(driver: Driver) -> None:
    put_order(driver, "stop")
    driver.turn()
    assert driver.supervisor.is_stopped
    assert left_over(driver.store) == []
    # A driver that is started after the one that took the order has died knows nothing of it.
    second = Driver(driver.store)
    second.turn()
    assert not second.supervisor.is_stopped


def test_an_order_that_cannot_be_removed_is_not_carried_out(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise StorageError("read-only")

    put_order(driver, "stop")
    monkeypatch.setattr(driver.store, "delete", refuse)
    driver.turn()
    assert not driver.supervisor.is_stopped
    monkeypatch.undo()
    driver.turn()
    assert driver.supervisor.is_stopped


def test_an_old_order_is_refused(driver: Driver) -> None:
    put_order(driver, "stop", age_ms=ORDER_AGE_MS_MAX + 1_000)
    driver.turn()
    assert not driver.supervisor.is_stopped
    answer = driver.answers()
    assert answer is not None
    assert "61 s old by the driver's clock" in str(answer["error"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe",
        b'{"command": "reboot", "created_at_ms": 0}',
        b'{"command": "stop", "created_at_ms": "now"}',
        b'{"command": "stop", "created_at_ms": 0, "arguments": {"path": 7}}',
        b"[" * 100_000,
    ],
)
def test_garbage_is_answered_and_disturbs_nobody(driver: Driver, content: bytes) -> None:
    driver.store.create(paths.control_request(ORDER), content)
    driver.store.create("control/readme.txt", b"not ours")
    driver.turn()
    assert not driver.supervisor.is_stopped
    answer = driver.answers()
    assert answer is not None
    assert "cannot be understood" in str(answer["error"])
    assert "control/readme.txt" in left_over(driver.store)
    put_order(driver, "stop", order="1" * 32)
    driver.turn()
    assert driver.supervisor.is_stopped


@pytest.mark.parametrize("content", [b'{"created_at_ms": %d}', b"damaged %d"])
def test_answers_that_nobody_fetches_are_swept(driver: Driver, content: bytes) -> None:
    driver.store.create(paths.control_answer(ORDER), content % driver.clock.wall_ms())
    driver.turn()
    assert left_over(driver.store) == [paths.control_answer(ORDER)]
    driver.clock.ahead_ms += ANSWER_AGE_MS_MAX + 1_000
    driver.turn()
    assert left_over(driver.store) == []


def test_a_store_that_fails_is_looked_at_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prefix: str) -> list[str]:
        raise StorageError("gone for a moment")

    put_order(driver, "stop")
    monkeypatch.setattr(driver.store, "list", refuse)
    driver.turn()
    monkeypatch.undo()
    driver.turn()
    assert driver.supervisor.is_stopped


def test_an_answer_of_another_version_is_an_error(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "control_id", lambda: ORDER)
    with pytest.raises(PenstockError, match="cannot be read"):
        ask(driver, Command.SAVEPOINT, lambda: driver.store.write(paths.control_answer(ORDER), [b"?"]))


def test_an_order_whose_creation_raises_although_it_happened_is_withdrawn(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = driver.store.create

    def lost(path: str, data: bytes) -> bool:
        create(path, data)
        raise StorageError("the connection was reset")

    monkeypatch.setattr(driver.store, "create", lost)
    with pytest.raises(StorageError, match="reset"):
        give_order(driver.store, "DIR", Command.STOP)
    assert driver.store.list(paths.CONTROL) == []
