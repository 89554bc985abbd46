// The page: views as tabs, one stream of events for all of them, and the address of each view in the fragment.

import { get, Refused } from "./api.js";
import { h, replace, setAttribute } from "./dom.js";
import { Header } from "./header.js";
import { Live } from "./live.js";
import { Orders } from "./orders.js";
import { Problem } from "./problem.js";
import * as graph from "./views/graph.js";

// The first view comes with the page. The others are fetched once it is there, or when one of them is opened.
const VIEWS = {
  graph: { title: "Graph", module: graph },
  checkpoints: { title: "Checkpoints", fetch: () => import("./views/checkpoints.js") },
  watermarks: { title: "Watermarks", fetch: () => import("./views/watermarks.js") },
  state: { title: "State", fetch: () => import("./views/state.js") },
  recovery: { title: "Recovery", fetch: () => import("./views/recovery.js") },
  metrics: { title: "Metrics", fetch: () => import("./views/metrics.js") },
  profiler: { title: "Profiler", fetch: () => import("./views/profiler.js") },
  configuration: { title: "Configuration", fetch: () => import("./views/configuration.js") },
};
const NAMES = Object.keys(VIEWS);
const OTHERS_AFTER_MS = 500;

class Page {
  constructor() {
    this.live = new Live("api/v1/events");
    this.isOpening = true;
    this.overview = null;
    this.graph = null;
    this.panel = document.getElementById("panel");
    this.header = new Header(this);
    this.orders = new Orders(this);
    this.tabs = new Map(NAMES.map((name) => [name, this.#tab(name)]));
  }

  start() {
    replace(document.getElementById("tabs"), [...this.tabs.values()]);
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // The fragment is the address of the view.
      this.panel.focus();
    });
    this.live.addEventListener("overview", ({ detail }) => this.#onOverview(detail));
    this.live.addEventListener("graph", ({ detail }) => this.#tell("graph", (this.graph = detail)));
    this.live.addEventListener("graph", () => setTimeout(() => this.#fetchOthers(), OTHERS_AFTER_MS), { once: true });
    this.live.addEventListener("checkpoint", ({ detail }) => this.#tell("checkpoint", detail));
    this.live.addEventListener("recovery", ({ detail }) => this.#tell("recovery", detail));
    this.live.addEventListener("connected", () => this.#onConnected());
    this.live.addEventListener("disconnected", () => this.#onDisconnected());
    addEventListener("hashchange", () => this.#route());
    setInterval(() => this.#tick(), 1000);
    this.#route();
    this.live.open();
    this.#refresh();
  }

  /** Shows a view; `argument` is the part of it that is open, such as the id of a checkpoint. */
  go(name, argument = null) {
    location.hash = argument === null ? `#/${name}` : `#/${name}/${encodeURIComponent(argument)}`;
  }

  /** A message that goes away by itself; a screen reader says it. */
  say(text, kind = "plain") {
    const message = h("p", { class: `message ${kind}` }, text);
    document.getElementById("messages").append(message);
    setTimeout(() => message.remove(), kind === "bad" ? 15_000 : 6000);
  }

  async #refresh() {
    try {
      this.#onOverview(await get("overview"), true);
    } catch {
      this.header.tick(); // The stream says since when the server does not answer.
    }
  }

  #onDisconnected() {
    this.isOpening = false;
    this.header.tick();
  }

  #onConnected() {
    this.header.tick();
    // As the page opens, everything has just been asked for.
    if (!this.isOpening) {
      this.#refresh();
      this.#tell("connected", null);
    }
    this.isOpening = false;
  }

  /** The stream carries no token, so only an answer to a request of ours knows whether orders are allowed. */
  #onOverview(overview, isAnswer = false) {
    this.overview = overview;
    this.header.set(overview);
    if (isAnswer) this.orders.setAllowed(overview.orders_allowed);
    this.#tell("overview", overview);
  }

  #tell(kind, detail) {
    this.view?.update?.(kind, detail);
  }

  #tick() {
    this.header.tick();
    this.view?.tick?.();
  }

  #route() {
    if (location.hash && !location.hash.startsWith("#/")) return;
    const [wanted, argument] = location.hash.slice(2).split("/");
    const name = wanted in VIEWS ? wanted : NAMES[0];
    const open = argument ? decodeURIComponent(argument) : null;
    if (name === this.name && this.view?.navigate) return this.view.navigate(open);
    this.#mount(name, open);
  }

  #mount(name, argument) {
    this.view?.stop?.();
    for (const [each, tab] of this.tabs) {
      setAttribute(tab, "aria-selected", each === name ? "true" : "false");
      setAttribute(tab, "tabindex", each === name ? 0 : -1);
    }
    setAttribute(this.panel, "aria-labelledby", `tab-${name}`);
    this.tabs.get(name).scrollIntoView({ block: "nearest", inline: "nearest" });
    this.name = name;
    const problem = new Problem();
    const content = h("div", { class: `view view-${name}` });
    replace(this.panel, problem.element, content);
    this.view = null;
    if (VIEWS[name].module) this.view = VIEWS[name].module.mount(content, this, problem, argument);
    else this.#mountFetched(name, content, problem, argument);
  }

  async #mountFetched(name, content, problem, argument) {
    try {
      const module = await this.#fetched(name);
      // Another view may have been opened meanwhile.
      if (content.isConnected) this.view = module.mount(content, this, problem, argument);
    } catch {
      const failure = new Refused(0, "The server does not answer.", "Open the view again when it does, or reload the page.");
      if (content.isConnected) problem.show(failure);
    }
  }

  async #fetched(name) {
    return (VIEWS[name].module ??= await VIEWS[name].fetch());
  }

  /** So that a view opens at once, and also when the driver has ended. */
  #fetchOthers() {
    for (const name of NAMES) this.#fetched(name).catch(() => {}); // Said when the view is opened.
  }

  #tab(name) {
    return h("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", tabindex: -1,
      click: () => this.go(name), keydown: (event) => this.#onTabKey(event, NAMES.indexOf(name)),
    }, VIEWS[name].title);
  }

  #onTabKey(event, at) {
    const last = NAMES.length - 1;
    const wanted = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    this.tabs.get(NAMES[wanted]).focus();
    this.go(NAMES[wanted]);
  }
}

new Page().start();
