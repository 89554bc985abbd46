// Stacked bars, one for each item; with more items than bars, one for each group: its highest item stands for it,
// because the slowest checkpoint is the one that is looked for.

import { Chart, tickBelow } from "./chart.js";
import { s } from "./dom.js";

const BAR_PX_MIN = 5;
// Labels that are nearer to each other than this are hard to read.
const LABEL_PX = 90;

/** Items are {parts: [number or null, …], label(), words(), isFailed, item}; `parts` in the order of `series`. */
export class BarChart extends Chart {
  constructor(options) {
    super(options);
    this.items = [];
    this.bars = [];
  }

  set(items) {
    this.items = items;
    this.redraw();
  }

  redraw() {
    const room = Math.max((this.width ?? 300) - 70, 100);
    this.bars = grouped(this.items, Math.floor(room / BAR_PX_MIN));
    super.redraw();
  }

  /** The number of items that one bar stands for, at most. */
  get groupSize() {
    return Math.max(1, ...this.bars.map((bar) => bar.size));
  }

  highest() {
    return Math.max(0, ...this.bars.map((bar) => total(bar)));
  }

  positions() {
    const step = this.#step();
    return this.bars.map((_, index) => this.area.left + (index + 0.5) * step);
  }

  words(index) {
    return this.bars[index].words();
  }

  paint() {
    const step = this.#step();
    const width = Math.min(Math.max(step - 1.5, 2), 22);
    const bars = this.bars.map((bar, index) => this.#bar(bar, this.area.left + (index + 0.5) * step - width / 2, width));
    const every = Math.max(1, Math.ceil(LABEL_PX / step));
    const ticks = this.bars.map((bar, index) => index % every === 0 && tickBelow(this.area, this.height, this.area.left + (index + 0.5) * step, bar.label()));
    return s("g", null, bars, ticks);
  }

  #step() {
    return (this.area.right - this.area.left) / Math.max(this.bars.length, 24);
  }

  #bar(bar, x, width) {
    let base = 0;
    const parts = bar.parts.map((part, index) => {
      if (!part) return null;
      const [bottom, top] = [this.y(base), this.y((base += part))];
      return s("rect", { class: `fill-${this.series[index].name}`, x: x.toFixed(1), width: width.toFixed(1), y: top.toFixed(1), height: Math.max(bottom - top, 0.5).toFixed(1) });
    });
    const mark = bar.isFailed && s("path", { class: "failed-mark", d: `M${x} ${this.area.bottom - 8}l${width} 8m0 -8l${-width} 8` });
    return s("g", null, parts, mark);
  }
}

const total = (bar) => bar.parts.reduce((sum, part) => sum + (part ?? 0), 0);

export function grouped(items, barsMax) {
  const size = Math.ceil(items.length / barsMax) || 1;
  if (size === 1) return items.map((item) => ({ ...item, size: 1 }));
  const bars = [];
  for (let at = 0; at < items.length; at += size) {
    const group = items.slice(at, at + size);
    const highest = group.reduce((most, item) => (total(item) > total(most) ? item : most));
    const failed = group.filter((item) => item.isFailed).length;
    const words = () => `${highest.words()} (highest of ${group.length}${failed ? `, ${failed} failed` : ""})`;
    bars.push({ ...highest, words, isFailed: failed > 0, size: group.length });
  }
  return bars;
}
