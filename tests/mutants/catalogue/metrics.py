"""Defects of what is counted and told: totals of checkpoints, updates of metrics, listeners, the last steps."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_REGISTRY = "metrics/registry.py"
_LISTENERS = "driver/observation/listeners.py"
_PIPELINES = "tests/unit/metrics/test_metrics_of_pipelines.py"
_INPUT = "exchange/input_channel.py"
_MARKERS = "tests/unit/worker/test_latency_markers.py"
_KEPT = "driver/observation/kept_log.py"
_KEPT_TESTS = "tests/unit/driver/observation/test_kept_log.py"
_LATENCIES = "tests/unit/dashboard/test_latency.py"


def _mutant(name: str, file: str, old: str, new: str, why: str, *tests: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
    # --- latency markers ---
    _mutant(
        "A barrier waits behind the markers of its channel",
        _INPUT,
        "            self._put_before_markers(item)\n",
        "            self.queue.append(item)\n",
        "I11: a subtask whose outputs are full reads no marker, so the barrier waits.",
        _MARKERS,
    ),
    _mutant(
        "A barrier that arrives behind nothing but markers is queued",
        "worker/subtask.py",
        "(arriving.is_at_front and not arriving.has_items)",
        "(arriving.is_at_front and not arriving.queue)",
        "I11: a subtask whose outputs are full does not reach it.",
        _MARKERS,
    ),
    _mutant(
        "Markers are captured like records",
        _INPUT,
        "            elif not isinstance(item, MarkerItem):\n",
        "            else:\n",
        "A checkpoint holds what is no part of its input, and cannot be written.",
        _MARKERS,
    ),
    _mutant(
        "Markers pile up on a channel that is not read",
        "exchange/items.py",
        "    elif isinstance(item, MarkerItem) and _has_marker(waiting, item.source):\n        return False\n",
        "",
        "I7: a blocked channel grows with time.",
        _MARKERS,
    ),
    _mutant(
        "Markers are sent on every channel of an edge",
        "exchange/router.py",
        "        outputs[number % len(outputs)].send_marker(source, emitted_ms)\n",
        "        for output in outputs:\n            output.send_marker(source, emitted_ms)\n",
        "They multiply with the parallelism at each exchange.",
        _MARKERS,
    ),
    _mutant(
        "A marker counts from the end of the read",
        "worker/latency.py",
        "            self.arrived(source, began_ms)\n",
        "            self.arrived(source, self._services.clock.wall_ms())\n",
        "The work of the source's own chain is missing from the latency.",
        _MARKERS,
    ),
    _mutant(
        "Latencies of the last minute are those since the start",
        "dashboard/sights/latency.py",
        "        while len(noted) > 1 and noted[1][0] <= at_ms - WINDOW_MS:\n            noted.popleft()\n",
        "",
        "A pause of an hour ago is shown as the latency of now.",
        _LATENCIES,
    ),
    # --- the log in the checkpoint directory ---
    _mutant(
        "Old segments of the log are never removed",
        _KEPT,
        "                self._prune()\n",
        "",
        "The directory of a pipeline that warns for months grows for months.",
        _KEPT_TESTS,
    ),
    _mutant(
        "Lines that the store refused are dropped",
        _KEPT,
        "                self._store.write(path, [msgspec.json.encode(self._current)])\n"
        "                self._is_written = True\n",
        "                self._is_written = True\n"
        "                self._store.write(path, [msgspec.json.encode(self._current)])\n",
        "A store that fails for a moment takes the lines of that moment with it.",
        _KEPT_TESTS,
    ),
    _mutant(
        "The log is written when the driver ends, and not before",
        _KEPT,
        "            self._grown.wait()\n",
        "            self._is_over.wait()\n",
        "A driver that is killed leaves none.",
        _KEPT_TESTS,
    ),
    # --- totals ---
    Mutant(
        "Counters start at zero after a restart",
        OWN,
        "worker/worker.py",
        "        self._restore_totals()\n",
        "",
        "The rows of earlier attempts are missing from every count.",
        tests=(_PIPELINES,),
    ),
    Mutant(
        "Totals are those of the acknowledgement and not of the cut",
        OWN,
        "worker/checkpointing/subtask_checkpointer.py",
        "        report = pending.report(",
        "        pending.totals = self._services.metrics.totals(self._operators, self._subtask.index)\n"
        "        report = pending.report(",
        "I1: rows behind the cut are counted again after a restore.",
        tests=(_PIPELINES,),
    ),
    _mutant(
        "Totals of subtasks that a rescale removes are dropped",
        "protocol/redistribution.py",
        "            if operator in parallelism:\n",
        "            if operator in parallelism and report.subtask.index < parallelism[operator]:\n",
        "The sum over subtasks is not kept.",
        "tests/unit/protocol/test_redistribution.py",
    ),
    _mutant(
        "A total whose counter is not made yet is not in the checkpoint",
        _REGISTRY,
        "            if (value := counted if isinstance(counted, int) else counted.value)\n",
        "            if (value := 0 if isinstance(counted, int) else counted.value)\n",
        "A metric that counts rarely is lost with the second restart.",
        "tests/unit/metrics/test_registry.py",
    ),
    _mutant(
        "An acknowledgement takes a count back",
        "metrics/received.py",
        "series.value = max(series.value, value)",
        "series.value = value",
        "Rows that were shown disappear with each checkpoint.",
        "tests/unit/metrics/test_registry.py",
    ),
    _mutant(
        "Totals of acknowledgements are ignored",
        "driver/observation/observations.py",
        "            self.metrics.acknowledged(frame.report.subtask.index, frame.report.totals)\n",
        "            pass\n",
        "What is shown at the end is what the last heartbeat knew.",
        "tests/unit/driver/observation/test_listeners.py",
    ),
    # --- updates ---
    _mutant(
        "Each update begins with the first series",
        _REGISTRY,
        "        start = self._cursor if self._cursor < len(series) else 0\n",
        "        start = 0\n",
        "With many subtasks the last ones are never told.",
        "tests/unit/metrics/test_registry.py",
    ),
    _mutant(
        "Updates have no bound",
        _REGISTRY,
        "            left -= 1\n            each.sent = told\n",
        "            each.sent = told\n",
        "A heartbeat of a thousand subtasks is a megabyte.",
        "tests/unit/metrics/test_registry.py",
    ),
    _mutant(
        "A gauge that raises ends the worker",
        _REGISTRY,
        "        except Exception as error:\n            # A number",
        "        except KeyError as error:\n            # A number",
        "A number for people ends a pipeline.",
        "tests/unit/metrics/test_registry.py",
    ),
    _mutant(
        "Work in a slice that fills an output counts as back-pressured too",
        "worker/subtask_metrics.py",
        "            self._full_since_us = now_us\n",
        "            pass\n",
        "The times of a subtask do not add up.",
        "tests/unit/worker/test_worker.py",
    ),
    # --- listeners ---
    _mutant(
        "A listener that raises hears of nothing more",
        _LISTENERS,
        "            except Exception as error:\n",
        "            except KeyError as error:\n",
        "One bad event silences a listener for the rest of the job.",
        "tests/unit/driver/observation/test_listeners.py",
    ),
    _mutant(
        "A listener that hangs may collect events without bound",
        _LISTENERS,
        "            if len(self._events) >= EVENTS_MAX:\n",
        "            if len(self._events) < 0:\n",
        "The driver's memory grows with every checkpoint.",
        "tests/unit/driver/observation/test_listeners.py",
    ),
    # --- the last steps ---
    _mutant(
        "The story keeps reports with their state",
        "mailbox/journal.py",
        "    return value if named is None else named(value)\n",
        "    return value\n",
        "The driver holds the inline state of the last 200 acknowledgements.",
        "tests/unit/mailbox/test_journal.py",
    ),
    _mutant(
        "The event that broke the protocol is not in its story",
        "mailbox/journal.py",
        '        self._steps.append((self._clock.now_ms(), who, _light(event), ("violation",)))\n',
        "",
        "The one step that matters is missing.",
        "tests/unit/mailbox/test_journal.py",
    ),
    _mutant(
        "A failure is reported without its story",
        "mailbox/failures.py",
        "    error.story = frame.story\n",
        "",
        "Nobody can find a defect that shows itself in a worker.",
        "tests/unit/mailbox/test_journal.py",
    ),
)
