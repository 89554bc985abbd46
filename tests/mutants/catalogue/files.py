"""Defects of the source that reads files. The simulator has none: its own tests must notice."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_TESTS = tuple(
    f"tests/unit/connectors/files/test_{name}.py"
    for name in ("source", "bad_input", "file_options", "partitioned_files")
)
_STAGE = "worker/sources/source_stage.py"
_SIDE_TESTS = ("tests/unit/worker/test_side_outputs.py",)
_STAGE_TESTS = ("tests/unit/worker/sources/test_source_stage.py", "tests/unit/connectors/files/test_source.py")


def _mutant(name: str, old: str, new: str, why: str, file: str = "reader") -> Mutant:
    path = f"connectors/files/{file}.py"
    return Mutant(name, OWN, path, old, new, why, seeds=0, tests=_TESTS)


MUTANTS = (
    # --- positions ---
    _mutant(
        "A file is read from the beginning of the piece in which it was left",
        'piece, first = self._piece, self._at["row"]',
        "piece, first = self._piece, 0",
        "I1: rows in front of the cut are read again.",
    ),
    _mutant(
        "The row of one piece is taken for that of the next",
        'row = self._at["row"] if piece.name == self._at["piece"] else self._surplus',
        'row = self._at["row"]',
        "I1: at the beginning of each piece rows are left out.",
    ),
    _mutant(
        "Stretches in front of the position are left out in every row group",
        "if group > group_first or stretch >= stretch_first:",
        "if stretch >= stretch_first:",
        "I1: rows of later row groups are lost after a restore.",
        "formats/parquet",
    ),
    _mutant(
        "A row group that was begun is read from its beginning",
        "if group > group_first or stretch >= stretch_first:",
        "if group >= group_first:",
        "I1: rows in front of the cut are read again after a restore.",
        "formats/parquet",
    ),
    _mutant(
        "A position of a text file is that of the block and not of the line behind it",
        "                place += len(block)\n",
        "                place += max(len(block), BLOCK_BYTES)\n",
        "I1: where a block ends with a part of a line, records are lost.",
        "formats/lines",
    ),
    _mutant(
        "A file that was read to its end is opened again",
        '        if self._at.get("end"):\n            return END_OF_SPLIT\n        if self._piece',
        "        if self._piece",
        "It may have been removed since, and its records would be read again.",
    ),
    # --- which files ---
    _mutant(
        "Files are listed in the order of the file system",
        "names = sorted(name for name in stamps if not is_hidden(name))",
        "names = [name for name in stamps if not is_hidden(name)]",
        "I9: workers that disagree on the order read some files twice and others never.",
        "source",
    ),
    _mutant(
        "Each worker lists the files of a bounded source for itself",
        "            self._listing = list(self.splits())\n        # Settled",
        "            self._listing = None\n        # Settled",
        "I9: a file that is added meanwhile is there for one worker and not for another.",
        "source",
    ),
    _mutant(
        "A bounded source takes up files that come later",
        "if self._listing is None or self.splits_may_appear:",
        "if True:",
        "Its end depends on who asks, and workers disagree.",
        "source",
    ),
    _mutant(
        "A watched directory is listed once",
        "if self._listing is None or self.splits_may_appear:",
        "if self._listing is None:",
        "Files that appear are never read.",
        "source",
    ),
    _mutant(
        "Staged files are read",
        'if base.startswith((".", "_")) or',
        'if base.startswith(".") or',
        "They are not complete, and are read once more under their final names.",
        "listing",
    ),
    _mutant(
        "Files in directories below match a pattern without one",
        'return "".join({"*": "[^/]*", "?": "[^/]"}.get(char',
        'return "".join({"*": ".*", "?": "."}.get(char',
        "Files that nobody asked for are read.",
        "listing",
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
        'unexpected = "ignore" if self.source.schema is not None else "error"',
        'unexpected = "ignore"',
        "Values are lost in silence.",
        "formats/json_lines",
    ),
    _mutant(
        "Columns are taken by their places and not by their names",
        "batch.column(f.name).cast(f.type) for f in schema]",
        "batch.column(place).cast(f.type) for place, f in enumerate(schema)]",
        "Values of one column come out in another.",
    ),
    _mutant(
        "The last line of a file needs its end",
        '        return b"".join(parts)\n\n    def _pieces_of',
        '        return b"".join(parts) if parts and parts[-1].endswith(b"\\n") else b""\n\n    def _pieces_of',
        "The last record is lost where the writer did not end its line.",
        "formats/lines",
    ),
    _mutant(
        "The header of a CSV file is a record",
        "self._names, start = fields, line.place + len(line.data)",
        "self._names = fields",
        "A record too many, or an error for columns of numbers.",
        "formats/delimited",
    ),
    # --- bad input ---
    _mutant(
        "Bad records do not count among those of a piece",
        "good = self.batch.slice(first - bad_first, (end - bad_end) - (first - bad_first))",
        "good = self.batch.slice(first, end - first)",
        "I1: good records behind a bad one are lost, or come twice.",
        "formats/pieces",
    ),
    _mutant(
        "A piece that a position names is cut shorter, and the rest of the position is forgotten",
        "self._surplus = max(0, row - piece.records)",
        "self._surplus = 0",
        "I1: records behind the piece are read again.",
    ),
    _mutant(
        "A disk that fails is a reason to skip a file",
        "        if error.errno is not None:\n            return False\n",
        "",
        "Records are lost for an error that passes.",
    ),
    _mutant(
        "A file that failed is tried again after it was skipped",
        '        self._end()\n        return self._portion(None, [DeadLetter(self.path, f"{begun}{reason}")]',
        '        return self._portion(None, [DeadLetter(self.path, f"{begun}{reason}")]',
        "It is counted, or a dead letter, without end.",
    ),
    _mutant(
        "Several objects on a line are records",
        "        if batch.num_rows != count:\n            raise ValueError",
        "        if batch.num_rows < (count or 0):\n            raise ValueError",
        "I1: the verdict on a line depends on its neighbours, and positions count records that are no lines.",
        "formats/lines",
    ),
    _mutant(
        "A quote that is not closed ends with the block",
        "if self.count(self.text(data)) is not None and table.num_rows + len(bad) == len(lines) + 1:",
        "if self.count(self.text(data)) is not None:",
        "I1: rows are taken for lines, and the wrong ones are bad.",
        "formats/delimited",
    ),
    _mutant(
        "The lines of a piece are counted from its beginning",
        "lines_before += breaks_in(block)",
        "lines_before = breaks_in(block)",
        "A dead letter names the wrong line.",
        "formats/lines",
    ),
    _mutant(
        "The first part of a block that is searched is named after its first record",
        '            yield from self._halved(lines, Line(b"", place, lines_before))',
        "            yield from self._halved(lines, lines[0])",
        "I1: a position in front of blank lines is not found again, and records are read twice.",
        "formats/lines",
    ),
    _mutant(
        "The end of a compressed file is not missed",
        "    if current is not None:\n        raise EOFError",
        "    if current is None:\n        raise EOFError",
        "A truncated file is read as if it were whole.",
        "formats/streams",
    ),
    _mutant(
        "What was decoded in front of the damage is thrown away",
        "        if not data and self._damage is not None:",
        "        if self._damage is not None:",
        "Good records in front of the damage are lost.",
        "formats/streams",
    ),
    # --- side outputs ---
    Mutant(
        "A side output breaks the chain of the main one",
        OWN,
        "graph/edges.py",
        "outputs = Counter((pending.port.operator, pending.port.output) for pending in pending_edges)",
        "outputs = Counter((pending.port.operator, MAIN_OUTPUT) for pending in pending_edges)",
        "Splits cannot be told apart behind a channel, and event time is wrong.",
        seeds=0,
        tests=_SIDE_TESTS,
    ),
    Mutant(
        "A batch of a side output goes to the main one",
        OWN,
        "exchange/router.py",
        "if edge.output != MAIN_OUTPUT:",
        "if False:",
        "Records of one output are taken for those of another.",
        seeds=0,
        tests=_SIDE_TESTS,
    ),
    Mutant(
        "A split that is dropped is forgotten",
        OWN,
        "driver/checkpoints/drop_split.py",
        "read if split == dropped else split for split in report.splits)",
        "split for split in report.splits if split != dropped)",
        "The file is read from its beginning if it is still there.",
        seeds=0,
        tests=("tests/unit/cli/checkpoints/test_drop_split.py",),
    ),
    Mutant(
        "A split is dropped under a pipeline that runs",
        OWN,
        "driver/checkpoints/drop_split.py",
        "    lease.check()\n",
        "",
        "I6: the running pipeline is fenced, and ends.",
        seeds=0,
        tests=("tests/unit/cli/checkpoints/test_drop_split.py",),
    ),
)
