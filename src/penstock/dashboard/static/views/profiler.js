// "What is this worker doing?": its stacks, sampled for some seconds, as a flame graph and as a table.

import { Feed, post } from "../api.js";
import { Meter } from "../bars.js";
import { h, replace, setText } from "../dom.js";
import { bytes, percent, plural, whole } from "../format.js";
import { Flame, hottest, matches } from "../flame.js";
import { Table } from "../table.js";

const SECONDS = [1, 3, 5, 10, 30];
const OWNERS = { user: "your code", penstock: "Penstock", library: "library" };

export function mount(panel, page, problem) {
  return new ProfilerView(panel, problem);
}

class ProfilerView {
  constructor(panel, problem) {
    this.problem = problem;
    this.worker = h("select", { id: "worker" });
    this.seconds = h("select", { id: "seconds" }, SECONDS.map((seconds) => h("option", { value: seconds, selected: seconds === 5 }, plural(seconds, "second"))));
    this.button = h("button", { type: "submit", class: "primary" }, "Sample");
    this.note = h("p", { class: "quiet", role: "status" }, "Sampling reads the stack of the worker's mailbox thread. It does not stop the worker.");
    this.result = h("div", { hidden: true });
    this.flame = new Flame();
    this.table = this.#table();
    this.search = h("input", { id: "find", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "function or file", input: () => this.#find() });
    this.found = h("span", { class: "quiet", role: "status" });
    this.fold = h("input", { id: "fold", type: "checkbox", checked: true, change: () => this.flame.setFolded(this.fold.checked) });
    const tools = h("div", { class: "bar tools" },
      h("span", null, h("label", { for: "find" }, "Find "), this.search, " ", this.found),
      h("span", null, this.fold, h("label", { for: "fold" }, " Fold calls within Penstock")));
    replace(this.result, tools, this.flame.element, h("h2", null, "Where the time is spent"), this.table.element);
    replace(panel, h("form", { class: "bar", submit: (event) => this.#sample(event) },
      h("span", null, h("label", { for: "worker" }, "Worker "), this.worker), h("span", null, h("label", { for: "seconds" }, "for "), this.seconds), this.button), this.note, this.result);
    this.feed = new Feed(panel, "workers", { every: 5000, problem }, ({ workers }) => this.#showWorkers(workers));
  }

  stop() {
    this.feed.stop();
    this.flame.stop();
  }

  #showWorkers(workers) {
    const labels = workers.map((worker) => `${worker.index} on ${worker.host}, process ${worker.pid}, ${bytes(worker.memory_bytes)}`);
    const wanted = JSON.stringify(workers.map((worker) => [worker.index, worker.pid]));
    if (wanted === this.shown) return;
    this.shown = wanted;
    const chosen = this.worker.value;
    replace(this.worker, workers.map((worker, at) => h("option", { value: worker.index, selected: String(worker.index) === chosen }, labels[at])));
    this.button.disabled = workers.length === 0;
    if (!workers.length) setText(this.note, "No worker is up.");
  }

  async #sample(event) {
    event.preventDefault();
    const [worker, seconds] = [this.worker.value, Number(this.seconds.value)];
    this.button.disabled = true;
    setText(this.note, `Sampling worker ${worker} for ${plural(seconds, "second")} …`);
    try {
      this.#show(worker, await post(`workers/${worker}/profile`, { seconds }));
      this.problem.hide();
    } catch (failure) {
      setText(this.note, "");
      this.problem.show(failure);
    }
    this.button.disabled = false;
  }

  #show(worker, { samples, seconds, stacks, left_out: leftOut }) {
    this.samples = samples;
    this.result.hidden = stacks.length === 0;
    const without = leftOut ? ` ${plural(leftOut, "sample")} of rare stacks ${leftOut === 1 ? "is" : "are"} left out.` : "";
    setText(this.note, stacks.length ? `Worker ${worker}: ${plural(samples, "sample")} in ${plural(seconds, "second")}.${without} A frame opens to the whole width; Escape or the top bar goes back.` : `Worker ${worker} gave no sample in ${plural(seconds, "second")}.`);
    this.hottest = hottest(stacks);
    this.flame.set(stacks);
    this.#find();
  }

  #find() {
    const text = this.search.value.trim();
    const share = this.flame.find(text);
    setText(this.found, text ? `${percent(share)} of the samples` : "");
    this.table.setRows(text ? this.hottest.filter((row) => matches(text, row)) : this.hottest);
  }

  #table() {
    const share = (of) => () => {
      const meter = new Meter();
      return { element: meter.element, set: (row) => meter.set(percent(of(row) / this.samples), of(row) / this.samples) };
    };
    return new Table({
      label: "Functions by samples", key: (row) => row.key,
      columns: [
        { title: "Function", width: 14, text: (row) => row.name, sort: (row) => row.name },
        { title: "Itself", width: 7, cell: share((row) => row.self), sort: (row) => row.self, isNumber: true },
        { title: "With callees", width: 7, cell: share((row) => row.total), sort: (row) => row.total, isNumber: true },
        { title: "Samples", width: 5, text: (row) => whole(row.self), sort: (row) => row.self, isNumber: true },
        { title: "Whose", width: 6, text: (row) => OWNERS[row.owner], sort: (row) => row.owner },
        { title: "File", width: 18, text: (row) => row.file, sort: (row) => row.file },
      ],
    });
  }
}
