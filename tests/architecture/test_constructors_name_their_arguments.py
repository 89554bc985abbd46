"""A constructor of the worker or of the exchange with many arguments takes them by name: two of one type are easily
swapped, and a reader of the call cannot tell them apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"
ROOMS = ("worker", "exchange")
POSITIONAL_MAX = 6


def positional_arguments(source: str) -> Iterator[tuple[str, int]]:
    """Each class that has a constructor, or is a dataclass, with the number of arguments that may go by position."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        decorators = [ast.unparse(each) for each in node.decorator_list]
        if any(each.startswith("dataclass") and "kw_only=True" not in each for each in decorators):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.value is None]
            yield node.name, len(fields)
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                yield node.name, len(each.args.args) - 1


def test_constructors_of_the_worker_and_the_exchange_name_their_arguments() -> None:
    files = [path for room in ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]
    found = [
        (str(path.relative_to(PACKAGE)), *each) for path in files for each in positional_arguments(path.read_text())
    ]
    assert len(found) > 20
    assert [each for each in found if each[2] > POSITIONAL_MAX] == []


def test_arguments_by_position_are_counted() -> None:
    source = """
class Both:
    def __init__(self, a, b, *, c): ...

@dataclass(frozen=True)
class Value:
    a: int
    b: int = 0

@dataclass(frozen=True, kw_only=True)
class Named:
    a: int
"""
    assert list(positional_arguments(source)) == [("Both", 2), ("Value", 1)]
