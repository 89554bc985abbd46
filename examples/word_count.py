"""The words of a few lines, counted: a bounded pipeline, which finishes by itself.

    penstock run examples/word_count.py:pipeline --checkpoints /tmp/words

It writes JSON lines to out/word_count below the current directory, which git ignores, or to $WORD_COUNT_OUTPUT. Counts
are updates, and the last one of a word is its count. Run it again with the same checkpoints: it has finished, and
writes nothing more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from penstock import JsonLinesSink, Pipeline
from penstock.testing import ListSource

LINES = """
a penstock is the gated pipe of a dam
it has gates and a head of water and a spillway
the water waits behind the gate until the gate opens
""".strip().splitlines()


def words(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for word in row["line"].split():
        yield {"word": word}


def pipeline() -> Pipeline:
    """A function works as well as an object: it is called when the pipeline is run."""
    counting = Pipeline("word count")
    (
        counting.source(ListSource([{"line": line} for line in LINES]), name="lines")
        .flat_map(words, format="rows", schema="word string", name="words")
        .key_by("word")
        .count("count", name="counts")
        .sink(JsonLinesSink(os.environ.get("WORD_COUNT_OUTPUT", "out/word_count")), name="output")
    )
    return counting
