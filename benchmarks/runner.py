"""Runs contenders in turns, so that noise hits all of them, and keeps what came of it in a file."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.results import Case, Contender, NotVerified, Runs, parse

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "results.json"
_TIMEOUT_S = 900
_PEER_MISSING = 3
"""How `peers/run` ends if a peer cannot be installed or run here."""


def run_case(case: Case, runs: int) -> Runs:
    """Run every contender `runs` times, one after the other. A peer that is missing is left out, and said to be."""
    print(f"{case.benchmark}: {case.name}", flush=True)
    found = Runs(date=datetime.date.today().isoformat(), cores=os.cpu_count() or 1)
    for _ in range(runs):
        for contender in case.contenders:
            if contender.name in found.missing:
                continue
            found.busy.append(busy_cores())
            _run(contender, found)
    return found


def busy_cores(seconds: float = 0.5) -> float:
    """How many cores are in use right now, by anybody. The load average would still echo with the run before."""
    before, cores = _idle_seconds(), os.cpu_count() or 1
    time.sleep(seconds)
    return round(max(0.0, cores - (_idle_seconds() - before) / seconds), 2)


def _idle_seconds() -> float:
    """For how long the cores together have had nothing to do."""
    return float(Path("/proc/uptime").read_text().split()[1])


def _run(contender: Contender, found: Runs) -> None:
    # The peers leave their checkpoints where they are: in a directory that is removed with everything in it.
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as files:
        command = [files if word == "FILES" else word for word in contender.command]
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
        )
    line = next((line for line in reversed(done.stdout.splitlines()) if "=" in line), "")
    if done.returncode == _PEER_MISSING:
        why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        found.missing[contender.name] = why
        print(f"  {contender.name} is left out: {why}", flush=True)
        return
    if done.returncode:
        raise SystemExit(f"{contender.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    try:
        found.figures.setdefault(contender.name, []).append(parse(line))
    except NotVerified as error:
        raise SystemExit(f"{contender.name} gave a wrong answer, or none: {error}") from error
    print(f"  {line}", flush=True)


# --- what is kept ---


def machine() -> dict[str, str]:
    """What the figures were measured on, and with."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    commit = _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("pyspark", "pyarrow", "numpy"))
    return {
        "cores": str(os.cpu_count()),
        "processor": cpu,
        "memory": f"{pages / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Java": _said("java", "-version").partition("\n")[0],
        "Penstock": f"commit {commit}, {versions}",
        "peers": ", ".join(_pinned()),
    }


def _said(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "none"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()


def _pinned() -> list[str]:
    """The versions of the peers, as their script pins them."""
    script = (ROOT / "benchmarks" / "peers" / "run").read_text()
    return [word.replace("==", " ") for word in dict.fromkeys(script.split()) if "==" in word and word[0].isalpha()]


def keep(results: Sequence[tuple[Case, Runs]], path: Path = KEPT) -> None:
    """Put these results in the place of older ones of the same cases; the others stay."""
    kept = load(path)
    kept["machine"] = machine()
    for case, runs in results:
        kept["cases"][f"{case.benchmark}: {case.name}"] = dataclasses.asdict(runs)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path = KEPT) -> dict[str, dict[str, object]]:
    if not path.exists():
        return {"machine": {}, "cases": {}}
    kept: dict[str, dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def kept_runs(cases: Sequence[Case], path: Path = KEPT) -> list[tuple[Case, Runs]]:
    """The results that are kept of these cases, in the order of the cases."""
    kept = load(path)["cases"]
    names = {f"{case.benchmark}: {case.name}": case for case in cases}
    return [(case, Runs(**kept[name])) for name, case in names.items() if name in kept]  # type: ignore[arg-type]
