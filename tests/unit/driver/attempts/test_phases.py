"""A pipeline is running when every subtask runs; until then its phase says how far it has come."""

from __future__ import annotations

from penstock.driver.attempts.phases import HoldUp, Phase, Progress, Startup
from penstock.driver.reminders import Reminders
from penstock.ids import Generation, WorkerId
from penstock.mailbox.frames import Endpoint, HeartbeatFrame, HelloFrame, ReadyFrame
from penstock.mailbox.recovery_stats import RecoveryStats

G = Generation(1)
FIRST, SECOND = WorkerId(0), WorkerId(1)


def hello(worker: WorkerId) -> HelloFrame:
    return HelloFrame(G, worker, Endpoint("host", "local", "remote"))


def reading(worker: WorkerId, read: int, total: int) -> HeartbeatFrame:
    return HeartbeatFrame(G, worker, recovery=RecoveryStats(state_bytes=total, state_bytes_read=read))


def test_workers_start_then_restore_then_run() -> None:
    startup = Startup(2, restores=True)
    shown = [str(startup.progress)]
    for frame in (
        hello(FIRST),
        hello(SECOND),
        reading(FIRST, 40, 100),
        reading(SECOND, 40, 100),
        reading(FIRST, 100, 100),
        ReadyFrame(G, FIRST),
        ReadyFrame(G, SECOND),
    ):
        startup.heard(frame)
        shown.append(str(startup.progress))
    assert shown == [
        "starting workers (0 of 2)",
        "starting workers (1 of 2)",
        "restoring (0 %)",
        "restoring (20 %)",
        "restoring (40 %)",
        "restoring (70 %)",
        "restoring (70 %)",
        "running",
    ]


def test_a_pipeline_that_begins_from_nothing_never_restores() -> None:
    startup = Startup(1, restores=False)
    startup.heard(hello(FIRST))
    assert startup.progress == Progress(Phase.STARTING, "1 of 1")
    startup.heard(ReadyFrame(G, FIRST))
    assert startup.progress == Progress(Phase.RUNNING)


def test_without_room_it_waits_for_slots_until_the_first_worker_comes() -> None:
    startup = Startup(2, restores=False)
    startup.hold_up = HoldUp("1 of 2 free", "somebody holds the others")
    assert str(startup.progress) == "waiting for slots (1 of 2 free)"
    startup.heard(hello(SECOND))
    assert startup.progress.phase is Phase.STARTING
    assert startup.missing([FIRST, SECOND]) == [FIRST]


def test_something_that_lasts_is_spoken_of_at_once_and_when_its_duration_has_doubled() -> None:
    reminders = Reminders(again_ms_min=5_000)
    spoken = [ms for ms in range(0, 100_000, 1_000) if reminders.is_due("disk", ms)]
    assert spoken == [0, 5_000, 10_000, 20_000, 40_000, 80_000]
    assert reminders.is_due("network", 100)
    reminders.forget("disk")
    assert reminders.is_due("disk", 100)
