"""Runs seeds of the simulator until one has a violation, and says so line by line. Started inside a copy of the tree.

{"started": "<directory>"}            the code could be imported
{"seed": 7, "violation": null}        one line for each seed, as soon as it is known
"""

from __future__ import annotations

import argparse
import json
import traceback
from pathlib import Path

import penstock
from tests.simulation.run import run_seed


def violation_of(seed: int, only: str | None) -> str | None:
    """What is wrong with one seed, in one line; a crash of the simulator itself is wrong as well."""
    try:
        found = run_seed(seed, only).violations
    except Exception as error:
        return f"the simulator failed: {traceback.format_exception_only(error)[-1].strip()}"
    if not found:
        return None
    lines = found[0].strip().splitlines()
    # The last line of a traceback says more than its first.
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.trial", description=__doc__)
    parser.add_argument("--only")
    parser.add_argument("seeds", type=int, nargs="+")
    arguments = parser.parse_args()
    print(json.dumps({"started": str(Path(penstock.__file__).parents[2])}), flush=True)
    for seed in arguments.seeds:
        violation = violation_of(seed, arguments.only)
        print(json.dumps({"seed": seed, "violation": violation}), flush=True)
        if violation is not None:
            return


if __name__ == "__main__":
    main()
