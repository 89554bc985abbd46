"""Defects of the source that reads files. The simulator has none: its own tests must notice."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_FILES = "connectors/files.py"
_STAGE = "runtime/source_stage.py"
_STAGE_TESTS = ("tests/unit/runtime/test_source_stage.py", "tests/unit/connectors/test_files.py")


def _mutant(name: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, _FILES, old, new, why, seeds=0, tests=("tests/unit/connectors/test_files.py",))


MUTANTS = (
    # --- positions ---
    _mutant(
        "A file is read from the beginning of the piece in which it was left",
        'rest = self.fitted(batch.slice(self._at["row"]))',
        "rest = self.fitted(batch)",
        "I1: rows in front of the cut are read again.",
    ),
    _mutant(
        "The row of one piece is taken for that of the next",
        '                if name != self._at["piece"]:\n'
        '                    self._at = {**self._at, "piece": name, "row": 0}\n',
        '                self._at = {**self._at, "piece": name}\n',
        "I1: at the beginning of each piece rows are left out.",
    ),
    _mutant(
        "Stretches in front of the position are left out in every row group",
        "if group > group_first or stretch >= stretch_first:",
        "if stretch >= stretch_first:",
        "I1: rows of later row groups are lost after a restore.",
    ),
    _mutant(
        "A row group that was begun is read from its beginning",
        "if group > group_first or stretch >= stretch_first:",
        "if group >= group_first:",
        "I1: rows in front of the cut are read again after a restore.",
    ),
    _mutant(
        "A position of a text file is that of the block and not of the line behind it",
        "                place += len(block)\n",
        "                place += max(len(block), BLOCK_BYTES)\n",
        "I1: where a block ends with a part of a line, records are lost.",
    ),
    _mutant(
        "A file that was read to its end is opened again",
        '        if self._at.get("end"):\n            return END_OF_SPLIT\n        if self._rest',
        "        if self._rest",
        "It may have been removed since, and its records would be read again.",
    ),
    # --- which files ---
    _mutant(
        "Files are listed in the order of the file system",
        "names = sorted(name for name in stamps if not _is_hidden(name))",
        "names = [name for name in stamps if not _is_hidden(name)]",
        "I9: workers that disagree on the order read some files twice and others never.",
    ),
    _mutant(
        "Each worker lists the files of a bounded source for itself",
        "            self._listing = list(self.splits())\n        # Settled",
        "            self._listing = None\n        # Settled",
        "I9: a file that is added meanwhile is there for one worker and not for another.",
    ),
    _mutant(
        "A bounded source takes up files that come later",
        "if self._listing is None or self.splits_may_appear:",
        "if True:",
        "Its end depends on who asks, and workers disagree.",
    ),
    _mutant(
        "A watched directory is listed once",
        "if self._listing is None or self.splits_may_appear:",
        "if self._listing is None:",
        "Files that appear are never read.",
    ),
    _mutant(
        "Staged files are read",
        'if base.startswith((".", "_")) or',
        'if base.startswith(".") or',
        "They are not complete, and are read once more under their final names.",
    ),
    _mutant(
        "Files in directories below match a pattern without one",
        'return "".join({"*": "[^/]*", "?": "[^/]"}.get(char',
        'return "".join({"*": ".*", "?": "."}.get(char',
        "Files that nobody asked for are read.",
    ),
    # --- how many at a time ---
    Mutant(
        "All files of a source are open at a time",
        OWN,
        _STAGE,
        "        if len(self._awake) > _AWAKE_MAX:\n",
        "        if len(self._awake) > 1 << 20:\n",
        "A directory of thousands exhausts the file descriptors.",
        seeds=0,
        tests=_STAGE_TESTS,
    ),
    # --- what is in them ---
    _mutant(
        "Fields that the first block does not have are left out",
        'return "ignore" if self.source.schema is not None else "error"',
        'return "ignore"',
        "Values are lost in silence.",
    ),
    _mutant(
        "Columns are taken by their places and not by their names",
        "batch.column(f.name).cast(f.type) for f in schema]",
        "batch.column(place).cast(f.type) for place, f in enumerate(schema)]",
        "Values of one column come out in another.",
    ),
    _mutant(
        "The last line of a file needs its end",
        '        return b"".join(parts)\n\n\nclass _JsonReader',
        '        return b"".join(parts) if parts and parts[-1].endswith(b"\\n") else b""\n\n\nclass _JsonReader',
        "The last record is lost where the writer did not end its line.",
    ),
    _mutant(
        "The header of a CSV file is a record",
        "            return self.file_schema, len(header)\n        rows",
        "            return self.file_schema, 0\n        rows",
        "A record too many, or an error for columns of numbers.",
    ),
)
