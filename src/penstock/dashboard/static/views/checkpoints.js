// Checkpoints: where their time goes, how they grow, why one failed, and each subtask of one of them.

import { Feed, get } from "../api.js";
import { BarChart } from "../bar_chart.js";
import { Meter, Waterfall } from "../bars.js";
import { h, replace, setText } from "../dom.js";
import { bytes, clock, count, duration, NONE, plural, whole } from "../format.js";
import { Table } from "../table.js";

const PHASES = ["start_delay", "alignment", "sync", "async", "manifest", "commit"];
const LABELS = { start_delay: "start delay", alignment: "alignment", sync: "sync", async: "async", manifest: "manifest", commit: "commit" };
const SUBTASK_PHASES = PHASES.slice(0, 4);
const PAGE = 500;
const STATUS = { completed: "completed", failed: "failed", in_progress: "in progress" };

export const phaseSeries = PHASES.map((name) => ({ name, label: LABELS[name] }));

export function mount(panel, page, problem, argument) {
  return new CheckpointsView(panel, page, problem, argument);
}

class CheckpointsView {
  constructor(panel, page, problem, argument) {
    Object.assign(this, { page, problem });
    this.known = new Map();
    this.hasMore = false;
    this.counts = h("p", { class: "verdict" });
    this.times = new BarChart({ title: "Duration by phase", series: phaseSeries, format: duration, base: "time", onOpen: (index) => this.#openBar(this.times, index) });
    this.sizes = new BarChart({ title: "Size", series: [{ name: "state", label: "state" }, { name: "inflight", label: "in flight" }], format: bytes, base: 1024, onOpen: (index) => this.#openBar(this.sizes, index) });
    this.table = this.#table();
    this.older = h("button", { type: "button", hidden: true, click: () => this.#loadOlder() }, "Load older checkpoints");
    this.note = h("p", { class: "quiet" });
    this.details = h("section", { class: "details" });
    const savepoint = h("button", { type: "button", class: "primary", click: () => page.orders.send("savepoints") }, "Take a savepoint");
    replace(panel, h("div", { class: "bar" }, this.counts, savepoint), h("div", { class: "charts" }, this.times.element, this.sizes.element), this.details, this.table.element, h("div", { class: "bar" }, this.note, this.older));
    this.feed = new Feed(panel, `checkpoints?limit=${PAGE}`, { problem }, (answer) => this.#onPage(answer, true));
    if (argument !== null) this.navigate(argument);
  }

  update(kind, checkpoint) {
    if (kind === "connected") this.feed.now();
    if (kind !== "checkpoint") return;
    const before = this.known.get(checkpoint.id);
    this.known.set(checkpoint.id, checkpoint);
    if (before?.status !== checkpoint.status) this.feed.now(); // The counts are the server's.
    this.#show();
    if (String(checkpoint.id) === this.open) this.navigate(this.open);
  }

  navigate(argument) {
    this.open = argument;
    this.table.setCurrent(argument === null ? null : Number(argument));
    if (argument === null) return replace(this.details);
    this.#openDetails(argument);
  }

  stop() {
    this.feed.stop();
    this.times.stop();
    this.sizes.stop();
  }

  #onPage({ counts, history, has_more }, isNewest) {
    for (const checkpoint of history) this.known.set(checkpoint.id, checkpoint);
    // The newest page says nothing about the end of the history once older ones are here.
    if (!isNewest || this.known.size <= history.length) this.hasMore = has_more;
    if (counts) setText(this.counts, `${plural(counts.completed, "completed", "completed")}, ${whole(counts.failed)} failed, ${whole(counts.in_progress)} in progress, ${whole(counts.restored)} restored`);
    this.#show();
  }

  async #loadOlder() {
    if (this.isLoading || !this.hasMore || !this.known.size) return;
    this.isLoading = true;
    try {
      const oldest = Math.min(...this.known.keys());
      this.#onPage(await get(`checkpoints?limit=${PAGE}&before=${oldest}`), false);
    } catch (failure) {
      this.problem.show(failure);
    }
    this.isLoading = false;
  }

  #show() {
    const newestFirst = [...this.known.values()].sort((a, b) => b.id - a.id);
    const completed = newestFirst.filter((each) => each.status === "completed");
    // A failed one may have lasted until its timeout: measured by that, all others would look alike.
    this.longest = completed.reduce((most, each) => Math.max(most, each.end_to_end_duration ?? 0), 0);
    this.largest = newestFirst.reduce((most, each) => Math.max(most, each.checkpointed_size ?? 0), 0);
    this.table.setRows(newestFirst);
    const oldestFirst = newestFirst.toReversed();
    this.times.set(oldestFirst.map(timesItem));
    this.sizes.set(oldestFirst.map(sizesItem));
    const group = this.times.groupSize;
    this.times.describe(completed.length ? `Newest ${duration(completed[0].end_to_end_duration)}, longest ${duration(this.longest)}${group > 1 ? `; each bar is the longest of ${group}` : ""}` : "No completed checkpoint yet");
    this.sizes.describe(completed.length ? `Newest ${bytes(completed[0].checkpointed_size)}, largest ${bytes(this.largest)}` : "No completed checkpoint yet");
    this.older.hidden = !this.hasMore;
    setText(this.note, `${plural(newestFirst.length, "checkpoint")} loaded${this.hasMore ? "; older ones are loaded at the end of the table" : ", all that are kept in the history"}.`);
  }

  #openBar(chart, index) {
    this.page.go("checkpoints", chart.bars[index].item.id);
  }

  #table() {
    return new Table({
      label: "Checkpoints", key: (row) => row.id, onEnd: () => this.#loadOlder(), empty: "No checkpoint yet.",
      open: (row) => this.page.go("checkpoints", String(row.id) === this.open ? null : row.id), openLabel: (row) => `checkpoint ${row.id}, ${STATUS[row.status] ?? row.status}`,
      columns: [
        { title: "Id", width: 5, text: (row) => String(row.id), sort: (row) => row.id, isNumber: true },
        { title: "Status", width: 8, cell: statusCell, sort: (row) => row.status },
        { title: "Kind", width: 7, text: (row) => row.kind ?? NONE, sort: (row) => row.kind },
        { title: "Triggered", width: 9, text: (row) => clock(row.trigger_timestamp), sort: (row) => row.trigger_timestamp, isNumber: true },
        this.#meter("Duration", (row) => row.end_to_end_duration, duration, () => this.longest),
        this.#meter("Size", (row) => row.checkpointed_size, bytes, () => this.largest),
        { title: "In flight", width: 7, text: (row) => bytes(row.inflight_bytes), sort: (row) => row.inflight_bytes, isNumber: true },
        { title: "Acknowledged", width: 8, text: (row) => `${count(row.num_acknowledged_subtasks)} of ${count(row.num_subtasks)}`, sort: (row) => row.num_acknowledged_subtasks, isNumber: true },
        { title: "Reason", width: 16, text: (row) => row.failure_message ?? "" },
      ],
    });
  }

  #meter(title, value, format, most) {
    const cell = () => {
      const meter = new Meter();
      return { element: meter.element, set: (row) => meter.set(format(value(row)), (value(row) ?? 0) / (most() || 1)) };
    };
    return { title, width: 8, cell, sort: value, isNumber: true };
  }

  async #openDetails(id) {
    try {
      const checkpoint = await get(`checkpoints/${encodeURIComponent(id)}`);
      if (this.open === id) replace(this.details, details(checkpoint, () => this.page.go("checkpoints")));
    } catch (failure) {
      replace(this.details);
      this.problem.show(failure);
    }
  }
}

function statusCell() {
  const element = h("span", { class: "status" });
  return {
    element,
    set: (row) => {
      setText(element, STATUS[row.status] ?? row.status);
      element.className = `status ${row.status}`;
    },
  };
}

function timesItem(item) {
  const phases = PHASES.map((name) => item.phases?.[name] ?? null);
  const named = () => PHASES.map((name, index) => phases[index] !== null && `${LABELS[name]} ${duration(phases[index])}`).filter(Boolean).join(", ");
  const words = () => `Checkpoint ${item.id}, ${clock(item.trigger_timestamp)}, ${STATUS[item.status]}: ${duration(item.end_to_end_duration)}${named() && ` (${named()})`}${item.failure_message ? `, ${item.failure_message}` : ""}`;
  return { parts: phases, label: () => clock(item.trigger_timestamp), words, isFailed: item.status === "failed", item };
}

/** The size of a checkpoint has its records in flight in it. */
function stateBytes({ checkpointed_size: size, inflight_bytes: inflight }) {
  return size === null ? null : size - (inflight ?? 0);
}

function sizesItem(item) {
  const parts = [stateBytes(item), item.inflight_bytes];
  const words = () => `Checkpoint ${item.id}, ${clock(item.trigger_timestamp)}: ${bytes(parts[0])} of state, ${bytes(parts[1])} in flight`;
  return { parts, label: () => clock(item.trigger_timestamp), words, isFailed: item.status === "failed", item };
}

function details(checkpoint, close) {
  const heading = h("h2", null, `Checkpoint ${checkpoint.id}: ${STATUS[checkpoint.status] ?? checkpoint.status}`);
  const failure = checkpoint.failure_message && h("div", { class: "notice bad" }, h("p", null, h("strong", null, "Reason: "), checkpoint.failure_message), checkpoint.cure && h("p", null, h("strong", null, "Cure: "), checkpoint.cure));
  const line = [checkpoint.kind, clock(checkpoint.trigger_timestamp), duration(checkpoint.end_to_end_duration), `${bytes(stateBytes(checkpoint))} of state`, `${bytes(checkpoint.inflight_bytes)} in flight`].join(" · ");
  return [h("div", { class: "details-head" }, heading, h("button", { type: "button", click: close }, "Close")), h("p", { class: "quiet" }, line), failure, waterfall(checkpoint)].filter(Boolean);
}

/** Each subtask on the time axis of the checkpoint; the driver's own part follows the slowest one. */
function waterfall(checkpoint) {
  const subtaskMs = (row) => SUBTASK_PHASES.reduce((sum, name) => sum + (row[name] ?? 0), 0);
  const own = ["manifest", "commit"].map((name) => checkpoint.phases?.[name] ?? 0);
  const slowest = checkpoint.subtasks.reduce((most, row) => Math.max(most, subtaskMs(row)), 0);
  const all = Math.max(slowest + own[0] + own[1], 1);
  const rows = [...checkpoint.subtasks];
  if (own[0] + own[1] > 0) rows.push({ operator: "driver", subtask: null, worker: null, wait: slowest, manifest: own[0], commit: own[1] });
  const cell = () => {
    const bar = new Waterfall(["wait", ...PHASES]);
    return { element: bar.element, set: (row) => bar.set([row.wait, ...PHASES.map((name) => row[name])].map((ms) => ms ?? 0), all, ["wait", ...PHASES.map((name) => LABELS[name])]) };
  };
  const table = new Table({
    label: `Subtasks of checkpoint ${checkpoint.id}`, key: (row) => `${row.operator} ${row.subtask}`, empty: "No subtask has acknowledged.",
    columns: [
      { title: "Operator", width: 11, text: (row) => row.operator, sort: (row) => row.operator },
      { title: "Subtask", width: 5, text: (row) => whole(row.subtask), sort: (row) => row.subtask, isNumber: true },
      { title: "Worker", width: 5, text: (row) => whole(row.worker), sort: (row) => row.worker, isNumber: true },
      { title: `0 to ${duration(all)}`, width: 24, cell },
      ...SUBTASK_PHASES.map((name) => ({ title: LABELS[name], width: 6, text: (row) => duration(row[name]), sort: (row) => row[name], isNumber: true })),
      { title: "State", width: 6, text: (row) => bytes(row.state_bytes), sort: (row) => row.state_bytes, isNumber: true },
      { title: "In flight", width: 6, text: (row) => bytes(row.inflight_bytes), sort: (row) => row.inflight_bytes, isNumber: true },
    ],
  });
  queueMicrotask(() => table.setRows(rows));
  return table.element;
}
