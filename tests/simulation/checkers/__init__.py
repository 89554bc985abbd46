"""The judges: each looks at one thing that must hold, and knows nothing of how it is brought about."""

from __future__ import annotations

from penstock.mailbox.frames import AcknowledgeFrame, ClocksFrame
from tests.simulation.checkers.base import Checker
from tests.simulation.checkers.bounds import Bounds, Files
from tests.simulation.checkers.cuts import Cuts, Drained, TakesStock
from tests.simulation.checkers.event_time import Drift, Watermarks
from tests.simulation.checkers.output import Commits, Counts, Ending, Output
from tests.simulation.checkers.ownership import Deletions, Identity, Patience, Refusals, Strays
from tests.simulation.checkers.totals import Totals
from tests.simulation.cluster import Cluster

CHECKERS: tuple[type[Checker], ...] = (
    TakesStock,
    Identity,
    Cuts,
    Watermarks,
    Drift,
    Bounds,
    Drained,
    Refusals,
    Patience,
    Ending,
    Output,
    Commits,
    Counts,
    Totals,
    Strays,
    Deletions,
    Files,
)
"""In the order in which they look."""


def attach(cluster: Cluster) -> list[Checker]:
    """Let every judge look at everything from now on."""
    checkers = [kind(cluster) for kind in CHECKERS]
    moments = {
        "on_manifest": cluster.on_manifest,
        "on_acknowledge": cluster.network.on_frame[AcknowledgeFrame],
        "on_clocks": cluster.network.on_frame[ClocksFrame],
        "on_launch": cluster.on_launch,
        "on_commit": cluster.world.on_commit,
    }
    for name, listeners in moments.items():
        # Only those that have something to say.
        listeners += [  # type: ignore[operator]
            getattr(checker, name) for checker in checkers if name in type(checker).__dict__
        ]
    return checkers


def judge(cluster: Cluster, checkers: list[Checker]) -> None:
    """Look at what came out in the end."""
    if not cluster.world.violations:
        for checker in checkers:
            checker.at_end()
