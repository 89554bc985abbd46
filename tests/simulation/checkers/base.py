"""What a checker is."""

from __future__ import annotations

from collections import Counter

from penstock.ids import Generation
from penstock.mailbox.frames import AcknowledgeFrame, ClocksFrame
from penstock.protocol.manifest import Manifest
from tests.simulation.cluster import Cluster
from tests.simulation.driver import Driver
from tests.simulation.world import CommitEvent


class Checker:
    """Looks at one thing that must hold. Override the moments at which it looks."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def on_manifest(self, manifest: Manifest) -> None:
        """A checkpoint has become durable; `cluster.manifests` has those before it."""

    def on_acknowledge(self, frame: AcknowledgeFrame) -> None:
        """A subtask acknowledges a checkpoint."""

    def on_clocks(self, frame: ClocksFrame) -> None:
        """A worker tells how far its sources are."""

    def on_launch(self, driver: Driver, generation: Generation, manifest: Manifest | None) -> None:
        """A driver has taken the directory over, and starts workers from a checkpoint."""

    def on_commit(self, event: CommitEvent) -> None:
        """Something happens in a committer."""

    def at_end(self) -> None:
        """The last life of the pipeline is over, and nothing was wrong so far."""

    def violation(self, text: str) -> None:
        self.cluster.world.violation(text)


def some(counter: Counter[int]) -> str:
    shown = ", ".join(
        f"{number}×{count}" if count > 1 else str(number) for number, count in sorted(counter.items())[:5]
    )
    return f"[{shown}{', …' if len(counter) > 5 else ''}]"
