"""Every public method has an example in a docstring, and every example runs.

An example stands behind a line `Example:` and an empty line, as an indented block, so that `help()` and the site both
show it as code. It runs after the lines of docs/reference/index.md, which make a small stream of orders. One that needs
a session stands behind `Example on Spark:` and is run by tests/spark/test_documents.py.

A method has an example if its own docstring has one, or if one of its class uses it: a class that is extended, such as
`Source`, is best shown whole. Methods of streams have doctests instead, which tests/unit/api/test_docstrings.py runs.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
import penstock.testing

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "index.md"

HERE, ON_SPARK = "Example:", "Example on Spark:"


def preamble() -> str:
    found = re.search(
        r"^```python runnable\n(.*?)^```$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1]


# --- reading docstrings ---


def examples_in(docstring: str, *headings: str) -> list[str]:
    """The indented blocks behind one of these headings, but for doctests."""
    lines = inspect.cleandoc(docstring).splitlines()
    found = []
    for number, line in enumerate(lines):
        if line in headings:
            block = []
            for following in lines[number + 1 :]:
                if following and not following.startswith("    "):
                    break
                block.append(following)
            source = textwrap.dedent("\n".join(block)).strip("\n") + "\n"
            if not source.startswith(">>> "):
                found.append(source)
    return found


def names_used(source: str) -> set[str]:
    """Every name that the example calls, reads or defines."""
    used = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.FunctionDef(name=name) | ast.keyword(arg=str(name)):
                used.add(name)
            case _:
                pass
    return used


# --- the public names ---


def public_names() -> Iterator[tuple[str, Any]]:
    for module in (penstock, penstock.testing):
        yield from ((f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__)


def is_checked(value: Any) -> bool:
    """Classes and functions of Penstock. An error is shown where it is raised, and a constant where it is used."""
    is_error = inspect.isclass(value) and issubclass(value, BaseException)
    return (inspect.isclass(value) or inspect.isfunction(value)) and not is_error


def methods_of(kind: type) -> dict[str, Any]:
    """Public methods and properties that the class has from Penstock."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("penstock"):
            found |= {name: value for name, value in vars(base).items() if is_method(name, value)}
    return found


def is_method(name: str, value: Any) -> bool:
    return not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod))


def docstring_of(value: Any) -> str:
    inner = value.__func__ if isinstance(value, classmethod) else value
    return inner.__doc__ or ""


def classes_of(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("penstock")]


def all_examples(*headings: str) -> dict[str, str]:
    """Every example, by where it stands; a method that several classes inherit once."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    for name, value in public_names():
        if not is_checked(value):
            continue
        parts = {name: value.__doc__ or ""}
        if inspect.isclass(value):
            parts |= {f"{name}.{each}": docstring_of(method) for each, method in methods_of(value).items()}
        for place, docstring in parts.items():
            for number, source in enumerate(examples_in(docstring, *headings)):
                if source not in seen:
                    seen.add(source)
                    found[f"{place}-{number}" if number else place] = source
    return found


def members_shown() -> dict[str, set[str]]:
    """The methods of a name that the reference shows, where it does not show all: the rest is for the engine."""
    text = "".join(path.read_text(encoding="utf-8") for path in REFERENCE.parent.glob("*.md"))
    found = re.findall(r"^::: (\S+)\n    options:\n      members: \[(.*)\]$", text, re.MULTILINE)
    return {name: set(re.findall(r"\w+", members)) for name, members in found}


def has_example(docstring: str) -> bool:
    return bool(examples_in(docstring, HERE, ON_SPARK)) or ">>> " in docstring


def without_example(name: str, value: Any, members: set[str] | None = None) -> list[str]:
    """What lacks an example: the class or function itself, or some of its methods."""
    own = has_example(value.__doc__ or "")
    if not inspect.isclass(value):
        return [] if own else [name]
    methods = {each: method for each, method in methods_of(value).items() if members is None or each in members}
    if not methods:
        # A class that holds values has a page that lists them.
        return [] if own or hasattr(value, "__dataclass_fields__") else [name]
    of_class = [source for base in classes_of(value) for source in examples_in(base.__doc__ or "", HERE, ON_SPARK)]
    used = {used for source in of_class for used in names_used(source)}
    return [
        f"{name}.{each}"
        for each, method in methods.items()
        if each not in used and not has_example(docstring_of(method))
    ]


# --- the tests ---

EXAMPLES = all_examples(HERE)


@pytest.mark.parametrize(
    ("name", "value"), [pytest.param(*pair, id=pair[0]) for pair in public_names() if is_checked(pair[1])]
)
def test_every_public_method_has_an_example(name: str, value: Any) -> None:
    assert without_example(name, value, members_shown().get(name)) == [], (
        "write an example into the docstring: `Example:`, an empty line, and an indented block that runs after the "
        "lines of docs/reference/index.md"
    )


@pytest.mark.parametrize("source", [pytest.param(source, id=place) for place, source in EXAMPLES.items()])
def test_every_example_of_a_docstring_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = vars(ModuleType("__main__"))
    exec(compile(preamble(), "<docs/reference/index.md>", "exec"), names)
    exec(compile(source, "<example>", "exec"), names)


def test_every_example_says_what_comes_out() -> None:
    silent = [
        place
        for place, source in all_examples(HERE, ON_SPARK).items()
        if not any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source)))
    ]
    assert silent == []


# --- the checks themselves have teeth ---


class Told:
    """Has a method that is shown, and two that are not.

    Example:

        Told().shown()
        assert True
    """

    def shown(self) -> None: ...

    def hidden(self) -> None:
        """Says something, and shows nothing."""

    @property
    def secret(self) -> int:
        return 1

    def own(self) -> None:
        """Is shown itself.

        Example:

            assert Told().own() is None

        More text.
        """


def test_a_method_without_an_example_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Told, "__module__", "penstock.told")
    assert without_example("Told", Told) == ["Told.hidden", "Told.secret"]
    assert examples_in(Told.own.__doc__ or "", HERE) == ["assert Told().own() is None\n"]
    assert examples_in("Nothing.", HERE) == []
