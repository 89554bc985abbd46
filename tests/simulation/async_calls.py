"""map_async in virtual time: its calls run on the scheduler instead of on threads. The only place that knows how."""

from __future__ import annotations

import functools
from typing import Any

from penstock.operators.async_map.operator import MapAsyncOperator
from tests.simulation.world import World

_AGAIN_US = 2_000
"""How often a call that is stuck looks whether it may go on."""


class VirtualPool:
    """Takes the place of the threads of one operator."""

    def __init__(self, world: World, operator: MapAsyncOperator) -> None:
        self._world = world
        self._operator = operator

    def submit(self, job: Any) -> None:
        world = self._world
        stuck_until, world.stuck_until = world.stuck_until, None

        def end() -> None:
            if stuck_until is not None and not stuck_until():
                world.scheduler.after(_AGAIN_US, end)
                return
            try:
                job.result = self._operator.function(job.batch)
            except Exception as error:
                job.error = error
            job.done.set()

        world.scheduler.after(world.rng.randint(*world.call_us), end)

    def close(self) -> None:
        """Calls that have begun come to their end, for nobody."""


class SimulatedMapAsync(MapAsyncOperator):
    """The production operator; only its threads are replaced."""

    world: World

    def setup(self) -> None:
        super().setup()
        self._pool = VirtualPool(self.world, self)  # type: ignore[assignment]


def simulated(world: World, made: functools.partial[MapAsyncOperator]) -> Any:
    """What makes a `MapAsyncOperator`, so that the calls of the operator run in virtual time."""

    def make() -> MapAsyncOperator:
        operator = SimulatedMapAsync(*made.args, **made.keywords)
        operator.world = world
        return operator

    return make
