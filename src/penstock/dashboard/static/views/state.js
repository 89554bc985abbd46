// State: how much each operator keeps, how evenly, and the rows of the last checkpoint themselves.

import { Feed, get } from "../api.js";
import { Meter } from "../bars.js";
import { h, replace } from "../dom.js";
import { bytes, count, percent, plural, whole } from "../format.js";
import { Table } from "../table.js";

const LIMIT = 50;

export function mount(panel, page, problem, argument) {
  return new StateView(panel, page, problem, argument);
}

class StateView {
  constructor(panel, page, problem, argument) {
    Object.assign(this, { page, problem, open: argument });
    this.table = this.#table();
    this.details = h("section", { class: "details" });
    replace(panel, h("p", { class: "quiet" }, "State of the last checkpoint. An operator shows its rows."), this.table.element, this.details);
    this.feed = new Feed(panel, "state", { problem }, (answer) => this.#show(answer));
    if (argument !== null) this.navigate(argument);
  }

  update(kind, detail) {
    if (kind === "connected" || (kind === "checkpoint" && detail.status === "completed")) this.feed.now();
  }

  async navigate(argument) {
    this.open = argument;
    this.table.setCurrent(argument);
    if (argument === null) return replace(this.details);
    try {
      const rows = await get(`state/${encodeURIComponent(argument)}?limit=${LIMIT}`);
      if (this.open === argument) replace(this.details, rowsOf(argument, rows, () => this.page.go("state"), () => this.navigate(argument)));
    } catch (failure) {
      replace(this.details);
      this.problem.show(failure);
    }
  }

  stop() {
    this.feed.stop();
  }

  #show({ operators }) {
    this.largest = operators.reduce((most, each) => Math.max(most, each.state_bytes ?? 0), 0);
    this.table.setRows(operators);
    this.table.setCurrent(this.open);
  }

  #table() {
    const cell = () => {
      const meter = new Meter("state");
      return { element: meter.element, set: (row) => meter.set(bytes(row.state_bytes), (row.state_bytes ?? 0) / (this.largest || 1)) };
    };
    return new Table({
      label: "State by operator", key: (row) => row.operator, empty: "No operator keeps state, or no checkpoint has completed yet.",
      open: (row) => this.page.go("state", row.operator === this.open ? null : row.operator),
      columns: [
        { title: "Operator", width: 14, text: (row) => row.operator, sort: (row) => row.operator },
        { title: "Bytes", width: 10, cell, sort: (row) => row.state_bytes, isNumber: true },
        { title: "Rows", width: 8, text: (row) => count(row.rows), sort: (row) => row.rows, isNumber: true },
        { title: "Key groups used", width: 8, text: (row) => (row.key_groups_used === null ? whole(null) : `${whole(row.key_groups_used)} of ${whole(row.key_groups)}`), sort: (row) => row.key_groups_used, isNumber: true },
        { title: "Largest subtask has", width: 9, text: (row) => percent(row.largest_subtask_share), sort: (row) => row.largest_subtask_share, isNumber: true },
      ],
    });
  }
}

function rowsOf(operator, { columns, rows, largest_keys, truncated }, close, again) {
  const numbered = rows.map((values, index) => ({ values, index }));
  const table = new Table({
    label: `Rows of ${operator}`, key: (row) => row.index, empty: "The last checkpoint has no row of it.",
    columns: columns.map((name, at) => ({ title: name, width: 9, text: (row) => row.values[at] ?? "null", sort: (row) => row.values[at] })),
  });
  queueMicrotask(() => table.setRows(numbered));
  const head = h("div", { class: "details-head" }, h("h2", null, operator), h("button", { type: "button", click: again }, "Read again"), h("button", { type: "button", click: close }, "Close"));
  const note = truncated ? `The first ${plural(rows.length, "row")}; there are more.` : `${plural(rows.length, "row")}, all there are.`;
  return [head, largest_keys.length ? keys(operator, largest_keys) : null, h("p", { class: "quiet" }, note), table.element].filter(Boolean);
}

function keys(operator, list) {
  const most = list.reduce((high, each) => Math.max(high, each.rows ?? 0), 0);
  const items = list.map((each) => {
    const meter = new Meter("state");
    meter.set(plural(each.rows, "row"), each.rows / (most || 1));
    return h("tr", null, h("th", { scope: "row" }, each.key), h("td", null, meter.element));
  });
  return h("div", { class: "keys" }, h("h3", null, "Largest keys"), h("table", { class: "pairs" }, h("caption", { class: "hidden" }, `Largest keys of ${operator}`), h("tbody", null, items)));
}
