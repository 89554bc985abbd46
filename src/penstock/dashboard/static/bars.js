// Bars inside cards and cells. Widths are set through the object model, which the content security policy allows.

import { h, setAttribute } from "./dom.js";
import { duration, percent } from "./format.js";

/** A bar of parts that together are at most the whole. `parts`: [class, share of the whole, words]. */
export class Stack {
  constructor(classes) {
    this.parts = classes.map((name) => h("span", { class: `part fill-${name}` }));
    this.element = h("span", { class: "stack", role: "img" }, this.parts);
  }

  set(shares, words) {
    shares.forEach((share, index) => setWidth(this.parts[index], share ?? 0));
    setAttribute(this.element, "aria-label", words);
    setAttribute(this.element, "title", words);
  }
}

export const LOAD = ["busy", "backpressured", "idle"];

export function loadWords({ busy, backpressured, idle }) {
  return `busy ${percent(busy)}, backpressured ${percent(backpressured)}, idle ${percent(idle)}`;
}

export function loadStack() {
  const stack = new Stack(LOAD);
  return { element: stack.element, set: (load) => stack.set(LOAD.map((name) => load[name]), loadWords(load)) };
}

/** A number with a bar behind it that shows its share of the largest one. */
export class Meter {
  constructor(kind = "plain") {
    this.bar = h("span", { class: `meter-bar fill-${kind}` });
    this.text = h("span", { class: "meter-text" });
    this.element = h("span", { class: "meter" }, this.bar, this.text);
  }

  set(text, share, isHigh = false) {
    if (this.text.textContent !== text) this.text.textContent = text;
    setWidth(this.bar, share ?? 0);
    this.element.classList.toggle("high", isHigh);
  }
}

/** Parts along a time axis: each has an offset and a length in milliseconds. */
export class Waterfall {
  constructor(names) {
    this.names = names;
    this.parts = names.map((name) => h("span", { class: `part fill-${name}` }));
    this.element = h("span", { class: "waterfall", role: "img" }, this.parts);
  }

  set(lengths, wholeMs, labels) {
    let offset = 0;
    lengths.forEach((ms, index) => {
      this.parts[index].style.left = `${clamp((offset / wholeMs) * 100)}%`;
      setWidth(this.parts[index], (ms ?? 0) / wholeMs);
      offset += ms ?? 0;
    });
    const words = lengths.map((ms, index) => `${labels[index]} ${duration(ms)}`).join(", ");
    setAttribute(this.element, "aria-label", words);
    setAttribute(this.element, "title", words);
  }
}

const clamp = (value) => (Number.isFinite(value) ? Math.min(Math.max(value, 0), 100) : 0);

export function setWidth(element, share) {
  const width = `${clamp(share * 100).toFixed(2)}%`;
  if (element.style.width !== width) element.style.width = width;
}
