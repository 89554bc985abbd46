// A flame graph of sampled stacks, outermost frame first. Colour says whose code a frame is: yours, the engine's or
// a library's. Arrow keys walk the tree, Enter makes a frame the whole width, Escape goes back.

import { h, onWidth, replace, s, setText } from "./dom.js";
import { percent, plural } from "./format.js";

const ROW_PX = 19;
const WIDTH_PX_MIN = 1.5;
const CHARACTER_PX = 6.7;

export function ownerOf(file) {
  if (/(^|[\\/])penstock[\\/]/.test(file)) return "engine";
  if (/site-packages|dist-packages|[\\/]lib[\\/]python|pyspark[\\/]|^<|^$/.test(file)) return "library";
  return "own";
}

/** Stacks become a tree: {name, samples, children, parent, depth, start}. */
export function treeOf(stacks) {
  const root = node("all", { file: "", line: 0 }, null);
  for (const { frames, samples } of stacks) {
    let at = root;
    at.samples += samples;
    for (const frame of frames) {
      const key = `${frame.function}\n${frame.file}`;
      if (!at.children.has(key)) at.children.set(key, node(frame.function, frame, at));
      at = at.children.get(key);
      at.samples += samples;
      at.lines.set(frame.line, (at.lines.get(frame.line) ?? 0) + samples);
    }
    at.self += samples;
  }
  return root;
}

const node = (name, frame, parent) => ({ name, file: frame.file, lines: new Map(), samples: 0, self: 0, children: new Map(), parent, depth: parent ? parent.depth + 1 : 0 });

/** Functions by the samples in which they were the innermost, and in which they were at all. */
export function hottest(stacks) {
  const all = new Map();
  for (const { frames, samples } of stacks) {
    const seen = new Set();
    frames.forEach((frame, index) => {
      const key = `${frame.function}\n${frame.file}`;
      if (!all.has(key)) all.set(key, { key, name: frame.function, file: frame.file, self: 0, total: 0 });
      const entry = all.get(key);
      if (index === frames.length - 1) entry.self += samples;
      if (!seen.has(key)) entry.total += samples;
      seen.add(key);
    });
  }
  return [...all.values()].sort((a, b) => b.self - a.self);
}

/** The number of outermost frames that all stacks have in common: the way from the process to the mailbox. */
function sharedFrames(stacks) {
  if (stacks.length < 2) return 0;
  const [first, ...others] = stacks.map((stack) => stack.frames);
  const differs = (frame, index) => others.some((frames) => frames[index]?.function !== frame.function || frames[index]?.file !== frame.file);
  const found = first.findIndex(differs);
  return found === -1 ? first.length : found;
}

export class Flame {
  constructor() {
    this.drawing = s("svg", { class: "flame", role: "tree", "aria-label": "Flame graph" });
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.plot = h("div", { class: "plot" }, this.drawing);
    const legend = h("ul", { class: "legend" }, [["own", "your code"], ["engine", "Penstock"], ["library", "libraries"]].map(([name, label]) => h("li", null, h("i", { class: `swatch fill-${name}` }), label)));
    this.element = h("figure", { class: "chart" }, h("figcaption", null, h("h3", null, "Flame graph"), legend), this.readout, this.plot);
    this.stop = onWidth(this.plot, (width) => {
      this.width = width;
      this.#draw();
    });
    this.drawing.addEventListener("keydown", (event) => this.#onKey(event));
  }

  set(stacks) {
    const hidden = Math.max(sharedFrames(stacks) - 1, 0);
    this.root = this.focus = treeOf(stacks.map(({ frames, samples }) => ({ frames: frames.slice(hidden), samples })));
    this.hidden = hidden;
    this.#say(this.root);
    this.#draw();
  }

  zoom(target) {
    this.focus = target;
    this.#say(target);
    this.#draw(target);
  }

  #draw(focused = null) {
    if (!this.root || !this.width) return;
    this.boxes = new Map();
    let deepest = 0;
    const scale = this.width / Math.max(this.focus.samples, 1);
    const boxes = [];
    const place = (at, x) => {
      const width = at.samples * scale;
      if (width < WIDTH_PX_MIN) return;
      deepest = Math.max(deepest, at.depth);
      boxes.push(this.#box(at, x, width));
      let next = x;
      for (const child of at.children.values()) {
        place(child, next);
        next += child.samples * scale;
      }
    };
    for (let above = this.focus.parent; above; above = above.parent) boxes.push(this.#box(above, 0, this.width));
    place(this.focus, 0);
    this.drawing.setAttribute("viewBox", `0 0 ${this.width} ${(deepest + 1) * ROW_PX}`);
    this.drawing.setAttribute("height", (deepest + 1) * ROW_PX);
    replace(this.drawing, boxes);
    const entry = this.boxes.get(focused ?? this.focus);
    entry?.setAttribute("tabindex", "0");
    if (focused) entry?.focus();
  }

  #box(at, x, width) {
    const y = at.depth * ROW_PX;
    const room = Math.floor((width - 6) / CHARACTER_PX);
    const label = room < 3 ? "" : at.name.length > room ? `${at.name.slice(0, room - 1)}…` : at.name;
    const rect = s("rect", { class: `fill-${at.parent ? ownerOf(at.file) : "root"}`, x: x.toFixed(1), y, width: Math.max(width - 0.6, 0.8).toFixed(1), height: ROW_PX - 1, rx: 1.5 });
    const box = s("g", {
      class: "frame", role: "treeitem", tabindex: -1, "aria-level": at.depth + 1, "aria-label": this.#words(at),
      click: () => this.zoom(at), pointerenter: () => this.#say(at), focus: () => this.#say(at),
    }, rect, label && s("text", { class: `on-${at.parent ? ownerOf(at.file) : "root"}`, x: (x + 4).toFixed(1), y: y + 13 }, label));
    this.boxes.set(at, box);
    return box;
  }

  #words(at) {
    const share = `${plural(at.samples, "sample")}, ${percent(at.samples / Math.max(this.root.samples, 1))}`;
    if (!at.parent) return `all: ${share}${this.hidden ? `; the ${plural(this.hidden, "outermost call")}, the same in all of them, left out` : ""}`;
    const [line] = [...at.lines.entries()].sort((a, b) => b[1] - a[1])[0] ?? [0];
    return `${at.name} (${at.file}:${line}): ${share}`;
  }

  #say(at) {
    setText(this.readout, this.#words(at));
  }

  #onKey(event) {
    const at = [...this.boxes].find(([, box]) => box === document.activeElement)?.[0];
    if (!at) return;
    const siblings = at.parent ? [...at.parent.children.values()].filter((each) => this.boxes.has(each)) : [at];
    const beside = siblings.indexOf(at);
    const targets = {
      ArrowUp: at.parent,
      ArrowDown: [...at.children.values()].filter((each) => this.boxes.has(each)).sort((a, b) => b.samples - a.samples)[0],
      ArrowLeft: siblings[beside - 1],
      ArrowRight: siblings[beside + 1],
    };
    if (event.key === "Enter" || event.key === " ") this.zoom(at);
    else if (event.key === "Escape") this.zoom(this.root);
    else if (event.key in targets) this.#move(at, targets[event.key]);
    else return;
    event.preventDefault();
  }

  #move(from, to) {
    if (!to || !this.boxes.has(to)) return;
    this.boxes.get(from).setAttribute("tabindex", "-1");
    this.boxes.get(to).setAttribute("tabindex", "0");
    this.boxes.get(to).focus();
  }
}
