"""The settings of a pipeline, as its user writes them: durations, sizes, and names."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict

from penstock.driver.attempts.takeover import RestoreOptions
from penstock.driver.observation.listeners import JobListener
from penstock.driver.settings import SupervisorSettings
from penstock.errors import OptionError
from penstock.model.units import Duration, Size, duration_ms, size_bytes
from penstock.protocol.coordinator.state import Mode, Policy
from penstock.protocol.recovery import FallBack
from penstock.protocol.restart import RestartPolicy
from penstock.protocol.retention import STOPS_RETAINED
from penstock.state.backends import DEFAULT_BACKEND, check_backend
from penstock.worker.settings import WorkerSettings

_MODES = {
    "aligned": Mode.ALIGNED,
    "unaligned": Mode.UNALIGNED,
    "aligned-with-timeout": Mode.ALIGNED_WITH_TIMEOUT,
}


CheckpointMode = Literal["aligned", "unaligned", "aligned-with-timeout"]
StateBackendName: TypeAlias = Literal["memory"]
"""The names in `penstock.state.backends.BACKENDS`, for type checkers."""


class StartOptions(TypedDict, total=False):
    """The keyword arguments of `Pipeline.start`, for type checkers. `Settings` has the meaning and the defaults."""

    parallelism: int | None
    """For operators that name none; by default the slots of the session, at most `workers`."""
    workers: int | None
    """Number of Spark tasks; by default the largest parallelism."""
    restore: str | os.PathLike[str] | int | None
    """Checkpoint to start from: an id in the directory, or the path of a savepoint."""
    storage_options: dict[str, object] | None
    """For fsspec, where `checkpoints` is a URL."""
    listeners: Sequence[JobListener]
    """They hear of the pipeline's life from its start on."""
    ui_port: int | None
    """Port of the page, REST and Prometheus, or the next free one (default 4050); None for no page."""
    ui_host: str
    """Address that the page listens on (default "127.0.0.1": this machine alone)."""
    ui_allowed_hosts: Sequence[str]
    """Names by which the page may be called, besides addresses, localhost and this machine's name."""
    metrics_names: Literal["penstock", "flink"]
    """Names of the metrics for Prometheus."""
    otel_endpoint: str | None
    """Address of an OpenTelemetry collector (default: that of OTEL_EXPORTER_OTLP_ENDPOINT, or none)."""
    checkpoint_mode: CheckpointMode
    checkpoint_interval: Duration | None
    alignment_timeout: Duration
    checkpoint_timeout: Duration
    minimum_pause: Duration
    tolerable_failures: int
    retained_checkpoints: int
    retained_savepoints: int
    inflight_size_max: Size
    recovery_size_max: Size
    channel_size: Size
    channel_time: Duration
    batch_time: Duration
    restarts_max: int
    same_error_max: int | None
    restart_window: Duration
    restart_delay: Duration
    restart_delay_max: Duration
    worker_silence: Duration
    call_timeout: Duration
    start_timeout: Duration
    takeover_timeout: Duration
    allow_output_twice: bool
    allow_dropped_state: bool
    state_backend: StateBackendName
    commit_timeout: Duration
    latency_interval: Duration


_LEAST = {
    "tolerable_failures": 0,
    "retained_checkpoints": 1,
    "retained_savepoints": 0,
    "restarts_max": 0,
    "same_error_max": 1,
}
_SIZES = ("inflight_size_max", "recovery_size_max", "channel_size")
_LONGER_THAN_ZERO = (
    "checkpoint_interval",
    "checkpoint_timeout",
    "restart_window",
    "worker_silence",
    "call_timeout",
    "start_timeout",
    "takeover_timeout",
    "commit_timeout",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set for a pipeline, as `Pipeline.start` takes it: durations, sizes, counts and choices."""

    checkpoint_interval: Duration | None = "10 s"
    """From the start of one checkpoint to the start of the next; None for none but those that are asked for."""
    checkpoint_mode: str = "aligned-with-timeout"
    """"aligned", "unaligned", or aligned until `alignment_timeout` has passed."""
    alignment_timeout: Duration = "500 ms"
    checkpoint_timeout: Duration = "10 min"
    """A checkpoint that is not complete after this is given up."""
    minimum_pause: Duration = "0 s"
    tolerable_failures: int = 3
    """Maximum number of checkpoints that may fail in a row; one more restarts the pipeline."""
    retained_checkpoints: int = 3
    retained_savepoints: int = STOPS_RETAINED
    """Savepoints that stops have taken. Savepoints that were asked for are never removed."""
    inflight_size_max: Size = "256 MiB"
    """In-flight data that one worker may capture for a checkpoint."""
    recovery_size_max: Size = "64 MiB"
    """Recovered in-flight data that one worker holds in memory; the rest is read from the checkpoint in time."""
    channel_size: Size = "1 MiB"
    """Maximum of what may be on the way on one channel."""
    channel_time: Duration = "10 ms"
    """Target queueing delay per channel. In front of a slow operator the buffer shrinks until records wait no longer
    than this. 0 disables the adjustment."""
    batch_time: Duration = "1 s"
    """Target for the time that a keyed function works on the records it gets at once. Where its calls cost more than
    its records, more records wait, up to this time and `channel_size`. 0 keeps the queue as short as `channel_time`
    says."""
    restarts_max: int = 10
    """Maximum number of restarts for failures within `restart_window`, or with no completed checkpoint in between; one
    more failure fails the pipeline."""
    same_error_max: int | None = 2
    """The same error of a function or of the data, or the same call of user code that hangs, met as often as this with
    no completed checkpoint in between, fails the pipeline: another attempt would meet it too. `None` leaves it to
    `restarts_max`."""
    restart_window: Duration = "10 min"
    restart_delay: Duration = "200 ms"
    """Doubles from failure to failure, up to `restart_delay_max`."""
    restart_delay_max: Duration = "30 s"
    worker_silence: Duration = "10 s"
    """A worker that was not heard of for this long counts as dead."""
    call_timeout: Duration = "10 min"
    """Longest time a worker may spend in one call, such as one call of a user function; a longer one restarts."""
    start_timeout: Duration = "2 min"
    """Duration for the workers to come up, from when there are slots for them; and the time to wait for those slots."""
    takeover_timeout: Duration = "2 min"
    """An attempt fails if, while it takes the checkpoint directory over, neither the store nor a sink has answered for
    this long. The takeover may take longer altogether: it reads the whole of the checkpoint that it restores."""
    allow_output_twice: bool = False
    """Whether to go back past a damaged checkpoint although its output may have been published."""
    allow_dropped_state: bool = False
    """Whether state of an operator that the pipeline no longer has may be dropped."""
    state_backend: str = DEFAULT_BACKEND
    """Where keyed state lives between two checkpoints: "memory", the memory of the workers. Checkpoints do not depend
    on it, so it may change at a restart."""
    commit_timeout: Duration = "5 min"
    """A commit of a sink that fails, or does not return, is tried for this long; then the pipeline restarts, and tries
    again. A call that hangs in two attempts in a row fails the pipeline (`same_error_max`)."""
    latency_interval: Duration = "1 s"
    """Interval at which each subtask of a source emits a marker that measures the latency to every sink. 0 switches the
    measurement off."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.checkpoint_mode not in tuple(_MODES):
            raise OptionError(f"checkpoint_mode is {self.checkpoint_mode!r}: it must be one of {', '.join(_MODES)}")
        check_backend(self.state_backend)
        self.supervisor()
        self.worker()

    def _check_numbers(self) -> None:
        """By the names that the user knows: those of the parts that they are passed on to are others."""
        for name, least in _LEAST.items():
            value, may_be_none = getattr(self, name), name == "same_error_max"
            if value is None and may_be_none:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                rest = ", or None" if may_be_none else ""
                raise OptionError(f"{name} is {value!r}: it must be a whole number of at least {least}{rest}")
        for name in _SIZES:
            size_bytes(name, getattr(self, name), error=OptionError)
        for name in _LONGER_THAN_ZERO:
            value = getattr(self, name)
            if value is None and name == "checkpoint_interval":
                continue
            if not _ms(name, value):
                rest = "; None switches periodic checkpoints off" if name == "checkpoint_interval" else ""
                raise OptionError(f"{name} is {value!r}: it must be at least a millisecond{rest}")
        if _ms("restart_delay", self.restart_delay) > _ms("restart_delay_max", self.restart_delay_max):
            raise OptionError(
                f"restart_delay is {self.restart_delay!r} and restart_delay_max {self.restart_delay_max!r}: the delay "
                f"may not be more than its maximum"
            )
        for name in ("allow_output_twice", "allow_dropped_state"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} is {getattr(self, name)!r}: it must be True or False")

    @classmethod
    def of(cls, options: dict[str, Any]) -> Settings:
        """Settings from keyword arguments; one that does not exist is an error with the nearest that does."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise OptionError(f"unknown setting {name!r}: {hint}")
        return cls(**options)

    def supervisor(self) -> SupervisorSettings:
        interval = self.checkpoint_interval
        policy = Policy(
            interval_ms=None if interval is None else _ms("checkpoint_interval", interval),
            pause_ms_min=_ms("minimum_pause", self.minimum_pause),
            checkpoint_timeout_ms=_ms("checkpoint_timeout", self.checkpoint_timeout),
            commit_timeout_ms=_ms("commit_timeout", self.commit_timeout),
            failures_tolerable=self.tolerable_failures,
            mode=_MODES[self.checkpoint_mode],
            alignment_timeout_ms=_ms("alignment_timeout", self.alignment_timeout),
            retained=self.retained_checkpoints,
            stops_retained=self.retained_savepoints,
        )
        restart = RestartPolicy(
            self.restarts_max,
            _ms("restart_window", self.restart_window),
            _ms("restart_delay", self.restart_delay),
            _ms("restart_delay_max", self.restart_delay_max),
            self.same_error_max,
        )
        fall_back = FallBack.ALLOW_DUPLICATES if self.allow_output_twice else FallBack.SAFE
        return SupervisorSettings(
            policy,
            restart,
            RestoreOptions(fall_back, self.allow_dropped_state),
            worker_silence_ms=_ms("worker_silence", self.worker_silence),
            start_timeout_ms=_ms("start_timeout", self.start_timeout),
            takeover_timeout_ms=_ms("takeover_timeout", self.takeover_timeout),
            call_timeout_ms=_ms("call_timeout", self.call_timeout),
        )

    def worker(self, time_zone: str = "UTC") -> WorkerSettings:
        silence_ms = _ms("worker_silence", self.worker_silence)
        channel_bytes = size_bytes("channel_size", self.channel_size, error=OptionError)
        return WorkerSettings(
            credit_limit_bytes=channel_bytes,
            output_bytes_max=channel_bytes,
            channel_time_ms=_ms("channel_time", self.channel_time),
            batch_time_ms=_ms("batch_time", self.batch_time),
            inflight_bytes_max=size_bytes("inflight_size_max", self.inflight_size_max, error=OptionError),
            recovery_bytes_max=size_bytes("recovery_size_max", self.recovery_size_max, error=OptionError),
            heartbeat_ms=max(1, min(1000, silence_ms // 4)),
            driver_silence_ms=3 * silence_ms,
            time_zone=time_zone,
            latency_interval_ms=_ms("latency_interval", self.latency_interval),
            state_backend=self.state_backend,
        )


def _ms(name: str, value: Duration) -> int:
    return duration_ms(name, value, error=OptionError)
