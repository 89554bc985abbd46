"""Defects of the connectors of tables, and of the checks that connectors of users are run through."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_DELTA = ("tests/tables/test_delta.py",)
_POSTGRES = ("tests/tables/test_postgres.py",)
_ICEBERG = ("tests/tables/test_iceberg.py",)

MUTANTS = (
    Mutant(
        "All commits to a table have one scope",
        OWN,
        "connectors/tables/data_files.py",
        'return CommitId(f"penstock-{min(tokens)}", int(checkpoint))',
        'return CommitId("penstock", int(checkpoint))',
        "I5: with a new checkpoint directory ids begin again, and new output is taken for old.",
        seeds=0,
        tests=_DELTA,
    ),
    Mutant(
        "A Delta table does not look for the application transaction",
        OWN,
        "connectors/delta/sink.py",
        "if (table.transaction_version(identity.scope) or 0) >= identity.version:",
        "if False:",
        "I4: a repeated commit publishes again.",
        seeds=0,
        tests=_DELTA,
    ),
    Mutant(
        "A compaction of a Delta table is new data",
        OWN,
        "connectors/delta/log.py",
        'if add and add.get("dataChange", True):',
        "if add:",
        "Rows are read twice.",
        seeds=0,
        tests=_DELTA,
    ),
    Mutant(
        "A version that the log of a Delta table has lost is waited for without an end",
        OWN,
        "connectors/delta/source.py",
        "if table.version() >= number and self._source.entry(number) is None:",
        "if False:",
        "I8: the source stands still, or leaves rows out, in silence.",
        seeds=0,
        tests=_DELTA,
    ),
    Mutant(
        "The marker of PostgreSQL is renewed by a repeated commit",
        OWN,
        "connectors/postgres/sink.py",
        "WHERE known.version < EXCLUDED.version",
        "WHERE known.version <= EXCLUDED.version",
        "I4: a repeated commit is taken for a first one.",
        seeds=0,
        tests=_POSTGRES,
    ),
    Mutant(
        "Staged rows that are gone from PostgreSQL are not missed",
        OWN,
        "connectors/postgres/sink.py",
        "        if found != expected:\n",
        "        if False:\n",
        "I8: rows of a checkpoint are lost in silence.",
        seeds=0,
        tests=_POSTGRES,
    ),
    Mutant(
        "An Iceberg table does not look for the checkpoint among its properties",
        OWN,
        "connectors/iceberg/sink.py",
        "if commits.get(identity.scope, 0) >= identity.version:",
        "if False:",
        "I4: a repeated commit publishes again.",
        seeds=0,
        tests=_ICEBERG,
    ),
    Mutant(
        "A conflict at an Iceberg table is tried again without another look",
        OWN,
        "connectors/iceberg/sink.py",
        '        table.metadata.properties["commit.retry.num-retries"] = "0"\n',
        "",
        "I6: two drivers publish one checkpoint twice.",
        seeds=0,
        tests=_ICEBERG,
    ),
    Mutant(
        "The check of a sink kills nobody within a commit",
        OWN,
        "testing/check_sink.py",
        "if self.deaths and self.lines == self.dies_at_line:",
        "if False:",
        "A sink that publishes in two steps passes.",
        seeds=0,
        tests=("tests/unit/testing/test_check_sink.py",),
    ),
    Mutant(
        "The check of a source opens no position again",
        OWN,
        "testing/check_source.py",
        "        trials.positions(split, read)\n",
        "        pass\n",
        "A source whose offset runs ahead may pass.",
        seeds=0,
        tests=("tests/unit/testing/test_check_source.py",),
    ),
)
