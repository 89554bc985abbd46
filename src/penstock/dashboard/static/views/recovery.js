// Recovery: each generation of workers, what ended it, what was restored, and where the time between two went.

import { Feed, now } from "../api.js";
import { Stack } from "../bars.js";
import { h, replace, setText } from "../dom.js";
import { clock, duration, plural } from "../format.js";

const SHOWN_MAX = 50;
// A generation is up from here on; the time that it then runs says nothing about its recovery.
const UP = "running";
const COLOURS = 6;

export function mount(panel, page, problem) {
  return new RecoveryView(panel, page, problem);
}

class RecoveryView {
  constructor(panel, page, problem) {
    this.page = page;
    this.verdict = h("p", { class: "verdict" });
    this.strip = h("div", { class: "strip", role: "img" });
    this.axis = h("p", { class: "axis quiet", "aria-hidden": "true" });
    this.list = h("ol", { class: "generations", reversed: true });
    this.note = h("p", { class: "quiet" });
    replace(panel, this.verdict, this.strip, this.axis, this.list, this.note);
    this.feed = new Feed(panel, "recoveries", { every: 2000, problem }, (answer) => this.#show(answer));
  }

  update(kind, detail) {
    if (kind === "connected") this.feed.now();
    if (kind === "recovery") detail.generations ? this.#show(detail) : this.feed.now();
  }

  /** The ages of what still lasts. */
  tick() {
    if (!this.newest) return;
    this.#showStrip(this.newest.toReversed());
    for (const each of this.newest) {
      const shown = this.list.querySelector(`[data-lived="${each.started_at_ms}"]`);
      if (shown && each.ended_at_ms === null) setText(shown, duration(Math.floor((now() - each.started_at_ms) / 1000) * 1000));
    }
    this.#countOn(this.newest[0]);
  }

  /** The phase that an attempt is in, and the time for which it has not been up. */
  #countOn(newest) {
    if (!newest || newest.ended_at_ms !== null || isUp(newest) || !this.underWay) return;
    const passed = Math.max(now() - newest.started_at_ms, 0);
    const list = newest.phases.map((phase, index) => (index < newest.phases.length - 1 ? phase : { ...phase, ms: Math.max(passed - sum(newest.phases.slice(0, -1)), 0) }));
    this.underWay.set(list);
  }

  stop() {
    this.feed.stop();
  }

  #show({ generations }) {
    const newest = [...generations].sort((a, b) => b.started_at_ms - a.started_at_ms);
    this.newest = newest;
    this.#write(newest);
    this.tick();
  }

  #write(newest) {
    // Phases are no event of the stream, so they are asked for. Written again only if there is another one of them: the
    // text that somebody reads or copies must stay. The last phase grows all the time.
    const wanted = JSON.stringify(newest.map((each) => ({ ...each, phases: each.phases.filter((phase) => phase.name !== UP).map((phase) => (isUp(each) ? phase : phase.name)), up: isUp(each) })));
    if (wanted === this.shown) return;
    this.shown = wanted;
    const failed = newest.filter((each) => each.failure);
    setText(this.verdict, failed.length ? `${plural(newest.length, "generation")}, ${plural(failed.length, "failure")}. The last one: ${failed[0].failure.summary}` : `${plural(newest.length, "generation")}, no failure.`);
    // An open traceback stays open when a new generation comes.
    const open = new Set([...this.list.querySelectorAll("details[open]")].map((each) => each.dataset.started));
    const shown = newest.slice(0, SHOWN_MAX).map((each) => new Generation(each, open.has(String(each.started_at_ms)), this.page));
    this.underWay = shown[0]?.phases;
    replace(this.list, shown.map((each) => each.element));
    setText(this.note, newest.length > SHOWN_MAX ? `The newest ${SHOWN_MAX} of ${newest.length} are shown.` : "");
  }

  #showStrip(oldestFirst) {
    if (!oldestFirst.length) return replace(this.strip);
    const [from, to] = [oldestFirst[0].started_at_ms, Math.max(...oldestFirst.map((each) => each.ended_at_ms ?? now()))];
    const length = Math.max(to - from, 1);
    const parts = oldestFirst.slice(-SHOWN_MAX).map((each) => {
      const part = h("span", { class: `life ${each.failure ? "failed" : each.ended_at_ms === null ? "running" : "ended"}`, title: nameOf(each) }, each.generation === null ? "" : String(each.generation));
      part.style.left = `${((each.started_at_ms - from) / length) * 100}%`;
      part.style.width = `${(((each.ended_at_ms ?? now()) - each.started_at_ms) / length) * 100}%`;
      return part;
    });
    replace(this.strip, parts);
    this.strip.setAttribute("aria-label", `Generations from ${clock(from)} to ${clock(to)}`);
    replace(this.axis, h("span", null, clock(from)), h("span", null, oldestFirst.at(-1).ended_at_ms === null ? "now" : clock(to)));
  }
}

const isUp = (each) => each.phases.some((phase) => phase.name === UP);

/** An attempt that ended before it had taken over the directory has no number. */
const nameOf = ({ generation, ended_at_ms }) => (generation !== null ? `generation ${generation}` : ended_at_ms === null ? "next generation" : "attempt without a generation");

class Generation {
  constructor(each, isOpen, page) {
    const end = each.ended_at_ms === null ? "until now" : `until ${clock(each.ended_at_ms)}`;
    const lived = h("span", { "data-lived": each.started_at_ms }, duration((each.ended_at_ms ?? now()) - each.started_at_ms));
    this.phases = each.phases.length > 0 ? new Phases(each.phases) : null;
    const kind = each.failure ? "failed" : isUp(each) || each.ended_at_ms !== null ? "" : "coming";
    this.element = h("li", { class: `generation ${kind}`.trim() },
      h("h2", { class: "name" }, nameOf(each)),
      h("p", null, `${clock(each.started_at_ms)} ${end} (`, lived, ")", ...begun(each, page)),
      this.phases?.element,
      each.failure && failure(each, isOpen));
  }
}

/** An attempt without a number has not taken over the directory: nobody knows yet what it will restore. */
function begun(each, page) {
  if (each.generation === null) return [];
  if (each.restored_checkpoint === null) return [", began without a checkpoint"];
  const link = h("button", { type: "button", class: "link", click: () => page.go("checkpoints", each.restored_checkpoint) }, `checkpoint ${each.restored_checkpoint}`);
  return [", restored ", link];
}

const sum = (phases) => phases.reduce((total, phase) => total + (phase.ms ?? 0), 0);

/** The phases of one recovery, as a bar and in words; `set` again while it lasts. */
class Phases {
  constructor(whole) {
    const upAt = whole.findIndex((phase) => phase.name === UP);
    this.isUp = upAt !== -1;
    const list = this.isUp ? whole.slice(0, upAt) : whole;
    const names = list.map((_, index) => `step-${index % COLOURS}`);
    this.stack = new Stack(names);
    this.title = h("strong", null);
    this.words = list.map(() => h("span", null));
    const legend = list.map((_, index) => h("li", null, h("i", { class: `swatch fill-${names[index]}` }), this.words[index]));
    this.element = h("div", { class: "phases" }, h("p", null, this.title), this.stack.element, h("ul", { class: "legend" }, legend));
    this.set(list);
  }

  set(list) {
    const all = sum(list);
    const words = list.map((phase) => `${phase.name} ${duration(phase.ms)}`);
    setText(this.title, `${this.isUp ? "Up" : "Not up"} after ${duration(all)}`);
    words.forEach((text, index) => setText(this.words[index], text));
    this.stack.set(list.map((phase) => (phase.ms ?? 0) / Math.max(all, 1)), words.join(", "));
  }
}

function failure(each, isOpen) {
  const { started_at_ms, failure: { summary, error, operator, subtask, worker } } = each;
  const where = [operator !== null && `operator ${operator}`, subtask !== null && `subtask ${subtask}`, worker !== null && `worker ${worker}`].filter(Boolean).join(", ");
  return h("details", { class: "notice bad", open: isOpen, "data-started": started_at_ms },
    h("summary", null, h("strong", null, "Ended by: "), summary, where && h("span", { class: "quiet" }, ` (${where})`)),
    h("pre", { tabindex: 0, "aria-label": `Error of ${nameOf(each)}` }, error));
}
