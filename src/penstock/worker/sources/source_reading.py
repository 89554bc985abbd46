"""How a subtask reads its source: how much at once, when to rest, and when to look for new splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.user_code import place, user_code_error
from penstock.worker.chain import OperatorChain
from penstock.worker.event_time.subtask_clock import SubtaskClock
from penstock.worker.latency import LatencyMarkers
from penstock.worker.services import Services
from penstock.worker.sources.source_stage import SourceStage

_REST_BYTES = 65_536
"""A source that has as much as this goes on reading, even if it was asked for more."""


class SourceReading:
    """Reads the source of a chain, if it has one. `came` takes the records and when they were asked for."""

    def __init__(
        self,
        chain: OperatorChain,
        event_time: SubtaskClock,
        services: Services,
        *,
        markers: LatencyMarkers,
        rows_max: Callable[[], int],
        came: Callable[[pa.RecordBatch, int], None],
        ended: Callable[[], None],
    ) -> None:
        self._chain = chain
        self._event_time = event_time
        self._services = services
        self._markers = markers
        self._rows_max = rows_max
        self._came = came
        self._ended = ended
        self.rests = False
        """Whether it is left alone for a moment."""
        self._rest_ms = 1

    @property
    def _source(self) -> SourceStage:
        assert self._chain.source is not None
        return self._chain.source

    def discover_later(self) -> None:
        """Ask the source again and again for splits that have appeared, if it says that some may."""
        source, services = self._source, self._services
        if not source.source.splits_may_appear:
            return

        def done(names: Sequence[str] | Exception) -> None:
            source.on_listed(names, services.clock.now_ms())
            self.discover_later()

        services.timers.after(
            services.settings.source_discovery_ms, lambda: services.background.submit(source.source.splits, done)
        )

    def read(self) -> bool:
        """Read some records and process them; False if there are none."""
        source, settings = self._source, self._services.settings
        started_us = self._services.clock.own_us()
        rows_max = max(1, min(self._rows_max(), settings.source_rows_max))
        self._markers.begin()
        batch = self._read_splits(source, rows_max)
        if batch is None:
            self._event_time.after_source()
            if source.has_ended and self._chain.is_idle:
                self._ended()
            else:
                self._markers.emit(source.operator)
                self._rest(self._rest_ms)
                self._rest_ms = min(2 * self._rest_ms, settings.source_retry_ms)
            return False
        if batch.num_rows:
            self._came(batch, started_us)
        self._event_time.after_source()
        self._markers.emit(source.operator)
        self._rest_ms = 1
        if 0 < batch.num_rows < rows_max and batch.nbytes < _REST_BYTES and settings.source_rest_ms:
            # It has kept up with whatever it reads from. Asked at once again it would have a record or two, and a
            # batch costs the same with two records as with a hundred.
            self._rest(settings.source_rest_ms)
        return True

    def _read_splits(self, source: SourceStage, rows_max: int) -> pa.RecordBatch | None:
        self._services.activity.working = source.operator, source.index
        try:
            return source.read(rows_max, self._services.clock.now_ms())
        except PenstockError as error:
            place(error, source.named, source.subtask, source.added_at)
            raise
        except Exception as error:
            raise user_code_error(f"{source.named}, {source.subtask}: read", error, source.added_at) from error

    def _rest(self, rest_ms: int) -> None:
        self.rests = True

        def wake() -> None:
            self.rests = False

        self._services.timers.after(rest_ms, wake)
