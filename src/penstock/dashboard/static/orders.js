// Orders to the pipeline: savepoint, drain, stop. They need the token; without it the page only reads.

import { get, post, Refused, token } from "./api.js";
import { h, replace, setText } from "./dom.js";
import { sentence } from "./format.js";

const ORDERS = {
  savepoints: { label: "Take a savepoint", words: "A checkpoint that is kept until somebody deletes it. The pipeline goes on.", done: "Savepoint ordered; it appears among the checkpoints." },
  drain: { label: "Drain", words: "Sources end, windows are emitted, and the pipeline finishes. It cannot go on from there.", done: "Drain ordered; the pipeline finishes." },
  stop: { label: "Stop with a savepoint", words: "The pipeline takes a savepoint and ends. A new start goes on from it.", done: "Stop ordered; the pipeline takes its last savepoint." },
};

export class Orders {
  constructor(page) {
    this.page = page;
    this.isAllowed = false;
    this.state = h("p", { class: "quiet" });
    this.answer = h("p", { class: "problem", role: "alert", hidden: true });
    this.field = h("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false" });
    this.buttons = Object.keys(ORDERS).map((name) => this.#order(name));
    this.dialog = this.#dialog();
    document.body.append(this.dialog);
    document.getElementById("orders").addEventListener("click", () => this.open());
    this.setAllowed(false);
  }

  setAllowed(isAllowed) {
    this.isAllowed = isAllowed;
    const words = isAllowed ? "The token is accepted: orders are allowed." : token.get() ? "The token is not accepted. The page only reads." : "No token: the page only reads.";
    setText(this.state, words);
    setText(document.getElementById("orders"), isAllowed ? "Orders…" : "Orders… (read-only)");
  }

  open() {
    this.answer.hidden = true;
    this.dialog.showModal();
    if (!this.isAllowed) this.field.focus();
  }

  /** Sends an order. A refusal is said in the dialog, where the token can be entered. */
  async send(name) {
    try {
      await post(name);
      this.dialog.close();
      this.page.say(ORDERS[name].done, "good");
    } catch (failure) {
      if (!this.dialog.open) this.dialog.showModal();
      this.#refuse(failure);
    }
  }

  #refuse(failure) {
    if (failure instanceof Refused && failure.status === 403) this.setAllowed(false);
    replace(this.answer, h("strong", null, sentence(`Refused: ${failure.message}`)), failure.cure ? ` ${failure.cure}` : null);
    this.answer.hidden = false;
  }

  async #enter(event) {
    event.preventDefault();
    const entered = this.field.value.trim();
    if (entered) token.set(entered);
    else token.drop();
    this.field.value = "";
    this.answer.hidden = true;
    try {
      this.setAllowed((await get("overview")).orders_allowed);
    } catch (failure) {
      this.#refuse(failure);
    }
    if (entered && !this.isAllowed) token.drop();
  }

  #order(name) {
    const { label, words } = ORDERS[name];
    const button = h("button", { type: "button", class: name === "savepoints" ? "primary" : "danger", "aria-describedby": `order-${name}`, click: () => this.send(name) }, label);
    return h("div", { class: "order" }, button, h("p", { id: `order-${name}`, class: "quiet" }, words));
  }

  #dialog() {
    const form = h("form", { class: "token", submit: (event) => this.#enter(event) },
      h("label", { for: "token" }, "Token"), this.field, h("button", { type: "submit" }, "Use this token"));
    const where = h("p", { class: "quiet" }, "The start of the pipeline has printed the token; it is also in the checkpoint directory. This tab forgets it when it is closed.");
    return h("dialog", { class: "orders", "aria-labelledby": "orders-title" },
      h("h2", { id: "orders-title" }, "Orders"), this.state, form, where, this.answer, this.buttons,
      h("button", { type: "button", class: "close", click: () => this.dialog.close() }, "Close"));
  }
}
