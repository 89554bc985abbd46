"""Defects of the seams: kinds of state, kinds of windows, backends. The simulator has none but our own."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_KEYED = "state/keyed.py"
_BACKENDS = "state/backends/__init__.py"
_TESTS = (
    "tests/unit/state/test_kinds.py",
    "tests/unit/state/test_backends.py",
    "tests/unit/model/test_window_kinds.py",
)


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=_TESTS)


MUTANTS = (
    _mutant(
        "A name that is asked for as two kinds of state gives the first one",
        _KEYED,
        "        if known != descriptor:\n",
        "        if known.name != descriptor.name:\n",
        "A function writes into a state of another kind.",
    ),
    _mutant(
        "A removed state is remembered by its descriptor",
        _KEYED,
        "        self._descriptors.pop(name, None)\n",
        "",
        "Its name cannot be used for another kind.",
    ),
    _mutant(
        "States are made past the backend",
        _KEYED,
        "state = self._backend.create(descriptor, self)",
        "state = descriptor.create(self)",
        "The setting has no effect.",
    ),
    _mutant(
        "Bytes of state are not asked of the backend",
        _KEYED,
        "self._backend.state_bytes(state)",
        "state.state_bytes",
        "State that is not in memory would be counted as if it were.",
    ),
    _mutant(
        "An unknown backend is the default one",
        _BACKENDS,
        "    if not isinstance(name, str) or name not in BACKENDS:\n",
        "    if not isinstance(name, str):\n",
        "State is not where the user wants it, and nobody says so.",
    ),
    _mutant(
        "The chosen backend does not reach the worker",
        "worker/worker.py",
        "            state_backend=backend_of(settings.state_backend),\n",
        "",
        "The setting has no effect.",
    ),
    _mutant(
        "Windows without parameters take over those of any other kind",
        "state/windows/clock.py",
        " if spans else [()]\n",
        " if spans else []\n",
        "I8: what was gathered for other windows is taken for that of these.",
    ),
    _mutant(
        "Rows of a deleted state are written",
        "state/rows/rows.py",
        "        if self._is_disowned:\n",
        "        if False:\n",
        "They are lost without a word.",
    ),
    Mutant(
        "A sink that has nothing to hand over is asked for it by a thread",
        OWN,
        "worker/sink_stage.py",
        "        if prepared is not nothing_prepared:\n",
        "        if True:\n",
        "Every checkpoint waits for a thread, and holds empty preparations until one is durable.",
        seeds=0,
        tests=("tests/unit/worker/test_sink_stage.py",),
    ),
)
