"""`penstock explain`: the plan of a pipeline, without starting it."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.failures import reported
from penstock.cli.loading import load

_TARGET = "The pipeline, as for run: module:name or path/to/file.py:name. Example: examples/word_count.py:pipeline"
_PARALLELISM = "Parallelism of operators that set none; without it, theirs is left open. Example: --parallelism 4"


def explain(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=_TARGET, show_default=False)],
    parallelism: Annotated[int | None, typer.Option("--parallelism", metavar="N", min=1, help=_PARALLELISM)] = None,
) -> None:
    """Print the plan of a pipeline: chains, exchanges with their keys, state, names. Nothing is started.

    Example: penstock explain examples/word_count.py:pipeline
    """
    with reported():
        typer.echo(load(target).pipeline.explain(parallelism=parallelism, to_string=True))
