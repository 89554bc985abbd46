"""A scenario: everything about one simulated run, drawn from its seed."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field, replace

from penstock.driver.attempts.takeover import RestoreOptions
from penstock.driver.settings import SupervisorSettings
from penstock.protocol.coordinator.state import Mode, Policy
from penstock.protocol.recovery import FallBack
from penstock.protocol.restart import RestartPolicy
from penstock.worker.settings import WorkerSettings
from tests.simulation.production import SIMULATED
from tests.simulation.topologies import Load


class FaultKind(enum.Enum):
    KILL_WORKER = "kill worker"
    FREEZE_WORKER = "freeze worker"
    BUSY_WORKER = "one call takes longer than the silence limit"
    CUT_LINK = "cut link"
    KILL_DRIVER = "kill driver"
    KILL_DRIVER_AT_STORE = "kill driver at a store operation"
    SECOND_DRIVER = "second driver"
    FAIL_MAP = "exception in map"
    FAIL_TIMER = "exception in a timer"
    FAIL_CALL = "exception in a call of map_async"
    STUCK_CALL = "a call of map_async is stuck"
    FAIL_SNAPSHOT = "exception in snapshot"
    FAIL_OPEN = "exception while restoring"
    FAIL_CLOSE = "exception while closing"
    FAIL_COMMIT = "commit fails half way"
    FAIL_SWEEP = "sweep fails"
    HANG_COMMIT = "commit hangs"
    HANG_COMMIT_FOR_EVER = "commit never returns"
    HANG_STORE = "a store operation hangs"
    FAIL_WRITES = "storage writes fail"
    FAIL_READS = "storage reads fail"
    LOSE_REPLIES = "replies of the storage are lost"
    ROT = "rotten file"
    SAVEPOINT = "savepoint"
    DRAIN = "drain and start again"
    RESCALE = "kill driver and rescale"
    CHANGE_PIPELINE = "kill driver and change the pipeline"
    CANCEL = "cancel checkpoint"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens when so many checkpoints have completed, a little later."""

    kind: FaultKind
    after_checkpoints: int
    delay_us: int
    duration_us: int
    pick: float


@dataclass(frozen=True, slots=True)
class Life:
    """One more run on the same directory, after the end of input: with more input, and faults of its own."""

    more: int
    """Numbers of each split."""
    faults: list[Fault] = field(default_factory=list)


@dataclass(slots=True)
class Scenario:
    """One run."""

    seed: int
    topology: str
    load: Load
    workers: int
    worker: WorkerSettings
    supervisor: SupervisorSettings
    network_us: tuple[int, int]
    background_us: tuple[int, int]
    commit_wait_ms: int = 50
    """For how long a commit waits for the call before it."""
    faults: list[Fault] = field(default_factory=list)
    rescales: list[int] = field(default_factory=list)
    """The parallelisms that the pipeline goes through, one for each rescale."""
    lives: list[Life] = field(default_factory=list)
    """What follows after the end of input."""

    def __str__(self) -> str:
        policy = self.supervisor.policy
        return (
            f"seed {self.seed}: {self.topology} p={self.load.parallelism} workers={self.workers} "
            f"{policy.mode.value} timeout={policy.alignment_timeout_ms}ms interval={policy.interval_ms}ms; "
            + "; then ".join(map(_names, [self.faults, *(life.faults for life in self.lives)]))
        )


def _of(lives: list[Life]) -> list[Fault]:
    return [fault for life in lives for fault in life.faults]


def _names(faults: list[Fault]) -> str:
    return ", ".join(f"{fault.kind.value}@{fault.after_checkpoints}" for fault in faults) or "no faults"


def draw(seed: int, only: str | None = None) -> Scenario:
    """The scenario of a seed; `only` fixes its topology."""
    rng = random.Random(f"scenario {seed}")
    name, old, new, is_idle = _split_name(only)
    topology = name or rng.choice(sorted(SIMULATED))
    parallelism = rng.choice([1, 1, 1, 2, 2, 3])
    if old is not None:
        parallelism = old
    rows = rng.randint(4, 24)
    idle = rng.choice([0.0, 0.0, 0.0, 0.3])
    count = int(rng.randint(30, 80) / _HEAVY.get(topology, 1.0)) // parallelism + 16
    load = Load(parallelism, count, rows, idle, rng.choice([30, 100, 300]))
    mode = rng.choices([Mode.ALIGNED, Mode.UNALIGNED, Mode.ALIGNED_WITH_TIMEOUT], [1, 3, 4])[0]
    capture = rng.choices([1 << 20, 2000], [6, 1])[0]
    policy = Policy(
        interval_ms=rng.choice([2, 4, 8]),
        pause_ms_min=rng.choice([0, 0, 2]),
        # Where a checkpoint must be aligned, or may have to be, it takes its time.
        checkpoint_timeout_ms=rng.choice([60, 400, 2000]) if capture > 2000 and mode is not Mode.ALIGNED else 2000,
        failures_tolerable=rng.choice([2, 10]),
        mode=mode,
        alignment_timeout_ms=rng.choice([0, 1, 3]),
        retained=rng.randint(1, 3),
        backoff_ms=2,
        backoff_ms_max=20,
    )
    if rng.random() < 0.2:
        # One after the other, often without output in between: the next begins while a manifest is written.
        policy = replace(policy, interval_ms=1, pause_ms_min=0)
        load = replace(load, count=min(load.count, 30), slow_us=800)
    faults = [_fault(rng, topology) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    lives = []
    if rng.random() < 0.2 and topology not in _ONE_LIFE:
        lives = [Life(rng.randint(20, 40), [_fault(rng, topology) for _ in range(rng.choice([0, 1]))])]
    if topology in _WINDOWED and any(fault.kind is FaultKind.ROT for fault in (*faults, *_of(lives))):
        # An older checkpoint may be one of an earlier life: its end cut windows that are then cut no more.
        lives = []
    planned = [fault.kind for fault in (*faults, *_of(lives))]
    rescales = [rng.randint(1, 4) for kind in planned if kind is FaultKind.RESCALE]
    if _HANGS.intersection(planned):
        # It is waited for until it expires, perhaps several times.
        policy = replace(policy, checkpoint_timeout_ms=min(policy.checkpoint_timeout_ms, 200))
    if new is not None:
        # Under way at the old parallelism; rescaled; failed when a checkpoint was taken while recovering from that;
        # rescaled once more, or back; failed again. Slow behind a fast source, so that there is always data in flight.
        policy = replace(
            policy,
            interval_ms=rng.choice([2, 5]),
            checkpoint_timeout_ms=2000,
            mode=rng.choice([Mode.UNALIGNED, Mode.ALIGNED_WITH_TIMEOUT]),
            alignment_timeout_ms=rng.choice([0, 1]),
        )
        load = replace(load, count=rng.randint(60, 100), slow_us=rng.choice([300, 600]), idle=0.0)
        if is_idle:
            load = replace(load, count=30, idle=0.95, slow_us=0)
        capture = 1 << 20
        kinds = [FaultKind.RESCALE, FaultKind.KILL_WORKER, FaultKind.RESCALE, FaultKind.KILL_WORKER]
        faults = [Fault(kind, 1 + n, rng.randint(0, 2_000), 0, rng.random()) for n, kind in enumerate(kinds)]
        rescales, lives = [new, rng.choice([parallelism, new])], []
    rotten = FaultKind.ROT in planned
    supervisor = SupervisorSettings(
        # A commit that hangs is waited for as long as a checkpoint.
        policy=replace(policy, commit_timeout_ms=policy.checkpoint_timeout_ms),
        restart=RestartPolicy(
            # With a commit that never returns each failure takes as long as a checkpoint may.
            failures_max=12 if FaultKind.HANG_COMMIT_FOR_EVER in planned else 50,
            window_ms=1_000_000,
            delay_ms=1,
            delay_ms_max=20,
            repeats_max=None,
        ),
        restore=RestoreOptions(FallBack.ALLOW_DUPLICATES if rotten and rng.random() < 0.5 else FallBack.SAFE),
        worker_silence_ms=30,
        start_timeout_ms=5_000,
        takeover_timeout_ms=300,
        drift_interval_ms=1,
    )
    window = rng.choice([200, 400, 1024])
    worker = WorkerSettings(
        credit_limit_bytes=window,
        credit_limit_bytes_min=rng.choice([1, 100]),
        channel_time_ms=rng.choice([0, 1, 5]),
        output_bytes_max=rng.choice([200, 600]),
        inflight_bytes_max=capture,
        recovery_bytes_max=rng.choice([500, 1 << 20]),
        slice_us=rng.choice([800, 2000]),
        checkpoint_slice_us=rng.choice([400, 1000]),
        source_rows_max=rows,
        source_retry_ms=1,
        source_rest_ms=rng.choice([0, 1]),
        # With many subtasks behind a slow sink, one that must stay aligned takes longer to pass a barrier on.
        late_barrier_timeout_ms=rng.choice([30, 300]) if parallelism <= 3 else 1000,
        heartbeat_ms=5,
        driver_silence_ms=200,
        segment_bytes=rng.choice([256, 1024]),
        inline_bytes_max=rng.choice([0, 4096]),
        source_discovery_ms=2,
        # Not drawn: the rest of the scenario of a seed stays as it was.
        latency_interval_ms=(1, 3, 20)[seed % 3],
        drift_interval_ms=2,
    )
    network = rng.choice([(5, 40), (20, 800)])
    background = rng.choice([(20, 200), (100, 3000)])
    workers = rng.randint(1, 3)
    wait_ms = rng.choice([0, 10, 100])
    return Scenario(
        seed, topology, load, workers, worker, supervisor, network, background, wait_ms, faults, rescales, lives
    )


_WINDOWED = {"tumbling", "sessions", "sliding", "event_timers", "by_key_times", "joined", "framed"}

_ONE_LIFE = {"split_times", "idle_split", "appearing", "drifting"}
"""Topologies with splits whose records would be late after an end of input, or that have no such end."""

_HEAVY = {
    "split_times": 3.0,
    "appearing": 3.0,
    "multi_input": 2.0,
    "joined_by_key": 2.0,
    "union": 2.0,
    "keyed_different": 1.5,
    "pipeline": 1.5,
    "timers": 1.3,
    "event_timers": 1.5,
    "by_key": 1.5,
    "by_key_times": 1.5,
    "two_by_key": 1.5,
    "unfolded": 4.0,
    "keyed": 1.3,
}
"""Topologies that do more with each number get fewer."""

_HANGS = {FaultKind.HANG_COMMIT, FaultKind.HANG_COMMIT_FOR_EVER, FaultKind.HANG_STORE}

_WEIGHTS = {
    FaultKind.KILL_WORKER: 6,
    FaultKind.FREEZE_WORKER: 2,
    FaultKind.BUSY_WORKER: 2,
    FaultKind.CUT_LINK: 2,
    FaultKind.KILL_DRIVER: 2,
    FaultKind.KILL_DRIVER_AT_STORE: 4,
    FaultKind.SECOND_DRIVER: 2,
    FaultKind.FAIL_MAP: 3,
    FaultKind.FAIL_TIMER: 4,
    FaultKind.FAIL_CALL: 3,
    FaultKind.STUCK_CALL: 4,
    FaultKind.FAIL_SNAPSHOT: 2,
    FaultKind.FAIL_OPEN: 2,
    FaultKind.FAIL_CLOSE: 1,
    FaultKind.FAIL_COMMIT: 2,
    FaultKind.FAIL_SWEEP: 1,
    FaultKind.HANG_COMMIT: 2,
    FaultKind.HANG_COMMIT_FOR_EVER: 1,
    FaultKind.HANG_STORE: 2,
    FaultKind.FAIL_WRITES: 2,
    FaultKind.FAIL_READS: 3,
    FaultKind.LOSE_REPLIES: 3,
    FaultKind.ROT: 1,
    FaultKind.SAVEPOINT: 2,
    FaultKind.DRAIN: 2,
    FaultKind.RESCALE: 5,
    FaultKind.CHANGE_PIPELINE: 5,
    FaultKind.CANCEL: 1,
}

_ONLY_WITH = {
    FaultKind.FAIL_TIMER: {"timers", "event_timers"},
    FaultKind.FAIL_CALL: {"async_ordered", "async_unordered"},
    FaultKind.STUCK_CALL: {"async_ordered", "async_unordered"},
}
"""Faults that need something which few topologies have."""

_NOT_WITH = {FaultKind.ROT: {"idle_split"}}
"""Where an older checkpoint than the newest may be restored, the second split could begin too early."""


def _split_name(only: str | None) -> tuple[str | None, int | None, int | None, bool]:
    """`keyed_broadcast_7_2` is the topology keyed_broadcast, started at parallelism 7 and rescaled to 2.

    With `_idle` behind it its sources have next to nothing to say, so that nothing is in flight.
    """
    if only is None or only in SIMULATED:
        return only, None, None, False
    is_idle = only.endswith("_idle")
    name, old, new = only.removesuffix("_idle").rsplit("_", 2)
    return name, int(old), int(new), is_idle


def _fault(rng: random.Random, topology: str) -> Fault:
    weights = {
        kind: weight
        for kind, weight in _WEIGHTS.items()
        if topology in _ONLY_WITH.get(kind, {topology}) and topology not in _NOT_WITH.get(kind, ())
    }
    kind = rng.choices(list(weights), list(weights.values()))[0]
    return Fault(kind, rng.choice([0, 0, 1, 1, 2, 3]), rng.randint(0, 8_000), rng.randint(2_000, 60_000), rng.random())
