// The stream of events. A connection that breaks, or is silent although the server sends every second, is opened again.

const NAMES = ["overview", "graph", "checkpoint", "recovery"];
const SILENCE_MS = 10_000;
const DELAY_MS_MAX = 10_000;
// Browsers open about six connections to a server, over all tabs. One that nobody looks at gives its own back.
const HIDDEN_MS = 30_000;

export class Live extends EventTarget {
  constructor(address) {
    super();
    this.address = address;
    this.failures = 0;
    this.disconnectedAt = null;
    this.isPaused = false;
    document.addEventListener("visibilitychange", () => this.#onVisibility());
  }

  get isConnected() {
    return this.source?.readyState === EventSource.OPEN && this.disconnectedAt === null;
  }

  open() {
    clearTimeout(this.retry);
    this.source?.close();
    const source = (this.source = new EventSource(this.address));
    source.onopen = () => this.#onOpen();
    source.onerror = () => this.#onLost();
    for (const name of NAMES) source.addEventListener(name, (event) => this.#onEvent(name, event.data));
    this.#watch();
  }

  #onOpen() {
    this.failures = 0;
    this.disconnectedAt = null;
    this.isPaused = false;
    this.#watch();
    this.dispatchEvent(new Event("connected"));
  }

  #onEvent(name, data) {
    this.#watch();
    let detail;
    try {
      detail = JSON.parse(data);
    } catch {
      console.warn(`the event ${name} is no JSON and is left out`);
      return;
    }
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #onLost() {
    this.source.close();
    clearTimeout(this.silence);
    this.disconnectedAt ??= Date.now();
    const delay = Math.min(1000 * 2 ** this.failures++, DELAY_MS_MAX);
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.open(), delay);
    this.dispatchEvent(new Event("disconnected"));
  }

  /** A laptop that slept, or a proxy that gave up, leaves a connection that is open and dead. */
  #watch() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.#onLost(), SILENCE_MS);
  }

  #onVisibility() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.#pause(), HIDDEN_MS);
    else if (this.isPaused) this.open();
  }

  #pause() {
    this.isPaused = true;
    clearTimeout(this.retry);
    clearTimeout(this.silence);
    this.source.close();
  }
}
