// A failed request, shown where its answer would be, with its cure.

import { h, replace } from "./dom.js";
import { sentence } from "./format.js";

export class Problem {
  constructor() {
    this.element = h("div", { class: "problem", role: "alert", hidden: true });
  }

  show(failure) {
    const isSame = this.element.dataset.text === failure.message && !this.element.hidden;
    if (isSame) return;
    this.element.dataset.text = failure.message;
    replace(this.element, h("strong", null, sentence(failure.message)), failure.cure ? h("span", null, ` ${failure.cure}`) : null);
    this.element.hidden = false;
  }

  hide() {
    this.element.hidden = true;
  }
}
