// The frame that all charts share: title, legend, axes, and a cursor that mouse, touch and arrow keys move. The readout
// says in words what is under the cursor, so that a chart can be heard as well.

import { h, onWidth, replace, s, setAttribute, setText } from "./dom.js";

/** Milliseconds of a millisecond, second, minute, hour and day: round durations are multiples of these. */
const TIMES = [1, 1000, 60_000, 3_600_000, 86_400_000];
const MARGIN = { left: 72, right: 10, top: 8, bottom: 20 };

export class Chart {
  /** `series`: [{name, label}]; `fill-NAME` and `line-NAME` are their classes in the style sheet. */
  constructor({ title, series, format, height = 150, base = 10, onOpen = null }) {
    Object.assign(this, { title, series, format, height, base, onOpen });
    this.cursor = null;
    this.drawing = s("svg", { class: "drawing", "aria-hidden": "true", focusable: "false" });
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.plot = h("div", {
      class: "plot", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": title,
      pointermove: (event) => this.#onPointer(event), pointerdown: (event) => this.#onPointer(event),
      pointerleave: () => this.point(null), blur: () => this.point(null),
      click: () => this.cursor !== null && this.onOpen?.(this.cursor),
      keydown: (event) => this.#onKey(event),
    }, this.drawing);
    const legend = h("ul", { class: "legend" }, series.map(({ name, label }) => h("li", null, h("i", { class: `swatch fill-${name}` }), label)));
    this.element = h("figure", { class: "chart" }, h("figcaption", null, h("h3", null, title), series.length > 1 && legend), this.plot, this.readout);
    this.stop = onWidth(this.plot, (width) => this.#resize(width));
  }

  /** Says in one sentence what the chart shows; it is the chart's name for a screen reader. */
  describe(sentence) {
    setAttribute(this.plot, "aria-label", `${this.title}. ${sentence}`);
    this.sentence = sentence;
    if (this.cursor === null) setText(this.readout, sentence);
  }

  /** Moves the cursor to a position of `positions()`, or takes it away. */
  point(index) {
    this.cursor = index;
    this.cursorLine?.remove();
    if (index === null) return setText(this.readout, this.sentence ?? "");
    const x = this.positions()[index];
    if (x === undefined) return void (this.cursor = null);
    this.cursorLine = s("line", { class: "cursor", x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom });
    this.drawing.append(this.cursorLine);
    setText(this.readout, this.words(index));
  }

  redraw() {
    if (!this.width) return;
    this.area = { left: MARGIN.left, right: this.width - MARGIN.right, top: MARGIN.top, bottom: this.height - MARGIN.bottom };
    setAttribute(this.drawing, "viewBox", `0 0 ${this.width} ${this.height}`);
    setAttribute(this.drawing, "height", this.height);
    const top = niceTop(this.highest(), this.base);
    this.y = (value) => this.area.bottom - (value / top.value) * (this.area.bottom - this.area.top);
    replace(this.drawing, this.#grid(top), this.paint());
    if (this.cursor !== null) this.point(Math.min(this.cursor, this.positions().length - 1));
  }

  #grid(top) {
    const lines = [];
    for (let step = 0; step <= top.steps; step++) {
      const value = (top.value / top.steps) * step;
      const y = this.y(value);
      lines.push(s("line", { class: "grid", x1: this.area.left, x2: this.area.right, y1: y, y2: y }));
      lines.push(s("text", { class: "tick", x: this.area.left - 6, y: y + 4, "text-anchor": "end" }, this.format(value)));
    }
    return s("g", null, lines);
  }

  #resize(width) {
    this.width = width;
    this.redraw();
  }

  #onPointer(event) {
    const x = event.clientX - this.plot.getBoundingClientRect().left;
    this.point(nearest(this.positions(), x));
  }

  #onKey(event) {
    const last = this.positions().length - 1;
    const at = this.cursor ?? last + 1;
    const wanted = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (wanted !== undefined && last >= 0) this.point(Math.min(Math.max(wanted, 0), last));
    else if (event.key === "Enter" && this.cursor !== null) this.onOpen?.(this.cursor);
    else return;
    event.preventDefault();
  }
}

/** The label of a place on the horizontal axis, kept inside the drawing. */
export function tickBelow(area, height, x, text) {
  const anchor = x < area.left + 30 ? "start" : x > area.right - 30 ? "end" : "middle";
  return s("text", { class: "tick", x, y: height - 5, "text-anchor": anchor }, text);
}

/** The round number at or above `highest`, and the number of equal steps to it. */
export function niceTop(highest, base = 10) {
  if (!(highest > 0)) return { value: 1, steps: 1 };
  // 800 MiB and more are shown as parts of a GiB: 1,000 MiB is no round number of bytes.
  const unit = base === 1024 ? 1024 ** Math.floor(Math.log(highest * 1.25) / Math.log(1024)) : base === "time" ? TIMES.findLast((each) => each <= highest) ?? 1 : 1;
  const scaled = highest / unit;
  const power = 10 ** Math.floor(Math.log10(scaled));
  const [factor, steps] = [[1, 2], [1.5, 3], [2, 2], [3, 3], [4, 2], [5, 2], [6, 3], [8, 2], [10, 2]].find(([limit]) => scaled <= limit * power * 1.0001);
  return { value: factor * power * unit, steps };
}

function nearest(positions, x) {
  if (!positions.length) return null;
  let [low, high] = [0, positions.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (positions[middle] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(positions[low] - x) <= Math.abs(positions[high] - x) ? low : high;
}
