"""Defects of the sending side: overtaking, credit, backpressure."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_OVERTAKING = "protocol/overtaking.py"
_CREDIT = "protocol/credit.py"
_PARTICIPATION = "worker/checkpointing/subtask_checkpointer.py"
_OUTPUT = "exchange/output_channel.py"

MUTANTS = (
    # --- overtaking ---
    Mutant(
        "Records that a barrier overtakes at the sender are not captured",
        "unaligned",
        _PARTICIPATION,
        "                self._pending.outputs[channel] = held\n",
        "                pass\n",
        "I1: they are behind the barrier for the receiver and before it for the sender's state.",
    ),
    Mutant(
        "Capture at the sender does not stop at the barrier",
        OWN,
        _OUTPUT,
        "                    self._send_barrier(BarrierItem(barrier, item.since_ms))\n                    break\n",
        "                    self._send_barrier(BarrierItem(barrier, item.since_ms))\n"
        "                    captured = [each for each in self.queue if isinstance(each, BatchItem | WatermarkItem)]\n"
        "                    break\n",
        "I1: what was emitted after the snapshot is captured and is emitted again.",
    ),
    Mutant(
        "Records that a barrier has overtaken are not sent any more",
        OWN,
        _OUTPUT,
        "                    del self.queue[position]\n",
        "                    for _ in range(position + 1):\n                        self.queue.popleft()\n",
        "Records are lost without any failure.",
    ),
    Mutant(
        "An unaligned barrier waits for its turn in the output queue",
        OWN,
        _OVERTAKING,
        "    if barrier.is_unaligned:\n        return _overtake(departing)\n",
        "",
        "I11: in unaligned mode no barrier waits for credit.",
        seeds=0,
    ),
    Mutant(
        "A barrier in a full output queue never turns unaligned",
        "alignment",
        _OVERTAKING,
        "    if waiting & state.may_overtake and barrier.remaining_ms is not None:\n",
        "    if barrier.is_unaligned and barrier.remaining_ms is not None:\n",
        "I11: the fall back to unaligned would never come.",
        seeds=0,
    ),
    Mutant(
        "A departure timeout of an older checkpoint lets the barrier of this one overtake",
        "unaligned",
        _OVERTAKING,
        "            if isinstance(state, Departing) and state.newest == checkpoint:\n",
        "            if isinstance(state, Departing):\n",
        "Ids must be compared, on the sending side too.",
        seeds=0,
    ),
    Mutant(
        "A subtask acknowledges before its barrier has left every output queue",
        OWN,
        _PARTICIPATION,
        "not (pending.inputs_complete and pending.outputs_complete)",
        "not pending.inputs_complete",
        "I1: what the barrier overtakes later is in nobody's acknowledgement.",
    ),
    Mutant(
        "A subtask acknowledges before its late barriers have come",
        OWN,
        _PARTICIPATION,
        "not (pending.inputs_complete and pending.outputs_complete)",
        "not pending.outputs_complete",
        "I1: what still arrives in front of them is in nobody's acknowledgement.",
    ),
    Mutant(
        "A barrier is waited for on a channel that has ended",
        OWN,
        _OUTPUT,
        "        if self.has_ended:\n            return True\n",
        "        if self.has_ended:\n            return False\n",
        "It never departs, so the final checkpoint never completes.",
    ),
    Mutant(
        "A barrier does not age while it waits",
        OWN,
        "protocol/barrier.py",
        "return replace(self, age_ms=self.age_ms + waited_ms) if waited_ms > 0 else self",
        "return self",
        "The timeout would be counted anew at every hop.",
        seeds=0,
    ),
    # --- credit ---
    Mutant(
        "A grant is held back while a watermark waits in the queue",
        OWN,
        "exchange/input_channel.py",
        "self.credit.consumed(item.cost, is_last and self.queued_batches == 0)",
        "self.credit.consumed(item.cost, is_last and not self.queue)",
        "The watermark gives nothing back, and the sender waits for ever.",
    ),
    Mutant(
        "Grants are sent only when half of the window is owed",
        OWN,
        _CREDIT,
        "if 2 * room < self.credit_limit_bytes and not queue_is_empty:",
        "if 2 * room < self.credit_limit_bytes:",
        "The sender may be waiting for just the rest.",
    ),
    Mutant(
        "A batch larger than the window needs more credit than there is",
        OWN,
        _CREDIT,
        "return max(1, min(batch_bytes, credit_limit_bytes))",
        "return max(1, batch_bytes)",
        "It would wait for ever.",
    ),
    Mutant(
        "Every slice of a batch gives back the price of the whole",
        OWN,
        "exchange/input_channel.py",
        "        return BatchItem(head, 0, size)\n",
        "        return BatchItem(head, item.cost, size)\n",
        "Credit rises above the window.",
    ),
    Mutant(
        "Recovered records give credit back that nobody paid",
        OWN,
        "exchange/codec.py",
        "yield BatchItem(batch, 0, batch.nbytes)",
        "yield BatchItem(batch, batch.nbytes, batch.nbytes)",
        "Credit rises above the window.",
    ),
    Mutant(
        "Sending takes nothing from the credit",
        OWN,
        _CREDIT,
        "        self.available -= cost\n",
        "",
        "I7: the receiver's queue is bounded by what it has granted.",
    ),
    Mutant(
        "A subtask works on although its outputs are full",
        OWN,
        "worker/subtask.py",
        "        if self._full:\n            # The rest",
        "        if False:\n            # The rest",
        "I7: backpressure is what bounds the output queues.",
    ),
    Mutant(
        "An output that was full stays full",
        OWN,
        _OUTPUT,
        "            self.full.discard(self.channel.id)\n",
        "            pass\n",
        "The subtask never works again.",
    ),
    # --- windows that follow the receiver ---
    Mutant(
        "A smaller window is told only with a grant",
        OWN,
        _CREDIT,
        "if room == 0 and self.credit_limit_bytes == self._told_bytes:",
        "if room == 0:",
        "A sender with a batch that is larger than its credit waits for ever.",
    ),
    Mutant(
        "The sender does not hear what the window is",
        OWN,
        _CREDIT,
        "        self.credit_limit_bytes = credit_limit_bytes\n\n\nclass ReceiverCredit:",
        "\n\nclass ReceiverCredit:",
        "A batch that is larger than the window costs more than will ever be granted, and waits for ever.",
    ),
    Mutant(
        "As much waits in front of a shrunk window as in front of a whole one",
        OWN,
        _OUTPUT,
        "min(self.bytes_max, self.credit.credit_limit_bytes // 2)",
        "self.bytes_max",
        "What the receiver does not hold the sender would hold, and checkpoints were as large as before.",
        seeds=0,
    ),
    Mutant(
        "Batches are as large as before the windows of their receivers shrank",
        OWN,
        "worker/subtask.py",
        "        self._router.credit_limits_changed()\n",
        "",
        "One batch would fill a shrunk window many times over.",
        seeds=0,
    ),
)
