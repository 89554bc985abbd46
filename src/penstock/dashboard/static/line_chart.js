// Series over time. A series with more points than the drawing has pixels is drawn by the least and the greatest of
// each pixel: a spike of one second stays visible in an hour.

import { Chart, tickBelow } from "./chart.js";
import { s } from "./dom.js";
import { clock, NONE } from "./format.js";

const PX_PER_BUCKET = 2;

export class LineChart extends Chart {
  constructor(options) {
    super(options);
    this.data = { from: 0, to: 1, stepMs: 1000, series: {} };
    this.limit = options.limit ?? 0;
  }

  set(data) {
    this.data = data;
    this.times = mergedTimes(Object.values(data.series));
    this.#describe();
    this.redraw();
  }

  highest() {
    return Math.max(this.limit, ...this.series.map(({ name }) => greatest(this.data.series[name] ?? [])));
  }

  positions() {
    return (this.times ?? []).map((at) => this.#x(at));
  }

  words(index) {
    const at = this.times[index];
    const values = this.series.map(({ name, label }) => `${label} ${this.format(valueAt(this.data.series[name] ?? [], at))}`);
    return `${clock(at)}: ${values.join(", ")}`;
  }

  paint() {
    const lines = this.series.map(({ name }) => s("path", { class: `line line-${name}`, d: this.#path(this.data.series[name] ?? []) }));
    const ticks = (this.width < 420 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).map((share) => this.data.from + share * (this.data.to - this.data.from));
    return s("g", null, lines, ticks.map((at) => tickBelow(this.area, this.height, this.#x(at), clock(at))));
  }

  #x(at) {
    const { from, to } = this.data;
    return this.area.left + ((at - from) / Math.max(to - from, 1)) * (this.area.right - this.area.left);
  }

  #path(points) {
    const buckets = Math.max(Math.floor((this.area.right - this.area.left) / PX_PER_BUCKET), 10);
    let path = "";
    let last = -Infinity;
    for (const [at, value] of thinned(points, buckets)) {
      if (value === null) {
        last = -Infinity;
        continue;
      }
      // A hole in the figures is a hole in the line: nothing is known of the time in between.
      const isNew = at - last > Math.max(this.data.stepMs * 5, ((this.data.to - this.data.from) / buckets) * 3);
      path += `${isNew ? "M" : "L"}${this.#x(at).toFixed(1)} ${this.y(value).toFixed(1)}`;
      last = at;
    }
    return path;
  }

  #describe() {
    const newest = this.series.map(({ name, label }) => {
      const known = (this.data.series[name] ?? []).filter((point) => point[1] !== null);
      if (!known.length) return `${label} ${NONE}`;
      return `${label} now ${this.format(known.at(-1)[1])}, at most ${this.format(greatest(known))}`;
    });
    const isEmpty = this.series.every(({ name }) => !(this.data.series[name] ?? []).some((point) => point[1] !== null));
    this.describe(isEmpty ? "No figures yet" : newest.join("; "));
  }
}

/** At most two points per bucket: the least and the greatest, in their order. */
export function thinned(points, buckets) {
  if (points.length <= buckets * 2) return points;
  const [first, size] = [points[0][0], (points.at(-1)[0] - points[0][0]) / buckets || 1];
  const kept = [];
  for (let at = 0; at < points.length; ) {
    const bucket = Math.floor((points[at][0] - first) / size);
    let [low, high] = [null, null];
    for (; at < points.length && Math.floor((points[at][0] - first) / size) === bucket; at++) {
      if (points[at][1] === null) continue;
      if (low === null || points[at][1] < low[1]) low = points[at];
      if (high === null || points[at][1] > high[1]) high = points[at];
    }
    if (low !== null) kept.push(...(low === high ? [low] : [low, high].sort((a, b) => a[0] - b[0])));
  }
  return kept;
}

const greatest = (points) => points.reduce((most, point) => (point[1] > most ? point[1] : most), 0);

function mergedTimes(all) {
  return [...new Set(all.flatMap((points) => points.map((point) => point[0])))].sort((a, b) => a - b);
}

function valueAt(points, at) {
  const found = points.find((point) => point[0] >= at);
  return found && found[0] === at ? found[1] : null;
}
