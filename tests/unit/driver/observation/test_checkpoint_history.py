"""The driver's own history: checkpoints, attempts, log lines and profiles, each within its bound."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from penstock.driver.attempts.phases import Phase
from penstock.driver.observation.checkpoint_history import COMMIT, MANIFEST, CheckpointHistory
from penstock.driver.observation.log_ring import LogRing
from penstock.driver.observation.profiles import Profiles
from penstock.driver.observation.timeline import Timeline
from penstock.errors import PenstockError, UserCodeError
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.frames import FailedFrame, Frame, ProfiledFrame, ProfileFrame
from penstock.mailbox.notes import LogLine
from penstock.protocol.barrier import BarrierFlag
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import CheckpointRecord, Status, SubtaskStats
from penstock.protocol.manifest import CheckpointStats, SnapshotKind

G = Generation(3)


def record(number: int, subtasks: int = 2, reason: DeclineReason | None = None) -> CheckpointRecord:
    figures = CheckpointStats(1, 2, 3, 4, 50, 6)
    return CheckpointRecord(
        CheckpointId(number),
        BarrierFlag.NONE,
        Status.COMPLETED if reason is None else Status.DECLINED,
        1_000,
        1_040,
        tuple(SubtaskStats(SubtaskId(OperatorName("a"), i), SnapshotKind.ALIGNED, figures) for i in range(subtasks)),
        reason,
    )


class Clock:
    now = 0

    def now_ms(self) -> int:
        return self.now

    def now_us(self) -> int:
        return 1000 * self.now

    def own_us(self) -> int:
        return 1000 * self.now

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now


def test_checkpoints_are_kept_up_to_a_bound_and_their_subtasks_up_to_another() -> None:
    history = CheckpointHistory(checkpoints_max=100, subtasks_max=20)
    for number in range(1, 151):
        history.ended(record(number))
    kept = history.newest_first()
    assert [each.checkpoint for each in kept] == list(range(150, 50, -1))
    assert [number for number in range(1, 151) if history.subtasks_of(CheckpointId(number))] == list(range(141, 151))
    assert kept[0].state_bytes == 100 and kept[-1].state_bytes == 100


def test_the_newest_checkpoint_keeps_its_subtasks_however_many_they_are() -> None:
    history = CheckpointHistory(subtasks_max=3)
    history.ended(record(1, subtasks=2))
    history.ended(record(2, subtasks=10))
    assert len(history.subtasks_of(CheckpointId(2))) == 10 and not history.subtasks_of(CheckpointId(1))


def test_the_parts_of_the_driver_are_noted_in_the_order_in_which_they_are_done() -> None:
    history = CheckpointHistory()
    history.took(CheckpointId(1), MANIFEST, 7)
    history.ended(record(1))
    history.took(CheckpointId(9), COMMIT, 1)
    before = history.get(CheckpointId(1))
    assert before is not None and (before.manifest_ms, before.commit_ms) == (7, None)
    history.took(CheckpointId(1), COMMIT, 9)
    history.ended(record(2, subtasks=0, reason=DeclineReason.EXPIRED))
    done, declined = history.get(CheckpointId(1)), history.get(CheckpointId(2))
    assert done is not None and (done.manifest_ms, done.commit_ms) == (7, 9)
    assert declined is not None and (declined.manifest_ms, declined.alignment_ms, declined.reason) == (
        None,
        None,
        "EXPIRED",
    )


def test_an_attempt_has_the_durations_of_its_phases_and_the_error_of_the_user() -> None:
    clock = Clock()
    timeline = Timeline(clock)
    timeline.begin()
    clock.now = 10
    timeline.taken_over(G, CheckpointId(4))
    for now, phase in ((15, Phase.STARTING), (30, Phase.RESTORING), (70, Phase.RUNNING), (90, Phase.RUNNING)):
        clock.now = now
        timeline.in_phase(phase)
    [current] = timeline.newest_first()
    assert current.phases == (
        (Phase.CLAIMING, 10),
        (Phase.STARTING, 20),
        (Phase.RESTORING, 40),
        (Phase.RUNNING, 20),
    )
    failed = FailedFrame(G, WorkerId(1), "bad", SubtaskId(OperatorName("sums"), 2))
    timeline.blame(failed)
    timeline.blame(FailedFrame(G, WorkerId(0), "a peer has left"))
    error = UserCodeError("operator 'sums' raised ValueError: bad")
    error.traceback = "Traceback …\nValueError: bad"
    timeline.end(error)
    [over] = timeline.newest_first()
    assert (over.generation, over.restored, over.ended_at_ms) == (G, 4, clock.wall_ms())
    assert over.failure is not None and over.failure.summary == "operator 'sums' raised ValueError: bad"
    assert "ValueError: bad" in over.failure.error.splitlines()[-1]
    assert (over.failure.operator, over.failure.subtask, over.failure.worker) == ("sums", 2, 1)
    assert timeline.restored == 1


SUMS_2 = SubtaskId(OperatorName("sums"), 2)


@pytest.mark.parametrize(
    ("frame", "operator", "subtask"),
    [
        (FailedFrame(G, WorkerId(1), "bad", SUMS_2, operator=OperatorName("write"), index=2), "write", 2),
        (FailedFrame(G, WorkerId(1), "bad", operator=OperatorName("lookup"), index=3), "lookup", 3),
        (FailedFrame(G, WorkerId(1), "bad", SUMS_2), "sums", 2),
        (FailedFrame(G, WorkerId(1), "bad"), None, None),
    ],
)
def test_a_failure_names_its_operator_and_not_the_first_one_of_the_chain(
    frame: FailedFrame, operator: str | None, subtask: int | None
) -> None:
    timeline = Timeline(Clock())
    timeline.begin()
    timeline.blame(frame)
    timeline.end(UserCodeError("bad"))
    [over] = timeline.newest_first()
    assert over.failure is not None
    assert (over.failure.operator, over.failure.subtask, over.failure.worker) == (operator, subtask, 1)


def test_attempts_are_bounded() -> None:
    timeline = Timeline(Clock(), attempts_max=3)
    for _ in range(10):
        timeline.begin()
        timeline.end(PenstockError("again"))
    timeline.end(None)
    assert len(timeline.newest_first()) == 3


def test_a_log_keeps_its_last_lines_and_counts_the_others() -> None:
    ring = LogRing("mine", lines_max=3)
    logger = logging.getLogger("test_log_ring")
    logger.addFilter(ring)
    try:
        logger.warning("pipeline %s: %d", "mine", 1)
        logger.warning("pipeline %s: 2", "another")
        logger.info("pipeline mine: not worth it")
        logger.error("no pipeline is named")
    finally:
        logger.removeFilter(ring)
    assert [(line.level, line.text) for line in ring.lines] == [
        ("WARNING", "pipeline mine: 1"),
        ("ERROR", "no pipeline is named"),
    ]
    for number in range(5):
        ring.add(LogLine(number, "WARNING", "of a worker", WorkerId(0)))
    ring.dropped_by(WorkerId(0), 4)
    ring.dropped_by(WorkerId(0), 4)
    assert len(ring.lines) == 3 and ring.dropped == 4 + 4


def test_warnings_still_go_to_standard_error_where_the_user_has_no_handler() -> None:
    script = (
        "import logging\n"
        "from penstock.driver.observation.log_ring import LogRing\n"
        "logger, ring = logging.getLogger('penstock'), LogRing('mine')\n"
        "logger.addFilter(ring)\n"
        "logger.warning('pipeline mine failed and restarts')\n"
        "print(len(ring.lines))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("1\n", "pipeline mine failed and restarts\n")


def test_a_worker_is_profiled_once_at_a_time_and_answers_only_who_asked() -> None:
    profiles, sent = Profiles(), list[tuple[WorkerId, Frame]]()

    def ask() -> object:
        return profiles.ask(WorkerId(0), 1.5, G, lambda to, frame: sent.append((to, frame)))

    answer = profiles.ask(WorkerId(0), 1.5, G, lambda to, frame: sent.append((to, frame)))
    with pytest.raises(PenstockError, match="already"):
        ask()
    assert sent == [(0, ProfileFrame(G, 1, 1.5))]
    profiles.answered(ProfiledFrame(G, WorkerId(0), 99, 1, 1.0))
    profiles.answered(ProfiledFrame(G, WorkerId(1), 1, 1, 1.0))
    assert not answer.done()
    profiles.answered(ProfiledFrame(G, WorkerId(0), 1, 150, 1.5))
    assert answer.result(0).samples == 150
    lost = profiles.ask(WorkerId(0), 1.0, G, lambda to, frame: None)
    profiles.workers_lost()
    with pytest.raises(PenstockError, match="has ended"):
        lost.result(0)
    ask()
