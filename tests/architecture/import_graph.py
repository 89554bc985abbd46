"""Who imports whom, read from the source text of a package and not from running it.

Reading the text finds what running cannot: imports under `TYPE_CHECKING`, inside functions and in branches that
this machine never takes. It also lets the tests plant a violation in a made-up package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Import:
    """The module `importer` imports the module `target`, both as absolute dotted names."""

    importer: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def modules_of(package: Path) -> dict[str, Path]:
    """Every module in the directory `package`, by its dotted name; a package is named without `__init__`."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imports_of(package: Path) -> list[Import]:
    """Every import in the directory `package`, of its own modules and of others."""
    modules = modules_of(package)
    return [found for name, path in modules.items() for found in _imports_in(name, path, modules)]


def _imports_in(importer: str, path: Path, modules: dict[str, Path]) -> Iterator[Import]:
    home = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        match node:
            case ast.Import(names=names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(names=names):
                source = _absolute(node, home)
                # `from package import name` means the module `package.name` if there is one.
                dotted = [f"{source}.{alias.name}" for alias in names]
                targets = [name if name in modules else source for name in dotted]
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _is_dynamic_import(node.func):
                targets = [name]
            case _:
                continue
        for target in dict.fromkeys(targets):
            yield Import(importer, target, node.lineno)


def _absolute(node: ast.ImportFrom, home: str) -> str:
    if node.level == 0:
        return node.module or ""
    # One dot is the importer's own package, each further dot its parent.
    parts = home.split(".")
    base = parts[: len(parts) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


def _is_dynamic_import(function: ast.expr) -> bool:
    match function:
        case ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"):
            return True
        case _:
            return False
