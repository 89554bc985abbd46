"""The catalogue: every defect that is planted, by the part of the system that it breaks.

Defects that other engines have had carry the name of their family in docs/internals/PRIOR_ART.md; the others are marked
as our own. Three of those cannot be expressed against this code: at most 128 inputs, a feature's directory that must
exist although the feature is off, and recovered buffers without a bound.
"""

from __future__ import annotations

from tests.mutants.catalogue import (
    columns,
    connectors,
    coordination,
    dashboard,
    drift,
    files,
    first_use,
    functions,
    hands,
    inputs,
    joins,
    kafka,
    liveness,
    lookups,
    metrics,
    names,
    output_log,
    outputs,
    ownership,
    page,
    postgres_source,
    recovery,
    relational,
    seams,
    sinks,
    snapshots,
    steps,
    surface,
    tables,
    takeovers,
    triggers,
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
    *triggers.MUTANTS,
    *drift.MUTANTS,
    *hands.MUTANTS,
    *steps.MUTANTS,
    *functions.MUTANTS,
    *takeovers.MUTANTS,
    *sinks.MUTANTS,
    *files.MUTANTS,
    *kafka.MUTANTS,
    *liveness.MUTANTS,
    *columns.MUTANTS,
    *names.MUTANTS,
    *seams.MUTANTS,
    *surface.MUTANTS,
    *metrics.MUTANTS,
    *tables.MUTANTS,
    *postgres_source.MUTANTS,
    *dashboard.MUTANTS,
    *page.MUTANTS,
    *lookups.MUTANTS,
    *relational.MUTANTS,
    *joins.MUTANTS,
    *output_log.MUTANTS,
    *first_use.MUTANTS,
)
