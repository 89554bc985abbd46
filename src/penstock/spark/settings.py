"""The settings of a pipeline, as its user writes them: seconds, bytes, and names."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict

from penstock.driver.settings import SupervisorSettings
from penstock.driver.takeover import RestoreOptions
from penstock.errors import OptionError
from penstock.model.units import exact_ms
from penstock.protocol.coordinator.state import Mode, Policy
from penstock.protocol.recovery import FallBack
from penstock.protocol.restart import RestartPolicy
from penstock.protocol.retention import STOPS_RETAINED
from penstock.worker.settings import WorkerSettings

_MODES = {
    "aligned": Mode.ALIGNED,
    "unaligned": Mode.UNALIGNED,
    "aligned-with-timeout": Mode.ALIGNED_WITH_TIMEOUT,
}


Time: TypeAlias = float | timedelta | str
"""A number of seconds, a `timedelta`, or a text such as "500 ms"."""

CheckpointMode = Literal["aligned", "unaligned", "aligned-with-timeout"]


class StartOptions(TypedDict, total=False):
    """The keyword arguments of `Pipeline.start`, for type checkers. `Settings` has the meaning and the defaults."""

    parallelism: int | None
    """For operators that name none; by default the slots of the session, at most `workers`."""
    workers: int | None
    """Number of Spark tasks; by default the largest parallelism."""
    restore: str | int | None
    """Checkpoint to start from: an id in the directory, or the path of a savepoint."""
    storage_options: dict[str, object] | None
    """For fsspec, where `checkpoints` is a URL."""
    checkpoint_mode: CheckpointMode
    checkpoint_interval: Time | None
    alignment_timeout: Time
    checkpoint_timeout: Time
    minimum_pause: Time
    tolerable_failures: int
    retained_checkpoints: int
    retained_savepoints: int
    inflight_bytes_max: int
    recovery_bytes_max: int
    channel_bytes: int
    channel_time: Time
    batch_time: Time
    restarts_max: int
    same_error_max: int | None
    restart_window: Time
    restart_delay: Time
    restart_delay_max: Time
    worker_silence: Time
    call_timeout: Time
    start_timeout: Time
    takeover_timeout: Time
    allow_output_twice: bool
    allow_dropped_state: bool


_LEAST = {
    "tolerable_failures": 0,
    "retained_checkpoints": 1,
    "retained_savepoints": 0,
    "inflight_bytes_max": 1,
    "recovery_bytes_max": 1,
    "channel_bytes": 1,
    "restarts_max": 0,
    "same_error_max": 1,
}
_LONGER_THAN_ZERO = (
    "checkpoint_interval",
    "checkpoint_timeout",
    "restart_window",
    "worker_silence",
    "call_timeout",
    "start_timeout",
    "takeover_timeout",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set for a pipeline. Times are seconds, as numbers, as `timedelta`, or texts such as "500 ms"."""

    checkpoint_interval: Time | None = 10.0
    """From the start of one checkpoint to the start of the next; None for none but those that are asked for."""
    checkpoint_mode: str = "aligned-with-timeout"
    """"aligned", "unaligned", or aligned until `alignment_timeout` has passed."""
    alignment_timeout: Time = 0.5
    checkpoint_timeout: Time = 600.0
    """A checkpoint that is not complete after this is given up."""
    minimum_pause: Time = 0.0
    tolerable_failures: int = 3
    """So many checkpoints in a row may fail; one more restarts the pipeline."""
    retained_checkpoints: int = 3
    retained_savepoints: int = STOPS_RETAINED
    """Savepoints that stops have taken. Savepoints that were asked for are never removed."""
    inflight_bytes_max: int = 256 * 1024 * 1024
    """In-flight data that one worker may capture for a checkpoint."""
    recovery_bytes_max: int = 64 * 1024 * 1024
    """Recovered in-flight data that one worker holds in memory; the rest is read from the checkpoint in time."""
    channel_bytes: int = 1024 * 1024
    """What may be on the way on one channel, at most."""
    channel_time: Time = 0.01
    """So long should records wait on a channel: in front of a slow function there is less on the way. 0: any time."""
    batch_time: Time = 1.0
    """Target for the time that a keyed function works on the records it gets at once. Where its calls cost more than
    its records, more records wait, up to this time and `channel_bytes`. 0 keeps the queue as short as `channel_time`
    says."""
    restarts_max: int = 10
    """Maximum number of restarts for failures within `restart_window`, or with no completed checkpoint in between; one
    more failure fails the pipeline."""
    same_error_max: int | None = 2
    """The same error of a function or of the data, or the same call of user code that hangs, met as often as this with
    no completed checkpoint in between, fails the pipeline: another attempt would meet it too. `None` leaves it to
    `restarts_max`."""
    restart_window: Time = 600.0
    restart_delay: Time = 0.2
    """Doubles from failure to failure, up to `restart_delay_max`."""
    restart_delay_max: Time = 30.0
    worker_silence: Time = 10.0
    """A worker that was not heard of for so long counts as dead."""
    call_timeout: Time = 600.0
    """Longest time a worker may spend in one call, such as one call of a user function; a longer one restarts."""
    start_timeout: Time = 120.0
    """Time for the workers to come up, from when there are slots for them; and the time to wait for those slots."""
    takeover_timeout: Time = 120.0
    """An attempt fails if, while it takes the checkpoint directory over, neither the store nor a sink has answered for
    this long. The takeover may take longer altogether: it reads the whole of the checkpoint that it restores."""
    allow_output_twice: bool = False
    """Whether to go back past a damaged checkpoint although its output may have been published."""
    allow_dropped_state: bool = False
    """Whether state of an operator that the pipeline no longer has may be dropped."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.checkpoint_mode not in tuple(_MODES):
            raise OptionError(f"checkpoint_mode is {self.checkpoint_mode!r}: it must be one of {', '.join(_MODES)}")
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
                raise OptionError(f"there is no setting {name!r}: {hint}")
        return cls(**options)

    def supervisor(self) -> SupervisorSettings:
        interval = self.checkpoint_interval
        policy = Policy(
            interval_ms=None if interval is None else _ms("checkpoint_interval", interval),
            pause_ms_min=_ms("minimum_pause", self.minimum_pause),
            expiry_ms=_ms("checkpoint_timeout", self.checkpoint_timeout),
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
            _ms("worker_silence", self.worker_silence),
            _ms("start_timeout", self.start_timeout),
            _ms("takeover_timeout", self.takeover_timeout),
            _ms("call_timeout", self.call_timeout),
        )

    def worker(self, time_zone: str = "UTC") -> WorkerSettings:
        silence_ms = _ms("worker_silence", self.worker_silence)
        return WorkerSettings(
            window_bytes=self.channel_bytes,
            output_bytes_max=self.channel_bytes,
            # Only 0 itself stands for windows that stay as they are, and not a time that is next to nothing.
            queue_ms_target=max(_ms("channel_time", self.channel_time), 1 if self.channel_time else 0),
            batch_ms_target=max(_ms("batch_time", self.batch_time), 1 if self.batch_time else 0),
            capture_bytes_max=self.inflight_bytes_max,
            backlog_bytes_max=self.recovery_bytes_max,
            heartbeat_ms=max(1, min(1000, silence_ms // 4)),
            driver_silence_ms_max=3 * silence_ms,
            time_zone=time_zone,
        )


def _ms(name: str, value: Time) -> int:
    seconds: object = value
    if isinstance(value, str | timedelta):
        ms = exact_ms(value)
        seconds = None if ms is None else float(ms) / 1000
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise OptionError(
            f"{name} is {value!r}: it must be a number of seconds, a timedelta, or a text such as '500 ms', '10 s' or "
            f"'5 minutes'"
        )
    return round(seconds * 1000)
