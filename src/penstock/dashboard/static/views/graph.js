// The graph: which operator is the bottleneck, at one look. Cards are buttons over a drawing of the edges.

import { Feed, get } from "../api.js";
import { LOAD, loadStack, Meter } from "../bars.js";
import { h, onWidth, replace, s, setAttribute, setText } from "../dom.js";
import { bytes, clock, count, duration, percent, rate, ratio, whole } from "../format.js";
import { curve, layout } from "../layout.js";
import { Table } from "../table.js";

const WIDE = { width: 248, height: 178 };
// On a phone two cards fit side by side, with their figures below each other.
const NARROW = { width: 156, height: 232 };
const GAPS = { right: { gapAlong: 78, gapAcross: 24 }, down: { gapAlong: 52, gapAcross: 16 } };
// Below these, a share or a skew is noise.
const BACKPRESSURED = 0.5;
const SKEWED = 1.5;

export function mount(panel, page, problem, argument) {
  return new GraphView(panel, page, problem, argument);
}

/** The vertex that others wait for: it is busy, not backpressured itself, and a vertex in front of it is. */
export function bottleneck({ vertices, edges }) {
  const byId = new Map(vertices.map((vertex) => [vertex.id, vertex]));
  const waiting = (vertex) => edges.filter((edge) => edge.to === vertex.id).map((edge) => byId.get(edge.from)).filter((before) => before && before.backpressured >= BACKPRESSURED);
  return vertices.filter((vertex) => (vertex.backpressured ?? 0) < BACKPRESSURED && waiting(vertex).length).sort((a, b) => b.busy - a.busy).map((vertex) => ({ vertex, waiting: waiting(vertex) }))[0] ?? null;
}

class GraphView {
  constructor(panel, page, problem, argument) {
    Object.assign(this, { page, problem, open: argument });
    this.cards = new Map();
    this.sentence = h("p", { class: "verdict", role: "status" });
    this.edges = s("svg", { class: "edges", "aria-hidden": "true", focusable: "false" });
    this.canvas = h("div", { class: "canvas" }, this.edges);
    this.frame = h("div", { class: "graph", role: "group", "aria-label": "Operators of the pipeline" }, this.canvas);
    this.words = h("ul", { class: "hidden", "aria-label": "Edges" });
    this.details = h("section", { class: "details", "aria-live": "off" });
    replace(panel, this.sentence, this.frame, this.words, legend(), this.details);
    this.stopWidth = onWidth(this.frame, (width) => {
      this.width = width;
      this.#draw();
    });
    this.feed = new Feed(panel, "graph", { problem }, (graph) => this.update("graph", graph));
    if (argument !== null) this.#openDetails();
  }

  update(kind, graph) {
    if (kind === "connected") this.feed.now();
    if (kind !== "graph") return;
    this.graph = graph;
    this.#draw();
    this.subtasks?.update();
  }

  /** Needs the graph and the width; either may come first. */
  #draw() {
    if (!this.graph || !this.width) return;
    const { graph } = this;
    this.#arrange();
    const narrow = bottleneck(graph);
    for (const vertex of graph.vertices) this.cards.get(vertex.id).set(vertex, narrow?.vertex.id === vertex.id);
    setText(this.sentence, verdict(graph, narrow));
    this.sentence.classList.toggle("warn", narrow !== null);
    this.#paintLoad(graph);
  }

  navigate(argument) {
    this.open = argument;
    this.#openDetails();
  }

  stop() {
    this.stopWidth();
    this.feed.stop();
  }

  /** Places change with the graph or the width, not with the figures: nothing moves under the mouse. */
  #arrange() {
    const { vertices, edges } = this.graph;
    const wanted = JSON.stringify([vertices.map((vertex) => vertex.id), edges, this.width]);
    if (wanted === this.arranged) return;
    this.arranged = wanted;
    const ids = vertices.map((vertex) => vertex.id);
    const chosen = arrangement(ids, edges, this.width);
    this.#cards(ids, chosen);
    this.#edges(edges, chosen);
    replace(this.words, edges.map((edge) => h("li", null, `${this.#name(edge.from)} to ${this.#name(edge.to)}: ${edge.exchange}${edge.can_be_overtaken ? ", barriers can overtake" : ""}`)));
  }

  #name(id) {
    return this.graph.vertices.find((vertex) => vertex.id === id)?.name ?? id;
  }

  #cards(ids, chosen) {
    for (const [id, card] of this.cards) if (!ids.includes(id)) [card.element.remove(), this.cards.delete(id)];
    for (const id of ids) {
      if (!this.cards.has(id)) this.cards.set(id, new Card(() => this.page.go("graph", this.open === String(id) ? null : id)));
      const { element } = this.cards.get(id);
      const { x, y } = chosen.places.get(id);
      Object.assign(element.style, { left: `${x}px`, top: `${y}px`, width: `${chosen.size.width}px`, height: `${chosen.size.height}px` });
      element.classList.toggle("narrow", chosen.size === NARROW);
      this.canvas.append(element);
    }
    this.#markOpen();
    Object.assign(this.canvas.style, { width: `${chosen.width}px`, height: `${chosen.height}px` });
  }

  #edges(edges, chosen) {
    this.lines = new Map();
    setAttribute(this.edges, "width", chosen.width);
    setAttribute(this.edges, "height", chosen.height);
    const drawn = edges.filter((edge) => chosen.places.has(edge.from) && chosen.places.has(edge.to)).map((edge) => {
      const { path, middle } = curve(chosen.places.get(edge.from), chosen.places.get(edge.to), { direction: chosen.direction, ...chosen.size });
      const line = s("path", { class: edge.can_be_overtaken ? "edge overtakes" : "edge", d: path, "marker-end": "url(#arrow)" });
      this.lines.set(edge, line);
      const label = s("text", { class: "edge-label", x: middle.x, y: middle.y - 7, "text-anchor": "middle" }, edge.exchange);
      const mark = edge.can_be_overtaken && s("path", { class: "overtake-mark", d: `M${middle.x - 7} ${middle.y - 4}l4 4l-4 4m5 -8l4 4l-4 4`, ...(chosen.direction === "down" ? { transform: `rotate(90 ${middle.x} ${middle.y})` } : {}) });
      if (chosen.direction === "down") [setAttribute(label, "x", middle.x + 12), setAttribute(label, "y", middle.y + 4), setAttribute(label, "text-anchor", "start")];
      return s("g", null, line, mark, label);
    });
    const arrow = s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0L8 4L0 8z", class: "arrow" }));
    replace(this.edges, s("defs", null, arrow), drawn);
  }

  #paintLoad({ vertices, edges }) {
    const waits = new Set(vertices.filter((vertex) => vertex.backpressured >= BACKPRESSURED).map((vertex) => vertex.id));
    edges.forEach((edge, index) => [...this.lines.values()][index]?.classList.toggle("waits", waits.has(edge.from)));
  }

  #markOpen() {
    for (const [id, card] of this.cards) setAttribute(card.element, "aria-expanded", String(id) === this.open ? "true" : "false");
  }

  #openDetails() {
    this.#markOpen();
    this.subtasks = this.open === null ? null : new Subtasks(this.details, this.open, this.problem, () => this.page.go("graph"));
    if (this.open === null) replace(this.details);
  }
}

/** From left to right if that fits, else downwards, and with narrow cards if even that is too wide. */
function arrangement(ids, edges, width) {
  const tried = [["right", WIDE], ["down", WIDE], ["down", NARROW]].map(([direction, size]) => ({ direction, size, ...layout(ids, edges, { direction, ...size, ...GAPS[direction] }) }));
  return tried.find((each) => each.width <= width - 8) ?? tried[2];
}

class Card {
  constructor(click) {
    this.name = h("span", { class: "card-name" });
    this.parallelism = h("span", { class: "card-parallelism" });
    this.chain = h("span", { class: "card-chain" });
    this.load = loadStack();
    this.shares = LOAD.map(() => h("span", { class: "card-share" }));
    this.badge = h("span", { class: "badge", hidden: true });
    this.figures = new Map(["in", "out", "lag", "state", "queue", "skew"].map((key) => [key, h("span", { class: "card-value" })]));
    const cells = [["in", "in"], ["out", "out"], ["lag", "lag"], ["state", "state"], ["queue", "queue"], ["skew", "skew"]]
      .map(([key, label]) => h("span", { class: "card-figure" }, h("span", { class: "card-label" }, label), this.figures.get(key)));
    this.element = h("button", { type: "button", class: "card", click, "aria-expanded": "false" },
      h("span", { class: "card-head" }, this.name, this.parallelism), this.badge, this.chain, this.load.element,
      h("span", { class: "card-shares" }, LOAD.map((name, index) => h("span", null, h("span", { class: "card-label" }, name), this.shares[index]))),
      h("span", { class: "card-figures" }, cells));
  }

  set(vertex, isBottleneck) {
    setText(this.name, vertex.name);
    setAttribute(this.name, "title", vertex.name);
    setText(this.parallelism, `×${vertex.parallelism}`);
    setText(this.chain, vertex.operators.map((operator) => operator.kind).join(" → "));
    setAttribute(this.chain, "title", vertex.operators.map((operator) => `${operator.name} (${operator.kind})`).join(" → "));
    this.load.set(vertex);
    LOAD.forEach((name, index) => setText(this.shares[index], percent(vertex[name])));
    setText(this.figures.get("in"), rate(vertex.rows_in_per_second));
    setText(this.figures.get("out"), rate(vertex.rows_out_per_second));
    setText(this.figures.get("lag"), duration(vertex.watermark_lag_ms));
    setText(this.figures.get("state"), bytes(vertex.state_bytes));
    setText(this.figures.get("queue"), bytes(vertex.queue_bytes));
    setText(this.figures.get("skew"), ratio(vertex.skew));
    this.figures.get("skew").classList.toggle("high", vertex.skew >= SKEWED);
    this.figures.get("queue").classList.toggle("high", vertex.queue_bytes_max > 0 && vertex.queue_bytes >= 0.8 * vertex.queue_bytes_max);
    setAttribute(this.figures.get("queue"), "title", vertex.queue_bytes_max ? `of ${bytes(vertex.queue_bytes_max)}` : null);
    this.badge.hidden = !isBottleneck;
    setText(this.badge, isBottleneck ? "bottleneck" : "");
    this.element.classList.toggle("is-bottleneck", isBottleneck);
    this.element.classList.toggle("is-backpressured", vertex.backpressured >= BACKPRESSURED);
  }
}

function verdict({ vertices }, narrow) {
  if (!vertices.length) return "The graph comes with the first workers.";
  if (vertices.every((vertex) => vertex.busy === null || vertex.busy === undefined)) return "No worker has reported yet: there are no figures.";
  if (narrow === null) return "No operator is backpressured: the pipeline keeps pace with its input.";
  const waiting = narrow.waiting.map((vertex) => `${vertex.name} (${percent(vertex.backpressured)} of its time)`).join(", ");
  return `${narrow.vertex.name} is the bottleneck: busy ${percent(narrow.vertex.busy)}. It backpressures ${waiting}.`;
}

function legend() {
  const entries = [["busy", "busy"], ["backpressured", "backpressured: waits for the operator behind it"], ["idle", "idle"]];
  const overtakes = s("svg", { class: "key", width: 34, height: 12, "aria-hidden": "true" }, s("path", { class: "edge overtakes", d: "M0 6H34" }), s("path", { class: "overtake-mark", d: "M11 2l4 4l-4 4m5 -8l4 4l-4 4" }));
  const aligned = s("svg", { class: "key", width: 34, height: 12, "aria-hidden": "true" }, s("path", { class: "edge", d: "M0 6H34" }));
  return h("ul", { class: "legend graph-legend" },
    entries.map(([name, label]) => h("li", null, h("i", { class: `swatch fill-${name}` }), label)),
    h("li", null, overtakes, "barriers can overtake records"), h("li", null, aligned, "always aligned"));
}

/** The subtasks of one vertex. Bars are shares of the largest, so that skew is seen before it is read. */
class Subtasks {
  constructor(parent, id, problem, close) {
    this.path = `vertices/${encodeURIComponent(id)}`;
    this.problem = problem;
    this.heading = h("h2", { tabindex: -1 }, "Subtasks");
    this.note = h("p", { class: "quiet" });
    this.table = new Table({
      label: "Subtasks", key: (row) => row.index,
      columns: [
        { title: "Subtask", width: 5, text: (row) => String(row.index), sort: (row) => row.index, isNumber: true },
        { title: "Worker", width: 5, text: (row) => whole(row.worker), sort: (row) => row.worker, isNumber: true },
        { title: "Busy, backpressured, idle", width: 11, cell: loadStack, sort: (row) => row.backpressured },
        { title: "Busy", width: 5, text: (row) => percent(row.busy), sort: (row) => row.busy, isNumber: true },
        this.#meter("Rows in", (row) => row.rows_in, count),
        this.#meter("Rows in/s", (row) => row.rows_in_per_second, rate),
        this.#meter("Rows out/s", (row) => row.rows_out_per_second, rate),
        this.#meter("State", (row) => row.state_bytes, bytes),
        this.#meter("Queue", (row) => row.queue_bytes, bytes),
        { title: "Watermark", width: 11, text: (row) => clock(row.watermark_ms), sort: (row) => row.watermark_ms, isNumber: true },
      ],
    });
    replace(parent, h("div", { class: "details-head" }, this.heading, h("button", { type: "button", click: close }, "Close")), this.note, this.table.element);
    this.update().then(() => this.heading.scrollIntoView({ block: "nearest" }));
  }

  async update() {
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      this.#show(await get(this.path));
    } catch (failure) {
      this.problem.show(failure);
    }
    this.isBusy = false;
  }

  #show(vertex) {
    this.largest = new Map();
    setText(this.heading, `${vertex.name}: ${vertex.parallelism} subtasks`);
    setText(this.note, skewWords(vertex));
    this.table.setRows((this.rows = vertex.subtasks));
  }

  #meter(title, value, format) {
    const most = () => {
      if (!this.largest.has(title)) this.largest.set(title, this.rows.reduce((high, row) => Math.max(high, value(row) ?? 0), 0));
      return this.largest.get(title);
    };
    const cell = () => {
      const meter = new Meter();
      return { element: meter.element, set: (row) => meter.set(format(value(row)), value(row) / (most() || 1)) };
    };
    return { title, width: 8, cell, sort: value, isNumber: true };
  }
}

function skewWords(vertex) {
  const most = vertex.subtasks.reduce((high, row) => ((row.rows_in ?? 0) > (high?.rows_in ?? -1) ? row : high), null);
  if (!most || !(vertex.skew >= SKEWED)) return "Rows are spread evenly over the subtasks.";
  return `Subtask ${most.index} gets ${ratio(vertex.skew)} the rows of the mean: a few keys or splits have most of the rows.`;
}
