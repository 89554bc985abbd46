"""Defects of the page: whom it answers, how much it costs, and whether its figures are true."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_GUARDS = "tests/unit/dashboard/test_guard.py"
_LIVE = "tests/unit/dashboard/test_live_views.py"
_HISTORY = "tests/unit/driver/observation/test_checkpoint_history.py"
_HOST = "tests/unit/worker/test_host.py"


def _mutant(name: str, file: str, old: str, new: str, why: str, *tests: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
    _mutant(
        "A profile does not say that samples are left out",
        "dashboard/sights/live.py",
        "stacks=stacks, left_out=left_out)",
        "stacks=stacks)",
        "The shares of a profile are not those of the samples.",
        "tests/unit/dashboard/test_live_views.py",
    ),
    _mutant(
        "A profile does not say which operator worked",
        "worker/host.py",
        "found = None if working is None else str(working[0]), calls",
        "found = None, calls",
        "A chain of ten operators is one block of frames in the flame graph.",
        _HOST,
    ),
    _mutant(
        "Files of the page are kept by browsers under their names",
        "dashboard/assets.py",
        "_FOR_EVER if name != path else {}",
        "_FOR_EVER",
        "After an upgrade browsers mix modules of two versions.",
        "tests/unit/dashboard/test_assets.py",
    ),
    _mutant(
        "The version of the page is that of its names",
        "dashboard/assets.py",
        ".encode() + content)",
        ".encode())",
        "After an upgrade browsers show the page of the version before.",
        "tests/unit/dashboard/test_assets.py",
    ),
    _mutant(
        "The page does not list its modules",
        "dashboard/assets.py",
        "for name in sorted(_imported(_MAIN, files))]",
        "for name in ()]",
        "Modules are fetched one level after the other: a page over a slow line takes five round trips.",
        "tests/unit/dashboard/test_assets.py",
    ),
    _mutant(
        "A failure names the chain of its subtask",
        "driver/observation/timeline.py",
        "        operator = blamed.operator or chain\n",
        "        operator = chain\n",
        "The page blames a source for the bug of a function three operators behind it.",
        _HISTORY,
    ),
    _mutant(
        "A call back is nobody's work",
        "worker/context.py",
        "        activity.working = self.operator, self.subtask\n        call()\n",
        "        call()\n",
        "A lookup or an async call that fails names no operator, and its log lines have none.",
        "tests/unit/worker/test_worker.py",
    ),
    _mutant(
        "The size of restored state is not told",
        "worker/checkpointing/subtask_checkpointer.py",
        "        self._restored_bytes = state_bytes\n",
        "",
        "After each restart the state looks empty until the next checkpoint, which may be minutes.",
        "tests/unit/worker/test_worker_checkpoints.py",
    ),
    _mutant(
        "The watermark of a chain is asked of its first operator",
        "dashboard/sights/graphs.py",
        "    last = chain.nodes[-1].name, index\n",
        "    last = chain.name, index\n",
        "A chain with a source has no watermark and no lag.",
        _LIVE,
    ),
    _mutant(
        "What waits for a page that does not read is not bounded",
        "dashboard/events.py",
        "asyncio.Queue(WAITING_MAX)",
        "asyncio.Queue()",
        "The driver's memory grows with every laptop that was closed with the page open.",
        "tests/unit/dashboard/test_server.py",
    ),
    _mutant(
        "A collector that is down is a warning with each export",
        "dashboard/telemetry.py",
        "        elif not self._has_failed:\n",
        "        else:\n",
        "The log of a pipeline is full of one collector.",
        "tests/unit/dashboard/test_telemetry.py",
    ),
    _mutant(
        "The exporter of OpenTelemetry logs each failure itself",
        "dashboard/telemetry.py",
        "        own.addFilter(quiet)\n",
        "",
        "The log of a pipeline is full of one collector.",
        "tests/unit/dashboard/test_telemetry.py",
    ),
    _mutant(
        "Times are exported to OpenTelemetry in milliseconds under a name in seconds",
        "dashboard/telemetry.py",
        "each.value * scale)",
        "each.value)",
        "Every panel that shows a time is wrong by a thousand.",
        "tests/unit/dashboard/test_telemetry.py",
    ),
    _mutant(
        "The clock of windows is shown among the rows of state",
        "dashboard/sights/states.py",
        "    return state.endswith(CLOCK_SUFFIX)\n",
        "    return False\n",
        "A row for each key group that is no data of the user's.",
        "tests/unit/dashboard/test_states.py",
    ),
    _mutant(
        "Key groups are counted whatever the size of the state",
        "dashboard/sights/states.py",
        "if not keyed or sum(state.bytes for state in keyed) > KEY_GROUPS_BYTES_MAX:",
        "if not keyed:",
        "An open page reads gigabytes of state with every checkpoint.",
        "tests/unit/dashboard/test_states.py",
    ),
    _mutant(
        "A name that was made to point to this machine is answered",
        "dashboard/guard.py",
        "if name is None or not (_is_address(name) or name in self._names):",
        "if name is None:",
        "Any site that a user visits could read the pipeline's state (DNS rebinding).",
        _GUARDS,
    ),
    _mutant(
        "A page of another origin is answered",
        "dashboard/guard.py",
        'origin.partition("://")[2].lower() != (host or "").lower()',
        "not origin",
        "Any site that a user visits could give orders with a token that it has learned, or profile workers.",
        _GUARDS,
    ),
    _mutant(
        "A pipeline without a token takes orders",
        "dashboard/guard.py",
        'if self._token is None or kind.lower() != "bearer":',
        'if self._token is None:\n            return True\n        if kind.lower() != "bearer":',
        "Everybody who reaches the page could stop the pipeline.",
        _GUARDS,
    ),
    _mutant(
        "The token can be read by everybody on the machine",
        "dashboard/tokens.py",
        "os.O_NOFOLLOW, 0o600)",
        "os.O_NOFOLLOW, 0o644)",
        "Other users of the machine could stop the pipeline.",
        _GUARDS,
    ),
    _mutant(
        "A token that others could read is used again",
        "dashboard/tokens.py",
        "if stat.S_IMODE(found.st_mode) & 0o077 or ",
        "if ",
        "Whoever has read it meanwhile could stop the pipeline.",
        _GUARDS,
    ),
    _mutant(
        "Every request reads all counters again",
        "dashboard/sights/readings.py",
        "if newest is None or now_ms - newest.at_ms >= FRESH_MS:",
        "if True:",
        "Fifty open pages would take fifty times the time of the driver.",
        _LIVE,
    ),
    _mutant(
        "Rates count across a restart",
        "dashboard/sights/readings.py",
        "            past.clear()\n",
        "            pass\n",
        "A restart goes back to its checkpoint: the rate behind it would be wrong for seconds.",
        "tests/unit/dashboard/test_readings.py",
    ),
    _mutant(
        "The subtasks of all checkpoints are kept",
        "driver/observation/checkpoint_history.py",
        "            self._subtasks_kept > self._subtasks_max or len(self._subtasks) > self._checkpoints_max\n",
        "            len(self._subtasks) > self._checkpoints_max\n",
        "With a thousand subtasks the driver would run out of memory after some hours.",
        _HISTORY,
    ),
    _mutant(
        "The failure of an attempt is blamed on the last worker that left",
        "driver/observation/timeline.py",
        "self._blamed = self._blamed or frame",
        "self._blamed = frame",
        "The page would name a worker that has failed only because the first one had.",
        _HISTORY,
    ),
    _mutant(
        "A worker keeps all lines of its log",
        "worker/host.py",
        "        if len(self._lines) > LINES_MAX:\n",
        "        if False:\n",
        "A function that warns of every row would fill the memory of its worker.",
        _HOST,
    ),
)
