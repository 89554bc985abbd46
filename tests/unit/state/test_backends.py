"""A state backend is chosen by its name; it makes all keyed state, and its bytes are asked of it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from penstock import OptionError, Pipeline
from penstock.spark.settings import Settings, StateBackendName
from penstock.state import backends
from penstock.state.backends import BACKENDS, backend_of
from penstock.state.backends.memory import MemoryBackend
from penstock.state.contract import KeyedStateLike, S, StateDescriptor, StateOwner
from penstock.testing import CollectSink, ListSource, run
from penstock.worker.settings import WorkerSettings


class Counting(MemoryBackend):
    """Notes what it was asked for."""

    name = "counting"
    made: ClassVar[list[str]] = []

    def create(self, descriptor: StateDescriptor[S], owner: StateOwner) -> S:
        self.made.append(descriptor.name)
        return super().create(descriptor, owner)

    def state_bytes(self, state: KeyedStateLike) -> int:
        return 1_000


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    for ask in (backend_of, lambda name: Settings(state_backend=name), lambda name: WorkerSettings(state_backend=name)):
        with pytest.raises(OptionError, match=r"state_backend is 'rocks': unknown backend.*: 'memory'"):
            ask("rocks")
    with pytest.raises(OptionError, match="state_backend is None"):
        Settings(state_backend=None)  # type: ignore[arg-type]


def test_the_default_is_memory_and_reaches_the_worker() -> None:
    assert backend_of(Settings().worker().state_backend).name == "memory"
    assert Settings.of({"state_backend": "memory"}).worker() == Settings().worker()


def test_type_checkers_know_the_names_that_there_are() -> None:
    assert set(StateBackendName.__args__) == set(BACKENDS)


def test_the_backend_that_was_chosen_makes_every_keyed_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {**BACKENDS, "counting": Counting})
    monkeypatch.setattr(Counting, "made", made := [])
    rows: list[dict[str, Any]] = [{"k": n % 3, "v": n, "t": n} for n in range(100)]
    pipeline, sink = Pipeline("p"), CollectSink()
    keyed = pipeline.source(ListSource(rows)).with_watermark("t", 0).key_by("k")
    keyed.window("10 ms").sum("v").sink(sink)
    run(pipeline, worker_settings=WorkerSettings(state_backend="counting", driver_silence_ms=10**6))
    # The clock is a state with its own name, and comes first in a checkpoint when the windows are registered.
    assert made == ["windows", "windows.clock"]
    assert len(sink.rows()) == 30


def test_bytes_are_asked_of_the_backend() -> None:
    from penstock.state import KeyedState

    keyed = KeyedState(range(4), 4, backend=Counting())
    keyed.rows("a", ["k"])
    keyed.rows("b", ["k"])
    assert keyed.state_bytes == 2_000
    assert KeyedState(range(4), 4).state_bytes == 0
