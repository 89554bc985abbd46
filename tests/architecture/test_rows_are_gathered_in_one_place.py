"""Rows of Arrow columns are taken, filtered and put together in `columnar`: elsewhere it would be for some types only.

Read from the text: a call of Arrow's `take` has an Arrow array in it, `pa.array(…)`, or is a function of
`pyarrow.compute`; numpy's has not.
"""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
_PARTS = ("api", "driver", "exchange", "graph", "mailbox", "operators", "state", "worker")
DATA_PATH = [path for part in _PARTS for path in sorted((PACKAGE / part).rglob("*.py"))]

_ARROW_TAKES = re.compile(
    r"\.take\(pa\.array|\.take\([a-z_.]*indices\)|pc\.take\(|pc\.filter\(|batch\.filter\(|pc\.run_end"
)

ALLOWED = {
    # Plain words with nulls among the row numbers, which only Arrow understands.
    "state/columns.py": 1,
}


def takes_in(text: str) -> int:
    return len(_ARROW_TAKES.findall(text))


def test_nobody_else_takes_rows_by_arrows_own_functions() -> None:
    found = {str(path.relative_to(PACKAGE)): takes_in(path.read_text(encoding="utf-8")) for path in DATA_PATH}
    assert {path: count for path, count in found.items() if count} == ALLOWED


def test_a_call_of_arrows_own_is_found() -> None:
    assert takes_in("batch.take(pa.array(rows))\nbatch.filter(mask)\nvalues.take(array.indices)\nslots.take(rows)") == 3
