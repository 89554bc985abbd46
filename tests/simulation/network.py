"""The network: every pair of processes has a link that keeps its order, delays frames, and can be cut."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from penstock.ids import WorkerId
from penstock.mailbox.frames import Frame
from tests.simulation.process import Process
from tests.simulation.scheduler import Scheduler


class Network:
    """Delivers frames after a delay. A cut link holds frames back until it heals, like a stalled connection."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, delay_us: tuple[int, int]) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._least_us, self._spread_us = delay_us[0], delay_us[1] - delay_us[0] + 1
        self._processes: dict[tuple[int, WorkerId], Process] = {}
        self._last_us: dict[tuple[int, WorkerId], int] = {}
        self._cut_until_us: dict[tuple[str, WorkerId], int] = {}
        self.on_frame: defaultdict[type[Frame], list[Callable[[Any], None]]] = defaultdict(list)
        """Listeners to each kind of frame: there are many frames, and few kinds that matter."""
        self.frames = 0

    def register(self, driver: int, address: WorkerId, process: Process) -> None:
        """From now on frames to `address` of a driver's gang reach `process`.

        Those of an older generation too: fencing must hold.
        """
        self._processes[driver, address] = process

    def cut(self, sender: Process, to: WorkerId, for_us: int) -> None:
        self._cut_until_us[(sender.name, to)] = self._scheduler.now_us + for_us

    def port_of(self, driver: int, process: Process) -> Port:
        return Port(self, driver, process)

    def send(self, driver: int, sender: Process, to: WorkerId, frame: Frame) -> None:
        if not sender.is_alive:
            return
        self.frames += 1
        for listener in self.on_frame[type(frame)]:
            listener(frame)
        link = (id(sender), to)
        at_us = sender.elapsed_us + self._least_us + int(self._rng.random() * self._spread_us)
        at_us = max(at_us, self._last_us.get(link, 0))
        if self._cut_until_us:
            at_us = max(at_us, self._cut_until_us.get((sender.name, to), 0))
        self._last_us[link] = at_us

        def arrive() -> None:
            process = self._processes.get((driver, to))
            if process is not None:
                process.post(frame)

        self._scheduler.at(at_us, arrive)


class Port:
    """The transport port of one process."""

    __slots__ = ("_driver", "_network", "_process")

    def __init__(self, network: Network, driver: int, process: Process) -> None:
        self._network = network
        self._driver = driver
        self._process = process

    def send(self, to: WorkerId, frame: Frame) -> None:
        self._network.send(self._driver, self._process, to, frame)
