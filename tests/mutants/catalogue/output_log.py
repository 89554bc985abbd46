"""Defects of the log of commits of file sinks, of the data source that reads by it, and of partitioned output."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_LOG = "connectors/files/commit_log.py"
_OUTPUT = "connectors/spark/output.py"
_SINK = "connectors/files/sink.py"
_PARTITIONING = "connectors/files/partitioning.py"
_TESTS = (
    "tests/unit/connectors/spark/test_output.py",
    "tests/unit/connectors/files/test_partitioned_sink.py",
)


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=_TESTS)


MUTANTS = (
    _mutant(
        "A commit that is repeated by another driver is logged twice",
        _LOG,
        "if any(commit.mark == mark for commit in known):",
        "if known and known[-1].mark == mark:",
        "A pipeline that goes back to an older checkpoint adds an entry each time. Readers pass over it.",
    ),
    _mutant(
        "Entries that say the same are all read",
        _LOG,
        "first.setdefault(entry.mark, entry)",
        "first[entry.name] = entry",
        "I4: rows of a commit that two drivers have logged are read twice.",
    ),
    _mutant(
        "A gap in the log is passed over",
        _LOG,
        "if after.number > before.number + 1:",
        "if after.number > before.number + 2:",
        "Rows of a removed commit are missing without a word.",
    ),
    _mutant(
        "Files from before the log are not in it",
        _LOG,
        "self._written(1, BEFORE_THE_LOG, before) if before else None",
        "None",
        "Rows that were committed by an earlier version are never read.",
    ),
    _mutant(
        "Files of the commit at hand count as older ones too",
        _LOG,
        "for name in older if name not in ours}",
        "for name in older}",
        "I4: rows of a commit in whose middle the driver died are read twice.",
    ),
    _mutant(
        "Unfinished entries stay",
        _SINK,
        "        self._log.discard_unfinished()\n",
        "",
        "Crashes leave files behind that nobody removes.",
    ),
    _mutant(
        "A query with availableNow follows the pipeline",
        _OUTPUT,
        "self._last = commits[-1].number if commits else 0",
        "self._last = None",
        "It never ends while the pipeline runs.",
    ),
    _mutant(
        "Commits that were removed unread are passed over",
        _OUTPUT,
        'if start["commit"] + 1 < first:',
        'if start["commit"] + 2 < first:',
        "Rows are missing without a word.",
    ),
    _mutant(
        "Another log is taken for the one that was read",
        _OUTPUT,
        "or (last or 0) > newest or is_other:",
        "or (last or 0) > newest:",
        "The first rows of a directory that was replaced are left out.",
    ),
    _mutant(
        "Base64 passes for bytes",
        _OUTPUT,
        "if pa.types.is_binary(field.type)]",
        "if pa.types.is_null(field.type)]",
        "Binary columns of JSON lines hold text.",
    ),
    Mutant(
        "A client whose signature does not show the mode is refused",
        OWN,
        "storage/object_store.py",
        ' or {"mode", "create"} <= {*named}',
        "",
        "No pipeline starts with checkpoints on Azure.",
        seeds=0,
        tests=("tests/unit/storage/test_object_store.py",),
    ),
    # --- directories ---
    _mutant(
        "Hours are those of the time zone of the column",
        _PARTITIONING,
        'column.cast(pa.timestamp("us"), safe=False)',
        "column",
        "Rows lie in the directory of another hour than readers look in.",
    ),
    _mutant(
        "An empty string is written as a directory without a value",
        _PARTITIONING,
        'if text in ("", HIVE_NULL):',
        "if text == HIVE_NULL:",
        "Spark cannot read the directory.",
    ),
    _mutant(
        "Values are not escaped in paths",
        _PARTITIONING,
        'return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)',
        "return text",
        "A value with a slash makes a directory more, and readers find other values.",
    ),
    _mutant(
        "Any number of directories is open",
        _SINK,
        "if len(self._open) >= OPEN_PARTITIONS_MAX:",
        "if len(self._open) < 0:",
        "A worker runs out of files, or of memory.",
    ),
    _mutant(
        "Compressed output lacks its end",
        "connectors/files/json_lines_sink.py",
        "            self._compressed.close()\n",
        "            self._compressed.flush()\n",
        "Readers find a file that ends in the middle.",
    ),
)
