"""Testing without Spark: pipelines in this process, and the contracts of connectors.

- `run` runs a pipeline, with planned crashes, in milliseconds: see `penstock.testing.local`.
- `check_source` and `check_sink` run a connector of yours through failures at every step, and say in a sentence which
  part of its contract it breaks.
"""

from __future__ import annotations

from penstock.connectors.collect import CollectSink
from penstock.connectors.memory import ABORT, CHECKPOINT, PAUSE, ListSource
from penstock.testing.check_sink import check_sink
from penstock.testing.check_source import check_source
from penstock.testing.contract import ContractBroken
from penstock.testing.local import Result, Schedule, collect, run

__all__ = [
    "ABORT",
    "CHECKPOINT",
    "PAUSE",
    "CollectSink",
    "ContractBroken",
    "ListSource",
    "Result",
    "Schedule",
    "check_sink",
    "check_source",
    "collect",
    "run",
]
