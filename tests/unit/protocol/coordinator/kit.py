"""A coordinator to play with: feeds events, checks the invariants after each, and keeps every action."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from penstock.ids import NO_CHECKPOINT, CheckpointId, Generation, OperatorName, SubtaskId
from penstock.protocol.barrier import Barrier, BarrierFlag
from penstock.protocol.commit import CommitPermit
from penstock.protocol.coordinator.events import (
    Acknowledged,
    Action,
    AllReady,
    CheckpointRequested,
    Committed,
    Declined,
    Event,
    IdsReserved,
    ManifestWritten,
    Ticked,
)
from penstock.protocol.coordinator.invariants import check
from penstock.protocol.coordinator.machine import start, step
from penstock.protocol.coordinator.state import Policy, Request, RequestId, RequestKind, State
from penstock.protocol.declines import DeclineReason
from penstock.protocol.manifest import Committable, Manifest, PipelineShape, SubtaskReport
from penstock.protocol.ownership import Reservation
from penstock.protocol.retention import RetentionBound

GENERATION = Generation(3)
FIRST = CheckpointId(11)
SHAPE = PipelineShape("orders", 128)
READ = SubtaskId(OperatorName("read"), 0)
COUNT_0 = SubtaskId(OperatorName("count"), 0)
COUNT_1 = SubtaskId(OperatorName("count"), 1)
MEMBERS = frozenset({READ, COUNT_0, COUNT_1})
STRANGER = SubtaskId(OperatorName("stranger"), 0)
PLAIN = Policy(interval_ms=1_000, checkpoint_timeout_ms=5_000, commit_timeout_ms=5_000, alignment_timeout_ms=200)
ON_REQUEST = replace(PLAIN, interval_ms=None)
ID_11 = CheckpointId(11)
ID_12 = CheckpointId(12)
NOT_IN_PROGRESS = "that checkpoint is not in progress"

A = TypeVar("A")


def checkpoint_id(number: int) -> CheckpointId:
    return CheckpointId(number)


def barrier(
    number: int,
    at_ms: int,
    flags: BarrierFlag = BarrierFlag.NONE,
    timeout_ms: int | None = 200,
    *,
    completed: int = NO_CHECKPOINT,
) -> Barrier:
    return Barrier(CheckpointId(number), GENERATION, at_ms, flags, timeout_ms, completed=CheckpointId(completed))


def block(number: int, count: int = 1) -> Reservation:
    return Reservation(CheckpointId(number), GENERATION, count)


def output(subtask: SubtaskId = COUNT_1) -> SubtaskReport:
    """A report that has something to publish."""
    return SubtaskReport(subtask, committables=(Committable(OperatorName("sink"), subtask.index, b"file"),))


def request(number: int, kind: RequestKind = RequestKind.CHECKPOINT) -> Request:
    return Request(RequestId(number), kind)


@dataclass
class Run:
    """One coordinator's life. `now_ms` is moved by hand."""

    policy: Policy = PLAIN
    restored: CheckpointId = NO_CHECKPOINT
    recommit: CommitPermit | None = None
    now_ms: int = 0
    state: State = field(init=False)
    actions: list[Action] = field(init=False)

    def __post_init__(self) -> None:
        self.state, actions = start(
            self.policy, GENERATION, SHAPE, MEMBERS, FIRST, restored=self.restored, recommit=self.recommit
        )
        self.actions = list(actions)
        check(self.state)

    def feed(self, event: Event) -> tuple[Action, ...]:
        self.state, actions = step(self.state, event)
        check(self.state)
        self.actions += actions
        return actions

    def ready(self) -> tuple[Action, ...]:
        return self.feed(AllReady(self.now_ms))

    def tick(self, at_ms: int) -> tuple[Action, ...]:
        self.now_ms = at_ms
        return self.feed(Ticked(at_ms))

    def reserved(self, number: int) -> tuple[Action, ...]:
        """The store has reserved the block that begins with this id, as it was asked to."""
        asked = self.state.reserving
        is_meant = asked is not None and asked.reservation.checkpoint == number
        return self.feed(IdsReserved(asked.reservation if asked and is_meant else block(number), self.now_ms))

    def ask(self, asked: Request) -> tuple[Action, ...]:
        return self.feed(CheckpointRequested(asked, self.now_ms))

    def acknowledge(self, number: int, report: SubtaskReport | SubtaskId) -> tuple[Action, ...]:
        whole = report if isinstance(report, SubtaskReport) else SubtaskReport(report)
        return self.feed(Acknowledged(CheckpointId(number), GENERATION, whole, self.now_ms))

    def decline(
        self, number: int, reason: DeclineReason, subtask: SubtaskId = COUNT_0, detail: str = ""
    ) -> tuple[Action, ...]:
        return self.feed(Declined(CheckpointId(number), GENERATION, subtask, reason, detail, self.now_ms))

    def written(self, number: int) -> tuple[Action, ...]:
        return self.feed(ManifestWritten(CheckpointId(number), self.now_ms))

    def committed(self, number: int) -> tuple[Action, ...]:
        return self.feed(Committed(CheckpointId(number), self.now_ms))

    def collect(self, number: int, *others: SubtaskReport) -> tuple[Action, ...]:
        """Everybody acknowledges; `others` in their own words. What the last one brought about."""
        spoken = {report.subtask for report in others}
        reports = [*others, *(SubtaskReport(member) for member in sorted(MEMBERS - spoken))]
        return [self.acknowledge(number, report) for report in reports][-1]

    def of(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]


def triggered(policy: Policy = PLAIN) -> Run:
    """Checkpoint 11 is collecting since 1000 ms, and id 12 is in hand."""
    run = Run(policy)
    run.ready()
    run.tick(1_000)
    run.reserved(12)
    return run


def writing(*others: SubtaskReport, policy: Policy = PLAIN) -> Run:
    """As `triggered`, and everybody has acknowledged at 1100 ms."""
    run = triggered(policy)
    run.now_ms = 1_100
    run.collect(11, *others)
    return run


def manifest_11(*reports: SubtaskReport, **changes: bool) -> Manifest:
    spoken = {report.subtask for report in reports}
    everybody = [*reports, *(SubtaskReport(member) for member in MEMBERS - spoken)]
    ordered = tuple(sorted(everybody, key=lambda report: report.subtask))
    return Manifest(ID_11, GENERATION, SHAPE, ordered, 1_000, 1_100, **changes, first=ID_11)


def bound(newest: int, *in_use: int) -> RetentionBound:
    return RetentionBound(GENERATION, CheckpointId(newest), PLAIN.retained, frozenset(map(CheckpointId, in_use)), ID_11)
