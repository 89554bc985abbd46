"""Calls of a function of rows over a batch: each row is made just before its call, by code that is compiled once.

A dictionary that nobody keeps gives its memory to the next one. So neither the rows of a batch nor, where the names of
their fields are known, the rows that a function returns are ever there all at once: that costs half as much again.
An exception of the function carries a note: which row it was.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import GeneratorType
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.columnar.values import Values, require_distinct, values_of
from penstock.user_code import note_row

RowFunction: TypeAlias = Callable[[dict[str, object]], object]
Calls: TypeAlias = Callable[..., list[object]]
Odd: TypeAlias = list[object]
"""What is not as expected."""
Outputs: TypeAlias = Callable[[object], Iterable[object]]
Turns: TypeAlias = Generator[bool, int | None, None]
"""Calls that stop for a moment whenever as much has been done as they were told: True in the middle of a row."""


class RowCalls:
    """The rows of one batch, each of which is handed over once: by one call of `results`, `truths`, `columns` or
    `outputs`, or by several of them one after the other."""

    __slots__ = ("_columns", "_first", "_names", "_rows", "count")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.count: int = batch.num_rows
        self._names = tuple(batch.schema.names)
        self._columns: list[Values] = [values_of(column) for column in batch.columns]
        # Says how many rows are left: `zip` does not.
        self._first: Iterator[object] = iter(self._columns[0] if self._columns else range(self.count))
        self._rows = zip(self._first, *self._columns[1:], strict=False)

    @property
    def number(self) -> int:
        """The number of the row that was handed over last."""
        return self.count - operator.length_hint(self._first) - 1

    def values(self, name: str) -> Values | None:
        """The values of the one column of this name, if there is one."""
        return self._columns[self._names.index(name)] if self._names.count(name) == 1 else None

    def results(self, function: RowFunction) -> list[object]:
        """The results for the rows that are left."""
        return self._guarded(_results(self._names), function, self._rows)

    def truths(self, function: RowFunction) -> list[object]:
        """Whether the results for the rows that are left are true."""
        return self._guarded(_truths(self._names), function, self._rows)

    def columns(self, function: RowFunction, names: tuple[str, ...]) -> tuple[list[list[object]], list[object]]:
        """The columns of the dictionaries that a function returns, as long as they have just the fields `names`.

        From the first result on that is something else, the results themselves; none if there is no such result.
        """
        columns: list[list[object]] = [[] for _ in names]
        odd: Odd = []
        if names:
            odd = self._guarded(_columns(self._names, names), function, self._rows, columns)
        if odd or not names:
            odd += self.results(function)
        return columns, odd

    def outputs(
        self, function: RowFunction, outputs_of: Outputs, names: tuple[str, ...], columns: list[list[object]], odd: Odd
    ) -> Turns:
        """Call a function that has no, one or several outputs for each row that is left.

        Outputs that are dictionaries with just the fields `names` are added to `columns`; from the first one on that is
        something else they are added to `odd`, as long as that is not empty. Lists and generators are taken as they
        are, and `outputs_of` says what is in another result. It stops after as many calls and outputs as it was sent
        last, one to begin with, and in a row that has stopped in the middle once more when its outputs are over.
        Whoever goes on with it calls `add_note` for its exceptions.
        """
        return _outputs(self._names, names)(function, outputs_of, self._rows, columns, odd)

    def add_note(self, error: Exception) -> None:
        """Note with an exception which row it was raised for: the one that was handed over last."""
        number = self.number
        row = {name: column[number] for name, column in zip(self._names, self._columns, strict=True)}
        note_row(error, number, self.count, row)

    def _guarded(self, calls: Calls, *arguments: object) -> list[object]:
        try:
            return calls(*arguments)
        except Exception as error:
            self.add_note(error)
            raise


class ColumnRows(Sequence[dict[str, object]]):
    """Rows that are there as columns only, for those who want to look at few of them."""

    def __init__(self, names: Sequence[str], columns: Sequence[Sequence[object]]) -> None:
        self._names = names
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def __getitem__(self, number: Any) -> Any:
        # Rows without columns have no end that a column could tell.
        if not self._columns:
            raise IndexError(number)
        return {name: column[number] for name, column in zip(self._names, self._columns, strict=True)}


def _display(names: tuple[str, ...]) -> tuple[str, str]:
    """Code of a row with these names, and of the variables that it is made of. Names enter it by their `repr` only."""
    require_distinct(names)
    variables = [f"v{number}" for number in range(len(names))]
    entries = ", ".join(f"{name!r}: {variable}" for name, variable in zip(names, variables, strict=True))
    return f"{{{entries}}}", ", ".join(variables or ["_"]) + ","


@functools.lru_cache(maxsize=1024)
def _results(names: tuple[str, ...]) -> Calls:
    row, variables = _display(names)
    calls: Calls = eval(f"lambda function, rows: [function({row}) for {variables} in rows]", {})
    return calls


@functools.lru_cache(maxsize=1024)
def _truths(names: tuple[str, ...]) -> Calls:
    row, variables = _display(names)
    calls: Calls = eval(f"lambda function, rows: [True if function({row}) else False for {variables} in rows]", {})
    return calls


@functools.lru_cache(maxsize=1024)
def _columns(names: tuple[str, ...], returned: tuple[str, ...]) -> Calls:
    row, variables = _display(names)
    return _compiled(
        [
            "def calls(function, rows, columns):",
            f"    {_unpacked(returned)} = columns",
            f"    for {variables} in rows:",
            f"        made = function({row})",
            *_indented(8, _taken_apart(returned, otherwise="return [made]")),
            "    return []",
        ]
    )


@functools.lru_cache(maxsize=1024)
def _outputs(names: tuple[str, ...], returned: tuple[str, ...]) -> Callable[..., Turns]:
    row, variables = _display(names)
    taken = _taken_apart(returned, otherwise="odd.append(made)", unless="odd or ") if returned else ["odd.append(made)"]
    return _compiled(
        [
            "def calls(function, outputs_of, rows, columns, odd):",
            f"    {_unpacked(returned)} = columns" if returned else "    pass",
            "    left = 1",
            f"    for {variables} in rows:",
            f"        outputs = function({row})",
            "        kind = type(outputs)",
            "        if kind is not list and kind is not generator:",
            "            outputs = outputs_of(outputs)",
            "        is_whole = True",
            "        for made in outputs:",
            *_indented(12, taken),
            "            left -= 1",
            "            if left <= 0:",
            "                left = yield True",
            "                is_whole = False",
            "        left -= 1",
            "        if left <= 0 or not is_whole:",
            "            left = yield False",
        ]
    )


def _unpacked(returned: tuple[str, ...]) -> str:
    return "".join(f"c{number}, " for number in range(len(returned)))


def _taken_apart(returned: tuple[str, ...], otherwise: str, unless: str = "") -> list[str]:
    """Code that adds the fields of `made` to the columns; `otherwise` is done if it has not just these fields."""
    numbers = range(len(returned))
    return [
        f"if {unless}type(made) is not dict or len(made) != {len(returned)}:",
        f"    {otherwise}",
        "else:",
        "    try:",
        *(f"        r{number} = made[{name!r}]" for number, name in enumerate(returned)),
        "    except KeyError:",
        f"        {otherwise}",
        "    else:",
        *(f"        c{number}.append(r{number})" for number in numbers),
    ]


def _indented(spaces: int, lines: list[str]) -> list[str]:
    return [" " * spaces + line for line in lines]


def _compiled(lines: list[str]) -> Callable[..., Any]:
    found: dict[str, Callable[..., Any]] = {}
    exec("\n".join(lines), {"generator": GeneratorType}, found)
    return found["calls"]
