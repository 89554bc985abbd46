"""The table of metrics in docs/monitoring.md is that of the code."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import penstock
from penstock.metrics.metric import Metric

MONITORING = Path(__file__).parents[3] / "docs" / "monitoring.md"


def defined() -> dict[str, Metric]:
    """Every metric that a module of Penstock defines."""
    found: dict[str, Metric] = {}
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            values = vars(importlib.import_module(module.name)).values()
            found |= {value.name: value for value in values if isinstance(value, Metric)}
    return found


def row(metric: Metric) -> tuple[str, str, str, str]:
    kind = "total" if metric.is_total else metric.kind.value
    return metric.name, kind, metric.unit, metric.help


def documented() -> list[tuple[str, ...]]:
    text = MONITORING.read_text(encoding="utf-8")
    _, _, table = text.partition("| metric | kind | unit | meaning |\n|---|---|---|---|\n")
    lines = table.partition("\n\n")[0].splitlines()
    return [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))) for line in lines]


def test_every_metric_is_documented_with_its_kind_unit_and_meaning() -> None:
    found = {name.strip("`"): (name.strip("`"), *cells) for name, *cells in documented()}
    assert found == {name: row(metric) for name, metric in defined().items()}


def test_metrics_have_plain_names_with_their_unit_last() -> None:
    for metric in defined().values():
        assert re.fullmatch(r"[a-z][a-z_]*[a-z]", metric.name), metric.name
        if metric.unit == "ms" and "watermark" not in metric.name:
            assert metric.name.endswith("_ms"), metric.name
