"""Defects of the receiving side: alignment, capture, and the ends of inputs."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_ALIGNMENT = "protocol/alignment.py"
_PARTICIPATION = "runtime/participation.py"
_INPUT = "runtime/input_channel.py"

MUTANTS = (
    # --- what is captured ---
    Mutant(
        "Captured records are dropped and the snapshot's list of them stays empty",
        "000",
        _PARTICIPATION,
        "CapturedChannel(arriving.channel, Side.RECEIVER, items, backlog)",
        "CapturedChannel(arriving.channel, Side.RECEIVER, [], backlog)",
        "I1: what waited in front of the barrier is in no part of the checkpoint.",
    ),
    Mutant(
        "What arrives on a late channel after the switch is not recorded",
        "000",
        _PARTICIPATION,
        "                arriving.capturing = items\n",
        "                pass\n",
        "I1: the sender counts it as sent before the cut, and the receiver does not have it.",
    ),
    Mutant(
        "Capture does not stop at the barrier that waits in the queue",
        OWN,
        _INPUT,
        "                    del self.queue[position]\n                    break\n",
        "                    continue\n",
        "I1: what follows the barrier is captured and is sent again as well.",
        first=60,
    ),
    Mutant(
        "Capture takes what waits on blocked channels too",
        OWN,
        _ALIGNMENT,
        "queued = inputs.channels - inputs.finished - state.blocked",
        "queued = inputs.channels - inputs.finished",
        "I1: behind a barrier that was reached, everything belongs to the next checkpoint.",
    ),
    Mutant(
        "Watermarks are left out of the capture",
        OWN,
        _INPUT,
        "            else:\n                captured.append(item)\n",
        "            elif isinstance(item, BatchItem):\n                captured.append(item)\n",
        "Event time would stand still after a restore until the next watermark.",
    ),
    Mutant(
        "Watermarks that arrive on a late channel are not recorded",
        OWN,
        _INPUT,
        "if self.capturing is not None and isinstance(item, BatchItem | WatermarkItem):",
        "if self.capturing is not None and isinstance(item, BatchItem):",
        "Event time would stand still after a restore until the next watermark.",
    ),
    Mutant(
        "A slice of a batch leaves its last row in the queue",
        OWN,
        _INPUT,
        "item.batch.slice(rows_max)\n",
        "item.batch.slice(max(1, rows_max - 1))\n",
        "I1: the row is processed, and waits to be processed or captured.",
    ),
    Mutant(
        "Overflow is reported as an aligned snapshot with its inputs missing",
        "000",
        _PARTICIPATION,
        "            self._feed(alignment.CaptureOverflowed(self._pending.checkpoint))\n",
        "            self._pending.inputs.clear()\n            self._pending.cut = Cut.ALIGNED\n",
        "I7: it is never reported as something that it is not; I1: records are missing.",
    ),
    Mutant(
        "The bound on captured bytes is never looked at",
        OWN,
        "runtime/budget.py",
        "return self.bytes_held <= self.bytes_max",
        "return True",
        "I7: the capture is bounded.",
    ),
    Mutant(
        "Captured bytes are never given back",
        OWN,
        _PARTICIPATION,
        "            self._services.capture_budget.give_back(self._pending.counted_bytes)\n",
        "",
        "I7: after a while every capture overflows.",
    ),
    Mutant(
        "An abandoned checkpoint goes on capturing what arrives",
        OWN,
        _PARTICIPATION,
        "        for channel in self._inputs.values():\n            channel.capturing = None\n",
        "",
        "I7: a list that nobody takes grows for ever.",
    ),
    # --- what a barrier does ---
    Mutant(
        "A barrier blocks nothing",
        OWN,
        _PARTICIPATION,
        "                self._inputs[channel].blocked = True\n",
        "                pass\n",
        "I1: records behind the barrier reach the state before the snapshot.",
    ),
    Mutant(
        "Records buffered behind a barrier are cleared instead of drained",
        "000",
        _PARTICIPATION,
        "                    self._inputs[channel].blocked = False\n",
        "                    self._inputs[channel].blocked = False\n"
        "                    self._inputs[channel].queue.clear()\n",
        "Records are lost without any failure.",
    ),
    Mutant(
        "Records that arrive on a blocked channel are dropped",
        "001",
        _INPUT,
        "        self.queue.append(item)\n",
        "        if self.blocked and isinstance(item, BatchItem):\n"
        "            return\n"
        "        self.queue.append(item)\n",
        "Records are lost without any failure.",
    ),
    Mutant(
        "A barrier of checkpoint N+1 completes checkpoint N",
        "000",
        _ALIGNMENT,
        "    if barrier.checkpoint > state.newest:\n        return _begin(state, barrier, reached=channel)\n",
        "    if barrier.checkpoint > state.newest and not isinstance(state, Aligning):\n"
        "        return _begin(state, barrier, reached=channel)\n",
        "I1: that channel is cut at another place than the others.",
        seeds=0,
    ),
    Mutant(
        "A late barrier of checkpoint N+1 ends the capture for checkpoint N",
        "000",
        _ALIGNMENT,
        "    if barrier.checkpoint > state.newest:\n        return _begin(state, barrier, reached=channel)\n",
        "    if barrier.checkpoint > state.newest and not isinstance(state, Capturing):\n"
        "        return _begin(state, barrier, reached=channel)\n",
        "I1: that channel is cut at another place than the others.",
        seeds=0,
    ),
    Mutant(
        "A barrier of an older checkpoint is accepted for the one in progress",
        "001",
        _ALIGNMENT,
        "        return _begin(state, barrier, reached=channel)\n    if barrier.checkpoint < state.newest:\n",
        "        return _begin(state, barrier, reached=channel)\n    if barrier.checkpoint < 0:\n",
        "I1: that channel is cut at another place than the others.",
        seeds=0,
    ),
    Mutant(
        "The coordinator's cancel is not handled",
        "000",
        _ALIGNMENT,
        "def _on_trigger(state: State, barrier: Barrier) -> Step:\n"
        "    if barrier.is_cancel:\n"
        "        return _cancel(state, barrier.checkpoint)\n",
        "def _on_trigger(state: State, barrier: Barrier) -> Step:\n"
        "    if barrier.is_cancel:\n"
        "        return state, ()\n",
        "Channels stay blocked and bytes stay captured for a checkpoint that is over.",
        seeds=0,
    ),
    Mutant(
        "A cancelled checkpoint leaves its channels blocked",
        OWN,
        _ALIGNMENT,
        "        return abandon, UnblockChannels(state.blocked)\n",
        "        return (abandon,)\n",
        "Nothing is read of them any more.",
    ),
    Mutant(
        "A newer checkpoint overwrites the one in progress silently",
        "002",
        _ALIGNMENT,
        "return (*_release(state), Decline(state.newest, DeclineReason.SUPERSEDED))",
        "return _release(state)",
        "The coordinator waits for an acknowledgement that nobody will send.",
        seeds=0,
    ),
    Mutant(
        "The snapshot is taken a moment after the cut",
        OWN,
        _PARTICIPATION,
        "                self._take_snapshot(barrier, cut)\n",
        "                self._services.timers.after(1, lambda: self._take_snapshot(barrier, cut))\n",
        "I1: records behind the cut are in the state.",
    ),
    Mutant(
        "Channels are unblocked before the snapshot",
        OWN,
        _ALIGNMENT,
        "        TakeSnapshot(state.barrier, Cut.ALIGNED),\n"
        "        CompleteInputs(state.newest),\n"
        "        UnblockChannels(state.blocked),\n",
        "        UnblockChannels(state.blocked),\n"
        "        TakeSnapshot(state.barrier, Cut.ALIGNED),\n"
        "        CompleteInputs(state.newest),\n",
        "I1: the order of the actions is the order of what happens to the state.",
        seeds=0,
    ),
    # --- how a cut is reported, and timeouts ---
    Mutant(
        "A forced unaligned cut is reported as timed out",
        "000",
        _ALIGNMENT,
        "return Cut.FORCED if barrier.alignment_timeout_ms is None else Cut.OVERTAKEN",
        "return Cut.TIMED_OUT",
        "People tune timeouts by this figure.",
    ),
    Mutant(
        "A cut that timed out is reported as aligned",
        OWN,
        _ALIGNMENT,
        "return _cut(state, Cut.TIMED_OUT)",
        "return _cut(state, Cut.ALIGNED)",
        "I7: it is never reported as something that it is not.",
    ),
    Mutant(
        "The alignment timeout is unused",
        "001",
        _ALIGNMENT,
        "    if may_capture and barrier.remaining_ms is not None and not _is_cut(fresh):\n",
        "    if may_capture and barrier.remaining_ms is not None and _is_cut(fresh):\n",
        "I11: the fall back to unaligned would never come.",
        seeds=0,
    ),
    Mutant(
        "A stuck late barrier never times out",
        "000",
        _ALIGNMENT,
        "        return _give_up(state, DeclineReason.LATE_BARRIER_TIMEOUT)\n",
        "        return state, ()\n",
        "The capture would go on for as long as the coordinator is patient.",
        seeds=0,
    ),
    Mutant(
        "A subtask that must stay aligned captures its inputs",
        "000",
        _ALIGNMENT,
        "    may_capture = not state.inputs.aligned_only\n",
        "    may_capture = True\n",
        "In-flight data of forward and broadcast edges cannot be dealt out again.",
    ),
    Mutant(
        "A barrier that waits behind records is not announced",
        "004",
        "runtime/subtask.py",
        "        self.participation.on_announced(channel, barrier)\n",
        "",
        "At the timeout its channel counts as late, and its barrier never comes.",
    ),
    # --- ends ---
    Mutant(
        "The end of an input does not count as its barrier",
        OWN,
        _ALIGNMENT,
        "return state.blocked | state.inputs.finished == state.inputs.channels",
        "return state.blocked == state.inputs.channels",
        "The final checkpoint waits for a barrier that nobody sends.",
    ),
    Mutant(
        "An end that waits behind records is taken for a late channel",
        OWN,
        _ALIGNMENT,
        "late = queued - inputs.ended - state.announced - overtaken",
        "late = queued - state.announced - overtaken",
        "Its barrier never comes, and the checkpoint is declined.",
    ),
    Mutant(
        "A channel that ends while it is captured is waited for",
        OWN,
        _ALIGNMENT,
        "return _end_late(ended, channel) if isinstance(ended, Capturing) else (ended, ())",
        "return ended, ()",
        "Its barrier never comes, and the checkpoint is declined.",
        seeds=0,
    ),
    Mutant(
        "The arrival of an end is not reported",
        OWN,
        "runtime/subtask.py",
        "        self.participation.on_end_arrived(channel)\n",
        "",
        "A late channel that ends is waited for until the checkpoint is declined.",
    ),
)
