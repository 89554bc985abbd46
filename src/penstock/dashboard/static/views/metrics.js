// Figures over the last hour. One cursor moves through all charts: a drop of rows and its cause stand above each other.

import { Feed, now } from "../api.js";
import { h, replace } from "../dom.js";
import { bytes, count, duration, percent, rate } from "../format.js";
import { LineChart } from "../line_chart.js";
import { Table } from "../table.js";

const RANGES = [[300, "5 min"], [900, "15 min"], [3600, "1 hour"]];
const CHARTS = [
  { title: "Rows per second", format: rate, series: [["rows_in_per_second", "in"], ["rows_out_per_second", "out"]] },
  { title: "Busy and backpressured", format: percent, limit: 1, series: [["busy", "busy"], ["backpressured", "backpressured"]] },
  { title: "Latency from source to sink", format: duration, base: "time", series: [["latency_p50_ms", "median"], ["latency_p99_ms", "99th percentile"]] },
  { title: "Watermark behind the clock", format: duration, base: "time", series: [["watermark_lag_ms", "lag"]] },
  { title: "Duration of checkpoints", format: duration, base: "time", series: [["checkpoint_duration", "duration"]] },
  { title: "State", format: bytes, base: 1024, series: [["state_bytes", "state"]] },
  { title: "Memory of the workers", format: bytes, base: 1024, series: [["worker_memory_bytes", "memory"]] },
];

export function mount(panel, page, problem) {
  return new MetricsView(panel, problem);
}

class MetricsView {
  constructor(panel, problem) {
    this.seconds = 900;
    this.charts = CHARTS.map((chart) => new LineChart({ ...chart, series: chart.series.map(([name, label]) => ({ name, label })) }));
    const choice = h("select", { id: "range", change: () => this.#choose(Number(choice.value)) }, RANGES.map(([seconds, label]) => h("option", { value: seconds, selected: seconds === this.seconds }, label)));
    this.grid = h("div", { class: "charts many" }, this.charts.map((chart) => chart.element));
    this.latencies = latencies();
    const heading = h("h2", null, "Latency from source to operator, over the last minute");
    const note = h("p", { class: "quiet" }, "Markers travel with the records and wait where records wait. The time that a record spends in a window or in an asynchronous call is not part of it.");
    replace(panel, h("p", { class: "bar" }, h("span", null, h("label", { for: "range" }, "The last "), choice)), this.grid, heading, note, this.latencies.element);
    for (const chart of this.charts) this.#share(chart);
    this.feed = new Feed(panel, `history?seconds=${this.seconds}`, { every: 5000, problem }, (answer) => this.#show(answer));
    this.latency = new Feed(panel, "latency", { every: 5000, problem }, (answer) => this.latencies.setRows(answer.latencies));
  }

  update(kind) {
    if (kind === "connected") [this.feed.now(), this.latency.now()];
  }

  stop() {
    this.feed.stop();
    this.latency.stop();
    for (const chart of this.charts) chart.stop();
  }

  #choose(seconds) {
    this.seconds = seconds;
    this.feed.path = `history?seconds=${seconds}`;
    this.feed.now();
  }

  #show({ step_ms, series }) {
    this.#addUnknown(series);
    const newest = Math.max(...Object.values(series).map((points) => points.at(-1)?.[0] ?? 0), 0) || now();
    // A pipeline that is younger than the range fills the chart: its first minute is looked at most closely.
    const oldest = Math.min(...Object.values(series).map((points) => points[0]?.[0] ?? newest));
    const from = Math.max(newest - this.seconds * 1000, Math.min(oldest, newest - 60_000));
    for (const chart of this.charts) {
      const own = Object.fromEntries(chart.series.map(({ name }) => [name, series[name] ?? []]));
      chart.set({ from, to: newest, stepMs: step_ms, series: own });
    }
  }

  /** A series that this page does not know gets a chart of its own: nothing the server says is left out. */
  #addUnknown(series) {
    const known = new Set(this.charts.flatMap((chart) => chart.series.map(({ name }) => name)));
    for (const name of Object.keys(series)) {
      if (known.has(name)) continue;
      const chart = new LineChart({ title: name, format: count, series: [{ name: "plain", label: name }] });
      chart.series = [{ name, label: name }];
      this.charts.push(chart);
      this.grid.append(chart.element);
      this.#share(chart);
    }
  }

  #share(chart) {
    const point = chart.point.bind(chart);
    chart.point = (index) => {
      point(index);
      const at = index === null ? null : chart.times?.[index];
      for (const other of this.charts) if (other !== chart) LineChart.prototype.point.call(other, at === null ? null : indexOf(other.times ?? [], at));
    };
  }
}

function latencies() {
  const time = (title, value) => ({ title, width: 7, text: (row) => (value(row) === null ? duration(null) : `≤ ${duration(value(row))}`), sort: value, isNumber: true });
  return new Table({
    label: "Latency from source to operator", key: (row) => `${row.source} ${row.operator}`, empty: "No marker has come yet.",
    columns: [
      { title: "Source", width: 12, text: (row) => row.source, sort: (row) => row.source },
      { title: "Operator", width: 12, text: (row) => row.operator, sort: (row) => row.operator },
      time("Median", (row) => row.p50_ms), time("99th percentile", (row) => row.p99_ms), time("Longest", (row) => row.max_ms),
      { title: "Markers", width: 5, text: (row) => count(row.count), sort: (row) => row.count, isNumber: true },
    ],
  });
}

function indexOf(times, at) {
  const found = times.findIndex((each) => each >= at);
  return found === -1 ? null : found;
}
