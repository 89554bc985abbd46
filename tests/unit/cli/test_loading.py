"""From the name of a pipeline to the pipeline, and what is said where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer

from penstock.cli.loading import load
from penstock.errors import PenstockError, PipelineError

SOURCE = """
import numpy as np
from penstock import ConsoleSink, Pipeline, PipelineError
from penstock.testing import ListSource

pipeline = Pipeline("one").source(ListSource([{"a": 1}])).sink(ConsoleSink())
stream = Pipeline("two").source(ListSource([{"a": 1}]))
number = 3

def make():
    return pipeline

def forgets():
    pass

def needs(argument):
    return pipeline

def raises():
    return 1 / 0

def refuses():
    raise PipelineError("not like this")
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with modules in it, which are forgotten afterwards."""
    (tmp_path / "totals_here.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "package_here").mkdir()
    (tmp_path / "package_here" / "__init__.py").touch()
    (tmp_path / "package_here" / "inner.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "needy_here.py").write_text("import no_such_module_anywhere", encoding="utf-8")
    (tmp_path / "torn_here.py").write_text("def (", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "totals_here:pipeline",
        "totals_here:make",
        "totals_here.py:pipeline",
        "./totals_here.py:make",
        "package_here.inner:pipeline",
    ],
)
def test_a_pipeline_is_found(target: str) -> None:
    assert load(target).pipeline.name == "one"


def test_workers_are_told_where_the_code_was_found(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far_away.py").write_text(SOURCE, encoding="utf-8")
    loaded = load(f"{elsewhere}/far_away.py:pipeline")
    assert loaded.directories == (str(elsewhere), str(project))
    assert loaded.file == str(elsewhere / "far_away.py")
    assert load("package_here.inner:pipeline").file is None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("totals_here", "does not say which pipeline"),
        (":pipeline", "does not say which pipeline"),
        ("totals_here:", "does not say which pipeline"),
        ("no_such_here:pipeline", "no module 'no_such_here'"),
        ("package_here.no_such:pipeline", "no module"),
        ("no_such_here.py:pipeline", "no file no_such_here.py"),
        ("package_here/no-such.py:pipeline", "no file"),
        ("totals_here:pipelin", "did you mean pipeline"),
        ("totals_here:zzz", "its pipelines are pipeline"),
        # The module has an `np`, which is neither a pipeline nor like it.
        ("totals_here:nope", "its pipelines are pipeline"),
        ("totals_here:number", "not a Pipeline but an object of type int"),
        ("totals_here:stream", r"becomes a pipeline with \.sink"),
        ("totals_here:forgets", r"did not return a Pipeline but None"),
        ("totals_here:needs", "needs arguments"),
    ],
)
def test_a_target_that_names_no_pipeline_is_wrong_usage(target: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        load(target)


def test_a_file_that_hides_another_module_is_refused(project: Path) -> None:
    (project / "json.py").write_text(SOURCE, encoding="utf-8")
    with pytest.raises(typer.BadParameter, match="has the name of another module"):
        load("json.py:pipeline")


def test_a_file_whose_name_is_no_identifier_is_refused(project: Path) -> None:
    (project / "word-count.py").write_text(SOURCE, encoding="utf-8")
    with pytest.raises(typer.BadParameter, match="must be an identifier"):
        load("word-count.py:pipeline")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("needy_here:pipeline", "it needs 'no_such_module_anywhere'"),
        ("torn_here:pipeline", "SyntaxError"),
        ("totals_here:raises", "ZeroDivisionError"),
    ],
)
def test_what_the_users_code_raises_is_shown_with_the_place_in_it_and_nothing_of_ours(
    target: str, message: str
) -> None:
    with pytest.raises(PenstockError, match=message) as caught:
        load(target)
    assert "_here.py" in str(caught.value)
    assert "loading.py" not in str(caught.value)
    assert "importlib" not in str(caught.value)


def test_an_error_of_ours_that_a_function_raises_stays_as_it_is() -> None:
    with pytest.raises(PipelineError, match=r"^not like this$"):
        load("totals_here:refuses")
