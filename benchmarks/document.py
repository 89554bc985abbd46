"""Writes the results into docs/internals/BENCHMARKS.md, between two marks; the rest of that page is written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.results import Case, Runs, details, summary
from benchmarks.runner import ROOT

DOCUMENT = ROOT / "docs" / "internals" / "BENCHMARKS.md"
BEGIN = "<!-- results: written by `python -m benchmarks --write` -->"
END = "<!-- end of the results -->"


def rendered(machine: Mapping[str, object], results: Sequence[tuple[Case, Runs]]) -> str:
    """All that stands between the marks."""
    lines = [
        "",
        "## Results",
        "",
        *summary(results),
        "",
        "Each figure is a median; in brackets the least and the greatest.",
    ]
    lines += ["", *details(results), "### Measured on", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    return "\n".join(lines) + "\n\n"


def updated(text: str, machine: Mapping[str, object], results: Sequence[tuple[Case, Runs]]) -> str:
    """The page with the results in it."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DOCUMENT} has lost its marks: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{rendered(machine, results)}{END}{after}"
