// What every view needs: the phase, rows per second, the age of the last checkpoint, the connection, the last failure.

import { now } from "./api.js";
import { h, replace, s, setAttribute, setText } from "./dom.js";
import { age, clock, count, duration, plural, rate, whole } from "./format.js";

const KINDS = { running: "good", finished: "plain", stopped: "plain", failed: "bad" };
const POINTS_MAX = 120;

export class Header {
  constructor(page) {
    this.page = page;
    this.name = document.getElementById("pipeline");
    this.phase = document.getElementById("phase");
    this.connection = document.getElementById("connection");
    this.figures = new Map([
      ["in", "Rows in"], ["out", "Rows out"], ["checkpoint", "Last checkpoint"], ["restarts", "Restarts"], ["late", "Late rows"], ["time", "Running for"],
    ].map(([key, label]) => [key, figure(label)]));
    this.lines = { in: new Sparkline("rows_in"), out: new Sparkline("rows_out") };
    for (const key of ["in", "out"]) this.figures.get(key).element.append(this.lines[key].element);
    replace(document.getElementById("summary"), h("dl", null, [...this.figures.values()].map((each) => each.element)));
    this.notices = new Notices(document.getElementById("notices"), page);
    this.#theme(document.getElementById("theme"));
  }

  set(overview) {
    this.overview = overview;
    setText(this.name, overview.pipeline);
    document.title = `${overview.phase === "running" ? "" : `${overview.phase} · `}${overview.pipeline} · Penstock`;
    setText(this.phase, overview.phase_text || overview.phase);
    this.phase.className = `phase ${KINDS[overview.phase] ?? "warn"}`;
    this.#figure("in", rate(overview.rows_in_per_second), `${count(overview.rows_in)} in all`);
    this.#figure("out", rate(overview.rows_out_per_second), `${count(overview.rows_out)} in all`);
    this.lines.in.add(overview.rows_in_per_second);
    this.lines.out.add(overview.rows_out_per_second);
    this.#figure("restarts", whole(overview.restarts), overview.generation === null ? "" : `generation ${overview.generation}`, overview.restarts > 0 ? "warn" : "");
    this.#figure("late", count(overview.rows_late), overview.rows_late ? "dropped, see Watermarks" : "none dropped", overview.rows_late ? "warn" : "");
    this.notices.set(overview);
    this.tick();
  }

  tick() {
    this.#showConnection();
    const overview = this.overview;
    if (!overview) return;
    const end = overview.ended_at_ms ?? now();
    this.#figure("time", overview.started_at_ms === null ? "–" : duration(Math.floor((end - overview.started_at_ms) / 1000) * 1000), `since ${clock(overview.started_at_ms)}`);
    this.#showCheckpoint(overview);
  }

  #showCheckpoint(overview) {
    const interval = overview.checkpoint_interval_ms;
    const every = interval === null ? "" : `every ${duration(interval)}`;
    if (overview.last_checkpoint === null) return this.#figure("checkpoint", "none yet", every);
    const old = overview.last_checkpoint_at_ms === null ? null : now() - overview.last_checkpoint_at_ms;
    // Three intervals without one: the alert that is shipped for Prometheus uses the same limit.
    const isOverdue = overview.is_live && overview.ended_at_ms === null && interval !== null && old > 3 * interval + 1000;
    const note = [`number ${overview.last_checkpoint}`, every].filter(Boolean).join(", ");
    this.#figure("checkpoint", age(old), isOverdue ? `overdue: ${note}` : note, isOverdue ? "bad" : "");
  }

  #showConnection() {
    const { live } = this.page;
    const isStale = live.disconnectedAt !== null;
    document.body.classList.toggle("stale", isStale);
    this.connection.classList.toggle("bad", isStale);
    if (!isStale) return setText(this.connection, this.overview && !this.overview.is_live ? "read from the checkpoint directory" : "");
    // Whole ten seconds after the first one: the sentence is read aloud whenever it changes.
    const seconds = Math.floor((Date.now() - live.disconnectedAt) / 1000);
    const shown = seconds < 10 ? "" : ` (${duration(Math.floor(seconds / 10) * 10_000)})`;
    setText(this.connection, `disconnected since ${clock(live.disconnectedAt)}${shown}, trying again`);
  }

  #figure(key, value, note, kind = "") {
    const found = this.figures.get(key);
    setText(found.value, value);
    setText(found.note, note);
    found.element.className = `figure ${kind}`;
  }

  #theme(button) {
    const show = () => {
      const theme = window.penstockTheme.current();
      setText(button, { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" }[theme]);
    };
    button.addEventListener("click", () => {
      window.penstockTheme.turn();
      show();
    });
    show();
  }
}

function figure(label) {
  const [value, note] = [h("dd", { class: "value" }, "–"), h("dd", { class: "note" })];
  return { value, note, element: h("div", { class: "figure" }, h("dt", null, label), value, note) };
}

/** The last two minutes, without axes: the numbers stand beside it. */
class Sparkline {
  constructor(name) {
    this.values = [];
    this.line = s("polyline", { class: `line line-${name}`, points: "" });
    this.element = s("svg", { class: "sparkline", viewBox: "0 0 120 26", preserveAspectRatio: "none", "aria-hidden": "true" }, this.line);
  }

  add(value) {
    this.values = [...this.values, value ?? 0].slice(-POINTS_MAX);
    const top = Math.max(...this.values, 1e-9);
    const first = POINTS_MAX - this.values.length;
    const points = this.values.map((each, index) => `${first + index},${(25 - (each / top) * 23).toFixed(1)}`);
    setAttribute(this.line, "points", points.join(" "));
  }
}

class Notices {
  constructor(element, page) {
    this.element = element;
    this.page = page;
    this.shown = "";
  }

  set(overview) {
    // Written again only if it is another one: an open text must not close each second.
    const wanted = JSON.stringify([overview.failure, overview.phase, overview.warnings]);
    if (wanted === this.shown) return;
    this.shown = wanted;
    const open = new Set([...this.element.querySelectorAll("details[open]")].map((each) => each.dataset.kind));
    replace(this.element, overview.failure && this.#failure(overview, open.has("failure")), overview.warnings?.length && warnings(overview.warnings, open.has("warnings")));
  }

  #failure({ failure, phase }, isOpen) {
    const title = phase === "failed" ? "The pipeline has failed" : ["running", "finished", "stopped"].includes(phase) ? "Last failure, recovered from" : "Failure";
    const summary = failure.trim().split("\n")[0];
    return h("details", { class: `notice ${phase === "failed" ? "bad" : "warn"}`, "data-kind": "failure", open: isOpen },
      h("summary", null, h("strong", null, `${title}: `), summary),
      h("pre", { tabindex: 0, "aria-label": "Full text of the failure" }, failure),
      h("button", { type: "button", click: () => this.page.go("recovery") }, "Show its recovery"));
  }
}

function warnings(list, isOpen) {
  const newest = [...list].sort((a, b) => b.at_ms - a.at_ms);
  return h("details", { class: "notice plain", "data-kind": "warnings", open: isOpen },
    h("summary", null, h("strong", null, `${plural(list.length, "warning")}: `), newest[0].text),
    h("ul", null, newest.map((each) => h("li", null, h("time", null, clock(each.at_ms)), ` ${each.text}`))));
}
