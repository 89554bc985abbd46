// "Why is this window not emitted?": a window is emitted when the watermark of its operator passes the window's end.

import { Feed } from "../api.js";
import { Meter } from "../bars.js";
import { h, replace, setText } from "../dom.js";
import { clock, count, duration, isoDate, isoTime, NONE, plural } from "../format.js";
import { Table } from "../table.js";

const ANSWERS_MAX = 6;

export function mount(panel, page, problem, argument) {
  return new WatermarksView(panel, page, problem, argument);
}

class WatermarksView {
  constructor(panel, page, problem, argument) {
    Object.assign(this, { page, open: argument, problem });
    this.asked = h("input", { id: "window-end", type: "datetime-local", step: 1, input: () => this.#answer() });
    this.answers = h("ul", { class: "answers", "aria-live": "polite" });
    this.late = h("p", { class: "quiet" });
    this.missing = h("p", { class: "verdict", hidden: true }, "No operator has a watermark: the pipeline has no event time (with_watermark), or no record of it has come yet.");
    this.table = this.#table();
    this.details = h("section", { class: "details" });
    const question = h("div", { class: "question" }, h("h2", null, "Why is this window not emitted?"),
      h("p", { class: "quiet" }, "An operator emits a window when its watermark passes the window's end. Its watermark is the least of its inputs."),
      h("p", null, h("label", { for: "window-end" }, "A window that ends at "), this.asked), this.answers);
    replace(panel, this.missing, question, this.table.element, this.late, this.details);
    this.feed = new Feed(panel, "watermarks", { every: 2000, problem }, (answer) => this.#show(answer));
  }

  update(kind, detail) {
    if (kind === "connected") this.feed.now();
    if (kind === "overview") setText(this.late, detail.rows_late ? `${count(detail.rows_late)} rows came after their windows were emitted, and were dropped. A larger delay of the watermark or allowed_lateness keeps such rows.` : "No row came too late.");
  }

  navigate(argument) {
    this.open = argument;
    this.table.setCurrent(argument);
    this.#showDetails();
  }

  stop() {
    this.feed.stop();
  }

  #show({ operators }) {
    this.operators = operators;
    this.longest = operators.reduce((most, each) => Math.max(most, each.lag_ms ?? 0), 0);
    this.missing.hidden = operators.some((each) => each.watermark_ms !== null);
    if (!this.asked.value) this.#suggest(operators);
    this.table.setRows(operators);
    this.table.setCurrent(this.open);
    this.#answer();
    this.#showDetails();
  }

  /** The next full ten seconds behind the last watermark: a window that somebody waits for. */
  #suggest(operators) {
    const newest = operators.reduce((most, each) => Math.max(most, each.watermark_ms ?? 0), 0);
    if (!newest) return;
    const moment = new Date(Math.ceil((newest + 1) / 10_000) * 10_000);
    this.asked.value = `${isoDate(moment)}T${isoTime(moment)}`;
  }

  #answer() {
    const end = new Date(this.asked.value).getTime();
    if (!this.operators || Number.isNaN(end)) return;
    // The furthest behind comes first: it is the one that is waited for. Operators in front of the event time have none.
    const behind = [...this.operators].sort((a, b) => (a.watermark_ms ?? Infinity) - (b.watermark_ms ?? Infinity) || 0);
    const sentences = behind.map((operator) => sentence(operator, end));
    if (sentences.join("\n") === this.answered) return;
    this.answered = sentences.join("\n");
    const more = sentences.length > ANSWERS_MAX && `${plural(sentences.length - ANSWERS_MAX, "more operator is", "more operators are")} in the table.`;
    replace(this.answers, [...sentences.slice(0, ANSWERS_MAX), more].filter(Boolean).map((words) => h("li", null, words)));
  }

  #table() {
    const cell = () => {
      const meter = new Meter("lag");
      return { element: meter.element, set: (row) => meter.set(duration(row.lag_ms), (row.lag_ms ?? 0) / (this.longest || 1)) };
    };
    return new Table({
      label: "Watermarks by operator", key: (row) => row.operator, empty: "No operator has a watermark: the pipeline has no event time.",
      open: (row) => this.page.go("watermarks", row.operator === this.open ? null : row.operator),
      columns: [
        { title: "Operator", width: 11, text: (row) => row.operator, sort: (row) => row.operator },
        { title: "Watermark", width: 11, text: (row) => clock(row.watermark_ms), sort: (row) => row.watermark_ms, isNumber: true },
        { title: "Behind the clock", width: 9, cell, sort: (row) => row.lag_ms, isNumber: true },
        { title: "Held back by", width: 26, text: (row) => row.held_by ?? "nothing" },
        { title: "Subtasks", width: 6, text: (row) => String(row.subtasks.length), isNumber: true },
        { title: "Splits", width: 6, text: (row) => String(row.splits.length), isNumber: true },
      ],
    });
  }

  #showDetails() {
    const operator = this.operators?.find((each) => each.operator === this.open);
    if (!operator) {
      this.part = null;
      return replace(this.details);
    }
    if (this.part?.name !== operator.operator) {
      this.part = new Parts(operator.operator, () => this.page.go("watermarks"));
      replace(this.details, this.part.elements);
    }
    this.part.set(operator);
  }
}

function sentence({ operator, watermark_ms, held_by }, end) {
  if (watermark_ms === null) return `${operator}: no watermark. Either no row has come, or its event time is taken further on${held_by ? `; its source is ${held_by}` : ""}.`;
  if (watermark_ms >= end) return `${operator}: emitted. The watermark ${clock(watermark_ms)} is past the window's end.`;
  return `${operator}: not yet. The watermark ${clock(watermark_ms)} has ${duration(end - watermark_ms)} to go${held_by ? `, held back by ${held_by}` : ""}.`;
}

/** Splits and subtasks of one operator, the one that is furthest behind first. */
class Parts {
  constructor(name, close) {
    this.name = name;
    this.splits = this.#table("Splits", "Split", (row) => String(row.split), (row) => (row.is_idle ? "idle: holds nothing back" : "active"));
    this.subtasks = this.#table("Subtasks", "Subtask", (row) => String(row.index), () => "");
    this.elements = [h("div", { class: "details-head" }, h("h2", null, name), h("button", { type: "button", click: close }, "Close")), h("div", { class: "halves" }, this.splits.element, this.subtasks.element)];
  }

  set({ splits, subtasks }) {
    const least = (rows) => [...rows].sort((a, b) => (a.is_idle ? 1 : 0) - (b.is_idle ? 1 : 0) || (a.watermark_ms ?? -Infinity) - (b.watermark_ms ?? -Infinity));
    this.first = [...splits, ...subtasks].reduce((most, row) => Math.max(most, row.watermark_ms ?? 0), 0);
    this.splits.element.hidden = splits.length === 0;
    this.splits.setRows(least(splits));
    this.subtasks.setRows(least(subtasks));
  }

  #table(label, title, name, note) {
    return new Table({
      label: `${label} of ${this.name}, the furthest behind first`, key: name,
      columns: [
        { title, width: 10, text: name },
        { title: "Watermark", width: 11, text: (row) => clock(row.watermark_ms), isNumber: true },
        { title: "Behind the first", width: 8, text: (row) => (row.watermark_ms === null ? NONE : duration(this.first - row.watermark_ms)), isNumber: true },
        { title: "State", width: 11, text: note },
      ].slice(0, label === "Splits" ? 4 : 3),
    });
  }
}
