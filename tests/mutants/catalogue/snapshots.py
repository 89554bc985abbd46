"""Defects of what a snapshot holds: state, positions, committables, and whether it is durable."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant
from tests.simulation.scenario import FaultKind

_PARTICIPATION = "worker/checkpointing/subtask_checkpointer.py"
_SINK = "worker/sink_stage.py"

MUTANTS = (
    Mutant(
        "A writer that cannot prepare only declines its checkpoint",
        OWN,
        "worker/checkpointing/subtask_checkpointer.py",
        "        prepare = self._chain.prepare(barrier.checkpoint, barrier.completed)\n",
        "        try:\n"
        "            prepare = self._chain.prepare(barrier.checkpoint, barrier.completed)\n"
        "        except Exception as error:\n"
        "            self._abandon(barrier.checkpoint)\n"
        "            self._decline(barrier.checkpoint, DeclineReason.SNAPSHOT_FAILED, str(error))\n"
        "            return\n",
        "I4: a writer may have cut its output before it raised, and nobody would hand that over.",
        seeds=0,
        tests=("tests/unit/worker/test_worker_checkpoints.py",),
    ),
    # --- state and positions ---
    Mutant(
        "State is taken when it is written and not at the cut",
        OWN,
        "worker/context.py",
        "for piece in keyed.encode(segment_bytes)",
        "for piece in self._keyed.snapshot().encode(segment_bytes)",
        "I1: records behind the cut are in the state.",
    ),
    Mutant(
        "The offsets of the sources are always empty",
        "alignment",
        _PARTICIPATION,
        "pending.splits = self._chain.source.positions() if self._chain.source is not None else ()",
        "pending.splits = ()",
        "I1: everything is read again after a restore.",
    ),
    Mutant(
        "The offsets of the sources are those at the acknowledgement",
        "coordination",
        _PARTICIPATION,
        "        report = pending.report(",
        "        pending.splits = self._chain.source.positions() if self._chain.source is not None else ()\n"
        "        report = pending.report(",
        "I1: what was read after the cut is not read again.",
    ),
    Mutant(
        "Records that are captured are sorted",
        "alignment",
        "worker/checkpointing/snapshot.py",
        "    segments = store([[memoryview(encode_items(items))] for _, items in cut])\n",
        "    def size(item: Captured) -> int:\n"
        "        return item.batch.num_rows if isinstance(item, BatchItem) else 0\n\n"
        "    segments = store([[memoryview(encode_items(sorted(items, key=size)))] for _, items in cut])\n",
        "I2: capture keeps a channel's order.",
    ),
    # --- committables ---
    Mutant(
        "Sinks are cut when their output is made durable and not at the cut",
        OWN,
        _SINK,
        "prepared = self._writer.prepare()",
        "prepared = lambda: self._writer.prepare()()",
        "I1: output behind the cut is published, and produced again after a restore.",
    ),
    Mutant(
        "Committables of a checkpoint that failed are dropped",
        OWN,
        _SINK,
        "        self._held = [(made, once) for made, once in self._held if made > completed]\n",
        "        self._held = []\n",
        "I1: their output is in no checkpoint, and the input is not read again.",
    ),
    Mutant(
        "Committables of a completed checkpoint are handed over again",
        OWN,
        _SINK,
        "if made > completed]",
        "if made >= completed]",
        "I1: the output is in two checkpoints.",
    ),
    Mutant(
        "The barrier says that the attempt before has completed",
        OWN,
        "protocol/coordinator/trigger.py",
        "    return Barrier(checkpoint, state.generation, now_ms, flags, timeout_ms, completed=state.newest)\n",
        "    completed = CheckpointId(checkpoint - 1)\n"
        "    return Barrier(checkpoint, state.generation, now_ms, flags, timeout_ms, completed=completed)\n",
        "I1: sinks forget what a failed attempt would have published.",
    ),
    # --- durable, or not ---
    Mutant(
        "A snapshot that raised is acknowledged as an empty one",
        OWN,
        _PARTICIPATION,
        "            encode = self._chain.snapshot(self._services.settings.segment_bytes)\n"
        "        except Exception as error:\n"
        "            self._refuse(barrier.checkpoint, error)\n"
        "            return\n",
        "            encode = self._chain.snapshot(self._services.settings.segment_bytes)\n"
        "        except Exception:\n"
        "            encode = list\n",
        "I1: what the operators hold is in no checkpoint.",
        tests=("tests/unit/worker/test_worker_checkpoints.py",),
    ),
    Mutant(
        "A failed write of in-flight data is acknowledged",
        "coordination",
        _PARTICIPATION,
        "                self._storage_failed(pending, outcome)\n                return\n",
        "                outcome = []\n",
        "I3: what a manifest names is durable; I1: records are missing.",
        seeds=0,
    ),
    Mutant(
        "A subtask acknowledges before its in-flight data are durable",
        "coordination",
        _PARTICIPATION,
        "        if pending.states is None or pending.channels is None:\n            return\n",
        "        if pending.states is None:\n            return\n        pending.channels = pending.channels or ()\n",
        "I3: the manifest comes last.",
    ),
    Mutant(
        "Blobs are named and never written",
        "coordination",
        "storage/blob.py",
        "    store.write(path, [buffer for part in parts for buffer in part])\n",
        "",
        "I3: every blob that a manifest names was durable before.",
    ),
    # --- draining ---
    Mutant(
        "Drain is not handled and the sources go on",
        "unaligned",
        _PARTICIPATION,
        "            self.draining = barrier.checkpoint\n",
        "            pass\n",
        "A drain barrier is the last one: nothing may follow it.",
        fault=FaultKind.DRAIN,
        seeds=40,
    ),
    Mutant(
        "Sources resume after the drain barrier",
        OWN,
        "worker/subtask.py",
        "return not self._source.rests and self.checkpointer.draining is None and self.chain.wants_input",
        "return not self._source.rests and self.chain.wants_input",
        "A drain barrier is the last one: nothing may follow it.",
        fault=FaultKind.DRAIN,
        seeds=40,
    ),
    Mutant(
        "A drain that was given up leaves the sources silent",
        OWN,
        _PARTICIPATION,
        "            self.draining = None\n",
        "            pass\n",
        "The pipeline stands still for ever.",
        seeds=0,
    ),
    Mutant(
        "A savepoint may turn unaligned",
        OWN,
        "protocol/barrier.py",
        "        if self.is_savepoint and (self.is_unaligned or",
        "        if self.is_savepoint and self.is_drain and (self.is_unaligned or",
        "Savepoints are aligned and own their files.",
        seeds=0,
    ),
)
