"""Defects of the adaptors for PySpark's data sources. The simulator has none of them: their own tests must notice."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_SOURCE = ("tests/unit/connectors/spark/test_source.py",)
_SINK = ("tests/unit/connectors/spark/test_sink.py",)
_GENERATOR = ("tests/unit/connectors/test_generator.py",)

MUTANTS = (
    Mutant(
        "A position in a partition is one row short",
        OWN,
        "connectors/spark/source.py",
        "rows=self._at.rows + batch.num_rows)",
        "rows=self._at.rows + batch.num_rows - 1)",
        "I1: a row is in front of the cut and is read again.",
        seeds=0,
        tests=_SOURCE,
    ),
    Mutant(
        "The end of a range that is half read is committed",
        OWN,
        "connectors/spark/source.py",
        "start = Position.decoded(offset, self._rows_to_arrow.where).start\n",
        "start = Position.decoded(offset, self._rows_to_arrow.where).end\n",
        "The source may forget records that a restore still needs.",
        seeds=0,
        tests=_SOURCE,
    ),
    Mutant(
        "Rows that come in another order when they are read again are not noticed",
        OWN,
        "connectors/spark/reads.py",
        "if at.last is not None and checksum_of(row) != at.last:",
        "if False:",
        "I8: some rows are lost and others are repeated, in silence.",
        seeds=0,
        tests=_SOURCE,
    ),
    Mutant(
        "Sources are told of a checkpoint that failed",
        OWN,
        "worker/sources/source_stage.py",
        "            if noted == checkpoint:\n",
        "            if noted <= checkpoint:\n",
        "The source may forget records that a restore still needs.",
        seeds=0,
        tests=("tests/unit/worker/sources/test_source_stage.py",),
    ),
    Mutant(
        "A commit message may be of any class that can be imported",
        OWN,
        "connectors/spark/messages.py",
        "    kind = classes.get(name)\n",
        "    module, _, last = name.rpartition('.')\n"
        "    kind = classes.get(name) or getattr(__import__(module or 'os', fromlist=[last]), last, None)\n",
        "A hostile checkpoint chooses what is made in the driver.",
        seeds=0,
        tests=_SINK,
    ),
    Mutant(
        "The iterator of a write that is given up ends as if that were all",
        OWN,
        "connectors/spark/sink.py",
        "            if self._is_closed:\n                raise Closed\n            return self._entries[0]",
        "            if self._is_closed:\n                return _Epoch()\n            return self._entries[0]",
        "A writer takes a part of its records for all of them.",
        seeds=0,
        tests=_SINK,
    ),
    Mutant(
        "A position of an older checkpoint is counted in blocks",
        OWN,
        "connectors/generator.py",
        'state.get("blocks", [None] * len(highs))',
        'state.get("blocks", [_BLOCK_ROWS_MAX] * len(highs))',
        "I9: after the update a number belongs to another split than before it, and comes twice or never.",
        seeds=0,
        tests=_GENERATOR,
    ),
    Mutant(
        "A bounded generator deals out one stretch to each split",
        OWN,
        "connectors/generator.py",
        "    return _Extent(high, block_rows or _BLOCK_ROWS_MAX)\n",
        "    return _Extent(high, None)\n",
        "The second split begins in the middle of event time, and windows hold half of the data.",
        seeds=0,
        tests=_GENERATOR,
    ),
)
