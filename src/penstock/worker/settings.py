"""Settings of a worker, with the defaults that a pipeline starts with."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import OptionError
from penstock.state.backends import DEFAULT_BACKEND, check_backend

MIB = 1024 * 1024
_NAMES = {"time_zone", "state_backend"}
_MAY_BE_ZERO = {"batch_time_ms", "inline_bytes_max", "channel_time_ms", "source_rest_ms", "latency_interval_ms"}


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What bounds a worker: memory on its channels, time on its mailbox."""

    credit_limit_bytes: int = 1 * MIB
    """Credit of one channel: what may be on the wire and in the receiver's queue, at most."""
    credit_limit_bytes_min: int = 4_096
    """No window shrinks below this: tiny batches cost more than they save."""
    channel_time_ms: int = 10
    """Windows shrink to what is consumed in this time, where the receiver is slow; 0 for windows that stay."""
    batch_time_ms: int = 1_000
    """For how long a keyed function may work on records that it gets at once, where more of them make a call worth
    more: windows grow for it beyond `channel_time_ms`. 0 for never."""
    output_bytes_max: int = 1 * MIB
    """A subtask stops working while an output channel has this many bytes waiting for credit."""
    inflight_bytes_max: int = 256 * MIB
    """In-flight data that one worker captures for one checkpoint; beyond, the checkpoint is declined (I7)."""
    recovery_bytes_max: int = 64 * MIB
    """Recovered in-flight data that one worker holds in memory; the rest is read from the checkpoint in time."""
    slice_us: int = 4_000
    """How long one call into the operators of a chain should take."""
    checkpoint_slice_us: int = 1000
    """The same while a checkpoint is in progress: its barriers wait for such calls, at every hop."""
    slice_rows_max: int = 131_072
    source_rows_max: int = 65_536
    """How many records a source is asked for at once."""
    source_retry_ms: int = 5
    """How long a source that has no records is left alone, at most."""
    source_rest_ms: int = 1
    """How long a source rests that had fewer records than it was asked for; 0 for not at all."""
    source_discovery_ms: int = 1_000
    """How often a source is asked for splits that have appeared."""
    late_barrier_timeout_ms: int = 60_000
    heartbeat_ms: int = 1_000
    """How often a worker gives a sign of life."""
    drift_interval_ms: int = 100
    """How often a worker tells the driver how far its sources with `max_drift` are."""
    driver_silence_ms: int = 30_000
    """A worker that has not heard from the driver for this long ends itself."""
    segment_bytes: int = 4 * MIB
    """State is written in pieces of about this size: keyed state cut between key groups, in-flight data anywhere."""
    time_zone: str = "UTC"
    """The zone in which processors of PySpark see times: `spark.sql.session.timeZone` of the session."""
    inline_bytes_max: int = 4 * MIB
    """State that may travel inside the manifest instead of in files, of all subtasks; and as much in-flight data."""
    latency_interval_ms: int = 1_000
    """How often each subtask of a source emits a latency marker; 0 for never."""
    state_backend: str = DEFAULT_BACKEND
    """Name of the backend that keyed state lives in; `penstock.state.backends` has the known ones."""

    def __post_init__(self) -> None:
        check_backend(self.state_backend)
        for name in self.__slots__:
            value = getattr(self, name)
            if name in _NAMES:
                continue
            least = 0 if name in _MAY_BE_ZERO else 1
            if not isinstance(value, int) or value < least:
                raise OptionError(f"{name} is {value!r}: it must be a whole number of at least {least}")
