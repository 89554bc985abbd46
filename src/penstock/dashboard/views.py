"""The values that the page and other clients of the REST interface see: one Struct for each answer.

Times are in milliseconds since 1970, durations in milliseconds. A figure that is not known is None, never 0. These
names are a contract: fields may be added, and none may change its meaning.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all answers: values, which any thread may share."""


# --- the pipeline at a glance ---


class Warned(View, frozen=True, kw_only=True):
    at_ms: int
    text: str


class SparkInfo(View, frozen=True, kw_only=True):
    app_id: str | None = None
    ui_url: str | None = None


class Versions(View, frozen=True, kw_only=True):
    penstock: str
    python: str
    spark: str | None = None
    pyarrow: str | None = None


class Overview(View, frozen=True, kw_only=True):
    """`GET /api/v1/overview`."""

    pipeline: str
    phase: str
    """One of `penstock.driver.attempts.phases.Phase`; of a directory without a driver, `stopped` too."""
    phase_text: str
    """The phase, and how far it has come."""
    is_live: bool
    """Whether the figures are those of a driver that runs, rather than of its last checkpoint."""
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    generation: int | None = None
    restarts: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_in_per_second: float | None = None
    rows_out_per_second: float | None = None
    rows_late: int = 0
    checkpoint_interval_ms: int | None = None
    last_checkpoint: int | None = None
    last_checkpoint_at_ms: int | None = None
    failure: str | None = None
    warnings: tuple[Warned, ...] = ()
    spark: SparkInfo = SparkInfo()
    versions: Versions
    orders_allowed: bool = False
    """Whether a valid token came with the request."""


# --- the graph ---


class OperatorView(View, frozen=True, kw_only=True):
    name: str
    kind: str


class Activity(View, frozen=True, kw_only=True):
    """Shares of the time of one subtask, or of all of them; None before two reports of the worker."""

    busy: float | None = None
    idle: float | None = None
    backpressured: float | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    rows_in_per_second: float | None = None
    rows_out_per_second: float | None = None
    watermark_ms: int | None = None
    state_bytes: int | None = None
    queue_bytes: int | None = None


class Vertex(Activity, frozen=True, kw_only=True):
    """A chain of operators."""

    id: str
    name: str
    operators: tuple[OperatorView, ...]
    parallelism: int
    watermark_lag_ms: int | None = None
    queue_bytes_max: int | None = None
    skew: float | None = None
    """Most rows of a subtask by the mean of all; 1 if they have equally many."""


class EdgeView(View, frozen=True, kw_only=True):
    upstream: str = msgspec.field(name="from")
    downstream: str = msgspec.field(name="to")
    exchange: str
    can_be_overtaken: bool


class GraphView(View, frozen=True, kw_only=True):
    """`GET /api/v1/graph`."""

    vertices: tuple[Vertex, ...]
    edges: tuple[EdgeView, ...]


class SubtaskView(Activity, frozen=True, kw_only=True):
    index: int
    worker: int


class VertexDetail(Vertex, frozen=True, kw_only=True):
    """`GET /api/v1/vertices/{id}`."""

    subtasks: tuple[SubtaskView, ...]


# --- checkpoints ---


class Phases(View, frozen=True, kw_only=True):
    """Durations of the parts of a checkpoint: of those that subtasks do side by side, the longest."""

    start_delay: int | None = None
    alignment: int | None = None
    sync: int | None = None
    asynchronous: int | None = msgspec.field(name="async", default=None)
    manifest: int | None = None
    commit: int | None = None


class CheckpointView(View, frozen=True, kw_only=True):
    id: int
    status: str
    """`completed`, `failed` or `in_progress`."""
    kind: str
    """`aligned`, `unaligned` or `savepoint`."""
    trigger_timestamp: int
    end_to_end_duration: int
    checkpointed_size: int
    inflight_bytes: int
    num_subtasks: int
    num_acknowledged_subtasks: int
    phases: Phases = Phases()
    failure_message: str | None = None
    cure: str | None = None


class CheckpointCounts(View, frozen=True, kw_only=True):
    completed: int = 0
    failed: int = 0
    in_progress: int = 0
    restored: int = 0


class CheckpointsView(View, frozen=True, kw_only=True):
    """`GET /api/v1/checkpoints`: newest first."""

    counts: CheckpointCounts
    history: tuple[CheckpointView, ...]
    has_more: bool


class CheckpointSubtask(View, frozen=True, kw_only=True):
    operator: str
    subtask: int
    worker: int | None = None
    start_delay: int | None = None
    alignment: int | None = None
    sync: int | None = None
    asynchronous: int | None = msgspec.field(name="async", default=None)
    state_bytes: int
    inflight_bytes: int


class CheckpointDetail(CheckpointView, frozen=True, kw_only=True):
    """`GET /api/v1/checkpoints/{id}`. Subtasks are those that have acknowledged; of old ones they are not kept."""

    subtasks: tuple[CheckpointSubtask, ...]


# --- event time ---


class SubtaskWatermark(View, frozen=True, kw_only=True):
    index: int
    watermark_ms: int | None


class SplitWatermark(View, frozen=True, kw_only=True):
    split: str
    watermark_ms: int | None
    is_idle: bool


class OperatorWatermark(View, frozen=True, kw_only=True):
    operator: str
    watermark_ms: int | None
    lag_ms: int | None
    """Distance of the watermark from the clock of the driver."""
    held_by: str | None
    """The source, subtask or split that the watermark waits for, in a sentence."""
    subtasks: tuple[SubtaskWatermark, ...]
    splits: tuple[SplitWatermark, ...]


class WatermarksView(View, frozen=True, kw_only=True):
    """`GET /api/v1/watermarks`."""

    operators: tuple[OperatorWatermark, ...]


# --- state ---


class OperatorState(View, frozen=True, kw_only=True):
    operator: str
    state_bytes: int
    rows: int
    key_groups_used: int | None
    """Key groups that have a key; None without keyed state, and with more than 16 MiB of it, which is not read for
    this."""
    key_groups: int
    """All of them: the greatest parallelism that the pipeline can have."""
    largest_subtask_share: float | None


class StateView(View, frozen=True, kw_only=True):
    """`GET /api/v1/state`, of the last checkpoint."""

    operators: tuple[OperatorState, ...]


class LargestKey(View, frozen=True, kw_only=True):
    key: str
    rows: int


class StateRows(View, frozen=True, kw_only=True):
    """`GET /api/v1/state/{operator}`."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    largest_keys: tuple[LargestKey, ...]
    truncated: bool


# --- recoveries ---


class PhaseDuration(View, frozen=True, kw_only=True):
    name: str
    ms: int


class FailureView(View, frozen=True, kw_only=True):
    summary: str
    error: str
    """All that is known of it, with the traceback of user code."""
    operator: str | None = None
    """The operator that failed, or the first one of the chain that did; None if neither is known."""
    subtask: int | None = None
    worker: int | None = None


class GenerationView(View, frozen=True, kw_only=True):
    generation: int | None
    started_at_ms: int
    ended_at_ms: int | None
    restored_checkpoint: int | None
    phases: tuple[PhaseDuration, ...]
    failure: FailureView | None


class RecoveriesView(View, frozen=True, kw_only=True):
    """`GET /api/v1/recoveries`: newest first."""

    generations: tuple[GenerationView, ...]


# --- over time, workers, configuration, logs ---


class HistoryView(View, frozen=True, kw_only=True):
    """`GET /api/v1/history`."""

    step_ms: int
    series: dict[str, tuple[tuple[float, ...], ...]]
    """By name: pairs of a time and a value, oldest first."""


class LatencyView(View, frozen=True, kw_only=True):
    """The latency from a source to the end of an operator's chain, by markers of the last minute."""

    source: str
    operator: str
    count: int
    """Markers that have come."""
    p50_ms: float | None
    """Upper bounds of buckets: 1, 2.5 and 5 by powers of ten."""
    p99_ms: float | None
    max_ms: float | None


class LatenciesView(View, frozen=True, kw_only=True):
    """`GET /api/v1/latency`."""

    latencies: tuple[LatencyView, ...]


class WorkerView(View, frozen=True, kw_only=True):
    index: int
    host: str | None = None
    pid: int | None = None
    memory_bytes: int | None = None
    cores: int | None = None
    slots: int | None = None


class WorkersView(View, frozen=True, kw_only=True):
    """`GET /api/v1/workers`."""

    workers: tuple[WorkerView, ...]


Owner: TypeAlias = Literal["user", "library", "penstock"]


class CodeLine(View, frozen=True, kw_only=True):
    function: str
    file: str
    line: int
    owner: Owner
    """Whose code it is, as the worker knows it by its paths."""


class StackView(View, frozen=True, kw_only=True):
    operator: str | None = None
    """The operator that worked; None if it was the mailbox itself."""
    frames: tuple[CodeLine, ...]
    """From the outermost call to the innermost."""
    samples: int


class ProfileView(View, frozen=True, kw_only=True):
    """`POST /api/v1/workers/{index}/profile`."""

    samples: int
    seconds: float
    stacks: tuple[StackView, ...]
    """The most frequent ones."""
    left_out: int = 0
    """Samples whose stacks are not among them."""


class ConfigurationView(View, frozen=True, kw_only=True):
    """`GET /api/v1/configuration`."""

    settings: dict[str, str]
    plan: str


class LogLineView(View, frozen=True, kw_only=True):
    at_ms: int
    level: str
    worker: int | None
    operator: str | None
    text: str


class LogsView(View, frozen=True, kw_only=True):
    """`GET /api/v1/logs`: newest last."""

    lines: tuple[LogLineView, ...]
    dropped: int = 0
    """Lines that were not kept, because there were too many."""


# --- orders and errors ---


class OrderView(View, frozen=True, kw_only=True):
    """`POST /api/v1/savepoints`, `/stop` and `/drain`: the order is taken, and carried out meanwhile."""

    order: str
    accepted_at_ms: int


class ErrorView(View, frozen=True, kw_only=True):
    error: str
    cure: str
