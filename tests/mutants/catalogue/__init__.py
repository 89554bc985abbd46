"""The catalogue: every defect that is planted, by the part of the system that it breaks.

Those of the seed documents carry the number of the document; the others are marked as our own. What cannot be
expressed against this code is not here: at most 128 inputs (000), a feature's directory that must exist although the
feature is off, and recovered buffers without a bound (004).
"""

from __future__ import annotations

from tests.mutants.catalogue import (
    columns,
    connectors,
    coordination,
    files,
    functions,
    hands,
    inputs,
    liveness,
    names,
    outputs,
    ownership,
    recovery,
    sinks,
    snapshots,
    takeovers,
    windows,
)
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *inputs.MUTANTS,
    *outputs.MUTANTS,
    *snapshots.MUTANTS,
    *coordination.MUTANTS,
    *ownership.MUTANTS,
    *recovery.MUTANTS,
    *connectors.MUTANTS,
    *windows.MUTANTS,
    *hands.MUTANTS,
    *functions.MUTANTS,
    *takeovers.MUTANTS,
    *sinks.MUTANTS,
    *files.MUTANTS,
    *liveness.MUTANTS,
    *columns.MUTANTS,
    *names.MUTANTS,
)
