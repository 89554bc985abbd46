// Configuration: settings, plan, versions, the way to Spark's own page, and the last lines of the log.

import { Feed } from "../api.js";
import { h, replace, setText } from "../dom.js";
import { clock, NONE, whole } from "../format.js";
import { pairs, Table } from "../table.js";

const LINES = 200;
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];

export function mount(panel, page, problem) {
  return new ConfigurationView(panel, page, problem);
}

class ConfigurationView {
  constructor(panel, page, problem) {
    this.versions = pairs("Versions and Spark", []);
    this.filter = h("input", { id: "filter", type: "search", input: () => this.#showSettings(), autocomplete: "off" });
    this.settings = pairs("Settings", []);
    this.plan = h("pre", { class: "plan", tabindex: 0, "aria-label": "Plan" });
    this.level = h("select", { id: "level", change: () => this.#showLines() }, LEVELS.map((level) => h("option", { value: level, selected: level === "INFO" }, level)));
    this.lines = new Table({
      label: "Log of the pipeline", key: (row) => row.number, open: (row) => this.#showLine(row), openLabel: (row) => `whole line of ${clock(row.at_ms)}`, empty: "No line of this level or above.",
      columns: [
        { title: "Time", width: 7, text: (row) => clock(row.at_ms) },
        { title: "Level", width: 6, text: (row) => row.level },
        { title: "Worker", width: 5, text: (row) => (row.worker === null ? "driver" : whole(row.worker)) },
        { title: "Operator", width: 9, text: (row) => row.operator ?? "" },
        { title: "Text", width: 40, text: (row) => row.text },
      ],
    });
    this.line = h("pre", { class: "plan", tabindex: 0, hidden: true, "aria-label": "Whole line of the log" });
    replace(panel, h("div", { class: "halves" },
      h("section", null, h("h2", null, "Versions"), this.versions.element, h("h2", null, "Plan"), this.plan),
      h("section", null, h("div", { class: "bar" }, h("h2", null, "Settings"), h("span", null, h("label", { for: "filter" }, "Find "), this.filter)), this.settings.element)),
    h("div", { class: "bar" }, h("h2", null, "Log"), h("span", null, h("label", { for: "level" }, "From level "), this.level)), this.lines.element, this.line);
    this.configuration = new Feed(panel, "configuration", { problem }, (answer) => this.#show(answer));
    this.logs = new Feed(panel, `logs?limit=${LINES}`, { every: 3000, problem }, ({ lines }) => {
      this.known = lines;
      this.#showLines();
    });
    if (page.overview) this.update("overview", page.overview);
  }

  update(kind, detail) {
    if (kind === "connected") [this.configuration.now(), this.logs.now()];
    if (kind === "overview") this.#showVersions(detail);
  }

  stop() {
    this.configuration.stop();
    this.logs.stop();
  }

  #show({ settings, plan }) {
    this.all = Object.entries(settings).sort();
    setText(this.plan, plan);
    this.#showSettings();
  }

  #showSettings() {
    const wanted = this.filter.value.toLowerCase();
    this.settings.set((this.all ?? []).filter((entry) => entry.join(" ").toLowerCase().includes(wanted)));
  }

  #showVersions({ spark, versions }) {
    const shown = JSON.stringify([spark, versions]);
    if (shown === this.shownVersions) return;
    this.shownVersions = shown;
    const link = spark.ui_url ? h("a", { href: spark.ui_url }, spark.ui_url) : NONE;
    this.versions.set([...Object.entries(versions).map(([name, version]) => [name, version ?? NONE]), ["Spark application", spark.app_id ?? NONE], ["Spark's page", link]]);
  }

  #showLine(row) {
    const where = [row.worker === null ? "driver" : `worker ${row.worker}`, row.operator].filter(Boolean).join(", ");
    setText(this.line, `${clock(row.at_ms)} ${row.level} ${where}\n${row.text}`);
    this.line.hidden = false;
    this.lines.setCurrent(row.number);
  }

  #showLines() {
    const least = LEVELS.indexOf(this.level.value);
    const lines = (this.known ?? []).map((line, number) => ({ ...line, number })).filter((line) => !LEVELS.includes(line.level) || LEVELS.indexOf(line.level) >= least);
    this.lines.setRows(lines.sort((a, b) => b.at_ms - a.at_ms));
  }
}
