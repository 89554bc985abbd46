"""Every field of a protocol value, every setting, and every property of them is read somewhere in the package.

A field that is set and never read promises something that nobody keeps. The search goes by names, from the source
text: a field counts as read if any module loads an attribute of its name, or a class pattern captures it. So the test
cannot be wrong about a field that it names; the trap: it misses a dead field whose name is also that of a living one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.import_graph import modules_of

PACKAGE = Path(__file__).parents[2] / "src" / "penstock"

SETTINGS = ("Settings", "Policy", "Options")

FOR_PEOPLE: frozenset[str] = frozenset()
"""Fields that are written for people who read a manifest or a log, and for no code: `Class.field`."""


def unread_fields(package: Path) -> list[str]:
    """`Class.field` for every field and property of a protocol value or of settings that nothing reads."""
    trees = {name: ast.parse(path.read_text()) for name, path in modules_of(package).items()}
    fields = {cls.name: list(_fields(cls)) for tree in trees.values() for cls in _classes(tree)}
    read = {name for tree in trees.values() for name in _read(tree, fields)}
    return sorted(
        f"{cls.name}.{field}"
        for module, tree in trees.items()
        for cls in _classes(tree)
        if ".protocol." in module or cls.name.endswith(SETTINGS)
        for field in (*fields[cls.name], *_properties(cls))
        if field not in read
    )


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef) and _is_dataclass(node))


def _is_dataclass(cls: ast.ClassDef) -> bool:
    return any("dataclass" in ast.dump(decorator) for decorator in cls.decorator_list)


def _fields(cls: ast.ClassDef) -> Iterator[str]:
    for node in cls.body:
        # An `InitVar` is an argument, which a checker of types follows.
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and "InitVar" not in ast.dump(node):
            yield node.target.id


def _properties(cls: ast.ClassDef) -> Iterator[str]:
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and any(ast.dump(each) == _PROPERTY for each in node.decorator_list):
            yield node.name


_PROPERTY = ast.dump(ast.Name("property", ast.Load()))


def _read(tree: ast.Module, fields: dict[str, list[str]]) -> Iterator[str]:
    """Names of attributes that a module loads, or captures in a class pattern."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.MatchClass):
            known = fields.get(ast.unparse(node.cls).rpartition(".")[2], [])
            captured = [not _is_wildcard(pattern) for pattern in node.patterns]
            yield from (name for name, is_captured in zip(known, captured, strict=False) if is_captured)
            yield from node.kwd_attrs


def _is_wildcard(pattern: ast.pattern) -> bool:
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None and pattern.name is None


def test_every_field_of_the_protocol_and_every_setting_is_read() -> None:
    unread = set(unread_fields(PACKAGE))
    assert sorted(unread - FOR_PEOPLE) == [], "remove them, or give them an effect and a test for it"
    assert sorted(FOR_PEOPLE - unread) == [], "these are read now, or gone: take them off the list"


@pytest.mark.parametrize(
    ("reader", "unread"),
    [
        ("def f(value: object) -> object: ...", ["Value.first", "Value.is_second", "Value.second"]),
        ("def f(value): value.first = 1", ["Value.first", "Value.is_second", "Value.second"]),
        ("def f(value): return value.first, value.second, value.is_second", []),
        (
            "def f(value):\n    match value:\n        case Value(first, _): return first",
            ["Value.is_second", "Value.second"],
        ),
        ("def f(value):\n    match value:\n        case Value(second=2): return value.is_second", ["Value.first"]),
    ],
    ids=["nothing", "a store is no load", "attributes", "positions of a pattern", "keywords of a pattern"],
)
def test_a_planted_field_that_nothing_reads_is_found(tmp_path: Path, reader: str, unread: list[str]) -> None:
    package = tmp_path / "planted"
    (package / "protocol").mkdir(parents=True)
    (package / "protocol" / "values.py").write_text(
        "@dataclass(frozen=True)\nclass Value:\n    first: int\n    second: int = 0\n\n"
        "    @property\n    def is_second(self) -> bool:\n        return True\n"
    )
    (package / "reader.py").write_text(reader)
    assert unread_fields(package) == unread
