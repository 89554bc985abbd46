"""Every public method of the API has an example, and every example does what it says."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import pytest

import penstock
from penstock import (
    ConnectedStreams,
    CountWindowedStream,
    KeyedStream,
    OverStream,
    Pipeline,
    Stream,
    WindowedStream,
)
from penstock import testing as penstock_testing

CLASSES = (Pipeline, Stream, KeyedStream, WindowedStream, CountWindowedStream, OverStream, ConnectedStreams)
WITHOUT = {"start"}
"""It needs Spark: its example is run by those of the documents."""


def methods() -> list[Any]:
    found: dict[str, Any] = {}
    for kind in CLASSES:
        for name, member in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and name not in WITHOUT:
                found[member.__qualname__] = member
    found["collect"] = penstock_testing.collect
    return [pytest.param(member, id=name) for name, member in sorted(found.items())]


def setting() -> dict[str, Any]:
    """The names that the examples begin with, as the docstring of `Stream` makes them."""
    names: dict[str, Any] = {}
    (setup,) = doctest.DocTestFinder(recurse=False).find(Stream, "Stream", globs=names)
    assert doctest.DocTestRunner().run(setup, clear_globs=False).failed == 0
    return setup.globs


@pytest.mark.parametrize("method", methods())
def test_the_example_of_a_method_does_what_it_says(method: Any) -> None:
    (found,) = doctest.DocTestFinder(recurse=False).find(method, method.__qualname__, globs=setting())
    assert found.examples, f"{method.__qualname__} has no example"
    said: list[str] = []
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=said.append)
    assert outcome.failed == 0, "".join(said)


def test_every_class_that_users_build_pipelines_with_is_looked_at() -> None:
    streams = {name for name in penstock.__all__ if "Stream" in name or name == "Pipeline"}
    assert streams == {kind.__name__ for kind in CLASSES}
