"""Defects of rows that are cut from others: what is counted, sent and captured of them should be theirs alone."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_GATHER = "columnar/gather.py"
_STAGE = "worker/sources/source_stage.py"


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    tests = {
        _GATHER: ("tests/unit/columnar/test_gather.py",),
        _STAGE: ("tests/unit/worker/sources/test_source_stage.py", "tests/unit/state/test_every_type.py"),
    }
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests[file])


MUTANTS = (
    _mutant(
        "A slice of a dictionary keeps all values",
        _GATHER,
        "        return _is_excess(array.dictionary, len(array)) or _has_excess(array.dictionary)\n",
        "        return False\n",
        "I7: every slice is as large as the column that it was cut from.",
    ),
    _mutant(
        "Rows that are taken of a dictionary bring all values along",
        _GATHER,
        "    if _is_excess(values, len(rows)):\n",
        "    if len(rows) < 0:\n",
        "I7: a record to each receiver is as large as the column that it was taken from.",
    ),
    _mutant(
        "A slice of views keeps all strings",
        _GATHER,
        "        return held > _EXCESS_BYTES_MIN and held > 2 *",
        "        return held < 0 and held > 2 *",
        "I7: every slice is as large as the column that it was cut from.",
    ),
    _mutant(
        "Slices of a source's batches go on with the rest of their batch",
        _STAGE,
        "                return owned(batch)\n",
        "                return batch\n",
        "I7: what is counted, sent and captured of a slice is the whole batch.",
    ),
    _mutant(
        "A null of a dictionary that is cut becomes its first value",
        _GATHER,
        "[_bits(valid), pa.py_buffer(numbers)]",
        "[None, pa.py_buffer(numbers)]",
        "Values appear that nobody sent.",
    ),
    Mutant(
        "A segment that is split keeps the bit that tells its halves apart to itself",
        OWN,
        "state/index/slot_table.py",
        "self._directory[agreed + (1 << depth) :: 1 << (depth + 1)] = other * _SEGMENT",
        "pass",
        "The new half is never found: keys get a second slot, and begin anew.",
        seeds=0,
        tests=("tests/unit/state/test_slot_table.py",),
    ),
    Mutant(
        "Rows go on at their old position after a segment was split",
        OWN,
        "state/index/slot_table.py",
        "_split_crowded_segments():\n                    following = self._home(hashes[rows])\n",
        "_split_crowded_segments():\n                    pass\n",
        "They look in a segment that their key has left.",
        seeds=0,
        tests=("tests/unit/state/test_slot_table.py",),
    ),
    Mutant(
        "All segments are split as soon as they are full",
        OWN,
        "state/index/slot_table.py",
        "return fullest_first[:paid]",
        "return fullest_first",
        "The mailbox is held for longer the more keys there are.",
        seeds=0,
        tests=("tests/unit/state/test_slot_table.py",),
    ),
    Mutant(
        "A column is copied as a whole when it is full",
        OWN,
        "state/index/growing.py",
        "to = min(size, self._copied + _COPIED_PER_VALUE * (end - size))",
        "to = self._copied",
        "The mailbox is held for longer the more keys there are.",
        seeds=0,
        tests=("tests/unit/state/test_key_index_growth.py",),
    ),
    Mutant(
        "A larger direct table takes the place of the old one before it is filled",
        OWN,
        "columnar/direct_table.py",
        "if end == len(larger):",
        "if end:",
        "Keys get numbers that nobody gave them.",
        seeds=0,
        tests=("tests/unit/columnar/test_direct_table.py", "tests/unit/state/test_key_index_growth.py"),
    ),
)
