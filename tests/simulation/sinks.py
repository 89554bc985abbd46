"""The sink of the simulated pipelines: it stages lists of numbers under a name, and publishes them by that name."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter, nothing_prepared
from penstock.ids import CheckpointId, Generation
from tests.simulation.records import Numbers, numbers_of
from tests.simulation.world import CommitEvent, World


class ListSink(Sink):
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return ListWriter(self.world, f"{self.name}/g{generation}-{subtask}")

    def committer(self) -> Committer:
        return ListCommitter(self.world, self.name)


class ListWriter(SinkWriter):
    def __init__(self, world: World, prefix: str) -> None:
        self.world = world
        self.prefix = prefix
        self.part = 0
        self.held: list[Numbers] = []

    def write(self, batch: object) -> None:
        self.world.spend(self.world.slow_us * batch.num_rows)  # type: ignore[attr-defined]
        self.held.append(numbers_of(batch))

    def prepare(self) -> Prepared:
        self.world.fail_here("snapshot")
        if not self.held:
            return nothing_prepared
        held, self.held = self.held, []
        self.part += 1
        name = f"{self.prefix}-{self.part}"

        def stage() -> list[bytes]:
            self.world.staged[name] = held
            return [name.encode()]

        return stage

    def close(self) -> None:
        self.world.fail_here("close")


class ListCommitter(Committer):
    """Fails and hangs where that is planned: before it has any effect, half way, or when all is done."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        self._tell("began", checkpoint)
        try:
            self.world.scheduler.hangs.here("commit")
            names = tuple(payload.decode() for payload in committables)
            self.world.commits.append((checkpoint, names))
            self._publish(checkpoint, names)
            self._tell("took effect", checkpoint)
        finally:
            self._tell("ended", checkpoint)

    def _publish(self, checkpoint: CheckpointId, names: Sequence[str]) -> None:
        for number, name in enumerate(names, 1):
            if name not in self.world.published:
                if name not in self.world.staged:
                    self.world.violation(f"checkpoint {checkpoint} commits '{name}', which was never staged")
                    continue
                self.world.publish(name)
            if 2 * number >= len(names):
                self.world.fail_here("commit")

    def discard_uncommitted(self, generation: Generation) -> None:
        self.world.fail_here("sweep")
        for name in list(self.world.staged):
            made = int(name.split("/g")[1].split("-")[0])
            if name.startswith(self.name + "/") and made < generation and name not in self.world.published:
                del self.world.staged[name]

    def _tell(self, what: str, checkpoint: CheckpointId) -> None:
        for listener in self.world.on_commit:
            listener(CommitEvent(self, self.name, what, checkpoint))
