"""Judges the answers of Flink SQL on a few events: `python -m benchmarks.nexmark.flink_check [q0 q1 …]`.

A figure beside ours means something only if Flink answers the same question. DuckDB judges both.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from benchmarks.nexmark.catalogue import FLINK_QUERIES, PEERS
from examples.nexmark.generator import Shape
from tests.nexmark.judge import differences, right_answer
from tests.nexmark.questions import QUESTIONS, Question

_NOT_JUDGED = ("q12",)
"""At the end of its input Flink drops the windows of processing time that are open."""


def answer_of(path: Path, question: Question) -> list[pa.RecordBatch]:
    """The rows of a changelog in the types of the right answer. `-U` and `-D` take a row back."""
    with path.open("rb") as file:
        names = file.readline().decode().rstrip("\n").split("\t")
    strings = dict.fromkeys(names, pa.string())
    text = pa.csv.ConvertOptions(strings_can_be_null=True, null_values=["null"], column_types=strings)
    options = pa.csv.ParseOptions(delimiter="\t", quote_char=False)
    table = pa.csv.read_csv(path, parse_options=options, convert_options=text)
    columns = {"op": pc.if_else(pc.match_substring(table["op"], "-"), "delete", "insert")}
    for field in right_answer(question).schema:
        columns[field.name] = _cast(table[field.name], field.type)
    return list(pa.table(columns).to_batches())


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).cast(pa.timestamp("ms"))
    return column.cast(kind)


def answers(names: list[str], shape: Shape, events: int, directory: str) -> list[str]:
    """Have Flink answer questions about the same events; returns its complaints."""
    words = [",".join(names), str(events), "2", "check", directory, str(shape.events_per_second), str(shape.begin_ms)]
    done = subprocess.run(["bash", PEERS, "flink-nexmark", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"Flink could not be run: {done.stderr[-2000:]}")
    return [line for line in done.stdout.splitlines() if "WRONG" in line]


def main() -> int:
    names = sys.argv[1:] or [name for name in FLINK_QUERIES if name not in _NOT_JUDGED]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="penstock-nexmark-") as directory:
        about = {name: (QUESTIONS[name].shape, QUESTIONS[name].events) for name in names}
        for shape, events in set(about.values()):
            print(
                *answers([name for name in names if about[name] == (shape, events)], shape, events, directory), sep="\n"
            )
        for name in names:
            path = Path(directory) / f"{name}.tsv"
            found = differences(QUESTIONS[name], answer_of(path, QUESTIONS[name])) if path.exists() else ["no answer"]
            wrong += bool(found)
            print(f"{name}: {'as DuckDB' if not found else found[0]}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
