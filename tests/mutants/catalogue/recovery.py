"""Defects of recovery and of rescaling: order, ownership, once and only once."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant
from tests.simulation.scenario import FaultKind

_REDISTRIBUTION = "protocol/redistribution.py"
_SUBTASK = "runtime/subtask.py"
_INPUT = "runtime/input_channel.py"

MUTANTS = (
    # --- recovered channels ---
    Mutant(
        "Recovered records come behind live ones",
        "004",
        _INPUT,
        "        self.queue.extendleft(reversed(items))\n",
        "        self.queue.extend(items)\n",
        "I2: what was in flight is older than anything live.",
        only="ordered",
        fault=FaultKind.KILL_WORKER,
        seeds=20,
    ),
    Mutant(
        "Recovered records come back to front",
        OWN,
        _INPUT,
        "        self.queue.extendleft(reversed(items))\n",
        "        self.queue.extendleft(items)\n",
        "I2: replay keeps a channel's order.",
        only="ordered",
        fault=FaultKind.KILL_WORKER,
        seeds=20,
    ),
    Mutant(
        "What the sender held comes before what the receiver held",
        OWN,
        _REDISTRIBUTION,
        "return 0 if segment.side is Side.RECEIVER else 1",
        "return 1 if segment.side is Side.RECEIVER else 0",
        "I2: on one channel, what the receiver held is older.",
        only="ordered",
        fault=FaultKind.KILL_WORKER,
        seeds=20,
    ),
    Mutant(
        "A recovered batch is captured at the start and again when it is read",
        "004",
        _INPUT,
        "            self.queued_batches -= 1\n",
        "            self.queued_batches -= 1\n"
        "            if self.capturing is not None and not item.cost:\n"
        "                self.capturing.append(item)\n",
        "I10: a checkpoint taken during recovery holds each recovered record once.",
    ),
    Mutant(
        "Recovered records are read only when something live arrives",
        "004",
        _SUBTASK,
        "            self.inputs[channel].recover(items)\n            self._list(self.inputs[channel])\n",
        "            self.inputs[channel].recover(items)\n",
        "The pipeline may wait for ever for what it has already got.",
        seeds=0,
    ),
    Mutant(
        "Recovered records are not captured by a checkpoint during recovery",
        "004",
        _INPUT,
        "            else:\n                captured.append(item)\n",
        "            elif not isinstance(item, BatchItem) or item.cost:\n                captured.append(item)\n",
        "I10: what has not been consumed is channel state again.",
    ),
    Mutant(
        "A failing recovery does not surface",
        "004",
        "runtime/worker.py",
        "            if isinstance(outcome, Exception):\n                self._fail(subtask, outcome)\n",
        "            if isinstance(outcome, Exception):\n                return\n",
        "The pipeline would hang, and nobody would know why.",
        seeds=0,
    ),
    # --- state ---
    Mutant(
        "A subtask works before its own state is back",
        "004",
        _SUBTASK,
        "        self.is_restored = False\n",
        "        self.is_restored = True\n",
        "I8: never an empty state.",
    ),
    Mutant(
        "A subtask takes part in a checkpoint before its own state is back",
        "004",
        "protocol/alignment.py",
        "    if isinstance(state, Restoring):\n        declined",
        "    if isinstance(state, Restoring):\n        state = Idle(state.inputs, state.newest)\n"
        "    if isinstance(state, Restoring):\n        declined",
        "I8: the checkpoint would hold an empty state.",
        seeds=0,
    ),
    Mutant(
        "Keyed state is not put back",
        "003",
        "runtime/context.py",
        "            self.keyed.restore(name, batches)\n",
        "            pass\n",
        "I8: never an empty state.",
    ),
    Mutant(
        "Sources begin at the beginning after a restore",
        "003",
        "runtime/source_stage.py",
        "self.source.open(name, position.offset if position else None)",
        "self.source.open(name, None)",
        "I1: what was read before the checkpoint is in it, and is read again.",
    ),
    # --- rescaling ---
    Mutant(
        "In-flight data are dealt out by the old parallelism",
        "004",
        _REDISTRIBUTION,
        "    ours = key_groups_of(new, after.receivers, max_parallelism)\n",
        "    ours = key_groups_of(new, before.receivers, max_parallelism)\n",
        "I9: some records get no owner, others two.",
        only="keyed_2_3",
        seeds=40,
    ),
    Mutant(
        "In-flight data are not filtered by row after a rescale",
        "004",
        _REDISTRIBUTION,
        "is_filtered = edge.partitioning is Partitioning.HASH and before.receivers != edge.receivers",
        "is_filtered = False",
        "I9: every record is processed by exactly one subtask.",
        only="keyed_2_3",
        seeds=40,
    ),
    Mutant(
        "Every subtask takes over all in-flight data that are not keyed",
        "004",
        _REDISTRIBUTION,
        "        return old % after.receivers == new\n",
        "        return True\n",
        "I9: every record is processed by exactly one subtask.",
        only="keyed_2_3",
        seeds=40,
    ),
    Mutant(
        "Keyed state of other key groups is kept after a rescale",
        "004",
        "runtime/state/pieces.py",
        "    rows = np.flatnonzero((stored >= owned.start) & (stored < owned.stop))\n",
        "    rows = np.flatnonzero(stored >= 0)\n",
        "I9: every key has one owner.",
        tests=("tests/unit/runtime/test_state.py",),
        only="keyed_2_3",
        seeds=40,
    ),
    Mutant(
        "Pieces of keyed state that span two owners are read by the first only",
        "004",
        _REDISTRIBUTION,
        "return piece.key_group_first < key_groups.stop and key_groups.start < piece.key_group_end",
        "return key_groups.start <= piece.key_group_first < key_groups.stop",
        "I9: the keys of the other owner are lost.",
        only="keyed_2_3",
        seeds=40,
    ),
    Mutant(
        "Every subtask takes over all list state after a rescale",
        "004",
        _REDISTRIBUTION,
        "return [piece for position, (_, piece) in enumerate(lists) if position % parallelism == index]",
        "return [piece for _, piece in lists]",
        "I9: each piece goes to exactly one subtask.",
        seeds=0,
    ),
    Mutant(
        "After a rescale event time goes on from the fastest subtask",
        "004",
        _REDISTRIBUTION,
        "return min(clocks) if clocks and len(clocks) == len(reports) else None",
        "return max(clocks) if clocks and len(clocks) == len(reports) else None",
        "Records become late because of a rescale.",
        seeds=0,
    ),
    Mutant(
        "Watermarks in flight are kept on channels that are not the same as before",
        "004",
        _REDISTRIBUTION,
        "keeps_watermarks=is_same",
        "keeps_watermarks=True",
        "They would speak for records of other senders.",
        only="keyed_2_3",
        seeds=40,
    ),
    # --- event time ---
    Mutant(
        "Event time is that of the fastest channel",
        OWN,
        _SUBTASK,
        "            reading.watermark = item.watermark\n"
        "            self._advance(min(channel.watermark for channel in self.inputs.values()))\n",
        "            reading.watermark = item.watermark\n"
        "            self._advance(max(channel.watermark for channel in self.inputs.values()))\n",
        "Records of the slower channels become late.",
    ),
    Mutant(
        "The event time of a subtask is not restored",
        OWN,
        _SUBTASK,
        "            self._watermark = restored.watermark\n",
        "            pass\n",
        "It would go back, and what was closed would open again.",
        seeds=0,
    ),
)
