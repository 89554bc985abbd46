// A flame graph of sampled stacks, by operator, outermost frame first. Colour says whose code a frame is: yours, the
// engine's or a library's. Arrow keys walk the tree, Enter makes a frame the whole width, Escape goes back.

import { h, onWidth, replace, s, setAttribute, setText } from "./dom.js";
import { percent, plural } from "./format.js";

const ROW_PX = 19;
const WIDTH_PX_MIN = 1.5;
const CHARACTER_PX = 6.7;
const MAILBOX = "mailbox (no operator)";
const CLASS = { user: "own", penstock: "engine", library: "library" };

const keyOf = (frame) => `${frame.function}\n${frame.file}`;

/** Stacks become a tree: {name, samples, children, parent, depth}; below the root it has a node for each operator. */
export function treeOf(stacks) {
  const root = node("all", {}, null);
  for (const { operator, frames, samples } of stacks) {
    root.samples += samples;
    let at = child(root, `operator\n${operator ?? ""}`, operator ?? MAILBOX, { isOperator: true }, samples);
    for (const frame of frames) {
      at = child(at, keyOf(frame), frame.function, frame, samples);
      at.lines.set(frame.line, (at.lines.get(frame.line) ?? 0) + samples);
    }
    at.self += samples;
  }
  return root;
}

function child(parent, key, name, frame, samples) {
  if (!parent.children.has(key)) parent.children.set(key, node(name, frame, parent));
  const found = parent.children.get(key);
  found.samples += samples;
  return found;
}

const node = (name, frame, parent) => ({
  name, file: frame.file ?? "", folded: frame.folded ?? 0, kind: frame.isOperator ? "operator" : (CLASS[frame.owner] ?? "root"),
  lines: new Map(), samples: 0, self: 0, children: new Map(), parent, depth: parent ? parent.depth + 1 : 0,
});

/** Calls of the engine within the engine become one frame, which has the name of the innermost of them. */
export function folded(frames) {
  const kept = [];
  for (const frame of frames) {
    const before = kept.at(-1);
    if (frame.owner === "penstock" && before?.owner === "penstock") kept[kept.length - 1] = { ...frame, folded: (before.folded ?? 0) + 1 };
    else kept.push(frame);
  }
  return kept;
}

/** Functions by the samples in which they were the innermost, and in which they were at all. */
export function hottest(stacks) {
  const all = new Map();
  for (const { frames, samples } of stacks) {
    const seen = new Set();
    frames.forEach((frame, index) => {
      const key = keyOf(frame);
      if (!all.has(key)) all.set(key, { key, name: frame.function, file: frame.file, owner: frame.owner, self: 0, total: 0 });
      const entry = all.get(key);
      if (index === frames.length - 1) entry.self += samples;
      if (!seen.has(key)) entry.total += samples;
      seen.add(key);
    });
  }
  return [...all.values()].sort((a, b) => b.self - a.self);
}

/** Whether a function or a file has the text that is looked for. */
export const matches = (text, { name, file }) => text !== "" && `${name}\n${file}`.toLowerCase().includes(text.toLowerCase());

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
    this.isFolded = true;
    this.wanted = "";
    this.drawing = s("svg", { class: "flame", role: "tree", "aria-label": "Flame graph" });
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.plot = h("div", { class: "plot" }, this.drawing);
    const legend = h("ul", { class: "legend" }, [["own", "your code"], ["engine", "Penstock"], ["library", "libraries"], ["operator", "operators"]].map(([name, label]) => h("li", null, h("i", { class: `swatch fill-${name}` }), label)));
    this.element = h("figure", { class: "chart" }, h("figcaption", null, h("h3", null, "Flame graph"), legend), this.readout, this.plot);
    this.stop = onWidth(this.plot, (width) => {
      this.width = width;
      this.#draw();
    });
    this.drawing.addEventListener("keydown", (event) => this.#onKey(event));
  }

  set(stacks) {
    this.stacks = stacks;
    this.#build();
  }

  /** Whether calls within Penstock are one frame. */
  setFolded(isFolded) {
    this.isFolded = isFolded;
    this.#build();
  }

  /** Marks the frames with this text; returns the share of samples that have one of them. */
  find(text) {
    this.wanted = text;
    this.#mark();
    const found = this.stacks.filter(({ frames }) => frames.some((frame) => matches(text, { name: frame.function, file: frame.file })));
    return found.reduce((sum, stack) => sum + stack.samples, 0) / Math.max(this.root.samples, 1);
  }

  #build() {
    if (!this.stacks) return;
    this.hidden = this.isFolded ? 0 : Math.max(sharedFrames(this.stacks) - 1, 0);
    const shown = this.stacks.map((stack) => ({ ...stack, frames: this.isFolded ? folded(stack.frames) : stack.frames.slice(this.hidden) }));
    this.root = this.focus = treeOf(shown);
    this.#say(this.root);
    this.#draw();
  }

  #mark() {
    for (const [at, box] of this.boxes ?? []) setAttribute(box, "class", this.#classOf(at));
  }

  #classOf(at) {
    if (!this.wanted) return "frame";
    return matches(this.wanted, at) ? "frame found" : "frame faded";
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
    const name = at.folded ? `… ${at.name}` : at.name;
    const label = room < 3 ? "" : name.length > room ? `${name.slice(0, room - 1)}…` : name;
    const rect = s("rect", { class: `fill-${at.kind}`, x: x.toFixed(1), y, width: Math.max(width - 0.6, 0.8).toFixed(1), height: ROW_PX - 1, rx: 1.5 });
    const box = s("g", {
      class: this.#classOf(at), role: "treeitem", tabindex: -1, "aria-level": at.depth + 1, "aria-label": this.#words(at),
      click: () => this.zoom(at), pointerenter: () => this.#say(at), focus: () => this.#say(at),
    }, rect, label && s("text", { class: `on-${at.kind}`, x: (x + 4).toFixed(1), y: y + 13 }, label));
    this.boxes.set(at, box);
    return box;
  }

  #words(at) {
    const share = `${plural(at.samples, "sample")}, ${percent(at.samples / Math.max(this.root.samples, 1))}`;
    if (!at.parent) return `all: ${share}${this.hidden ? `; the ${plural(this.hidden, "outermost call")}, the same in all of them, left out` : ""}`;
    if (at.kind === "operator") return `${at.name === MAILBOX ? at.name : `operator ${at.name}`}: ${share}`;
    const itself = at.self ? `; ${percent(at.self / this.root.samples)} in itself` : "";
    const calls = at.folded ? `; ${plural(at.folded, "call")} of Penstock folded into it` : "";
    const [line] = [...at.lines.entries()].sort((a, b) => b[1] - a[1])[0] ?? [0];
    return `${at.name} (${at.file}:${line}): ${share}${itself}${calls}`;
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
