"""Defects of what is counted and told: totals of checkpoints, updates of metrics, listeners, the last steps."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_REGISTRY = "metrics/registry.py"
_LISTENERS = "driver/observation/listeners.py"
_PIPELINES = "tests/unit/metrics/test_metrics_of_pipelines.py"


def _mutant(name: str, file: str, old: str, new: str, why: str, *tests: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
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
        "            if len(values) + len(distributions) >= values_max:\n",
        "            if len(values) + len(distributions) >= 10 * values_max:\n",
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
