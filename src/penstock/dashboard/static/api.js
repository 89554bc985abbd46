// Requests to the server that sent the page. Addresses are relative: the page also works behind a proxy with a prefix.

const BASE = "api/v1/";
const TOKEN = "penstock.token";

export class Refused extends Error {
  /** `cure` names the way out, in the words of the server; it may be empty. */
  constructor(status, error, cure) {
    super(error);
    [this.status, this.cure] = [status, cure];
  }
}

let clockOffsetMs = 0;

/** The server's clock: ages must be right on a laptop whose clock is not. */
export const now = () => Date.now() + clockOffsetMs;

export const token = {
  // The token lives as long as the tab. localStorage would keep it on disk.
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  drop: () => sessionStorage.removeItem(TOKEN),
};

export const get = (path, signal) => request(path, { signal });
export const post = (path, body) =>
  request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body ?? {}) });

async function request(path, options) {
  const headers = { Accept: "application/json", ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  let response;
  try {
    response = await fetch(BASE + path, { cache: "no-store", credentials: "same-origin", ...options, headers });
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new Refused(0, "The server does not answer.", "The pipeline's driver may have ended; the page tries again.");
  }
  noteClock(response.headers.get("Date"));
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  throw new Refused(response.status, body.error ?? `The server answered ${response.status}.`, body.cure ?? "");
}

function noteClock(date) {
  const server = Date.parse(date ?? "");
  if (Number.isNaN(server)) return;
  // The header has whole seconds. A difference below two of them may be rounding.
  const offset = server + 500 - Date.now();
  clockOffsetMs = Math.abs(offset) > 2000 ? offset : 0;
}

/**
 * Asks for `path` now, every `every` milliseconds and on demand, one request at a time. A failure is shown above
 * `panel`'s content with its cure, and goes away with the next answer.
 */
export class Feed {
  constructor(panel, path, { every = 0, problem }, render) {
    Object.assign(this, { path, render, problem, panel });
    this.isBusy = this.isAsked = this.isStopped = false;
    this.timer = every ? setInterval(() => document.hidden || this.now(), every) : null;
    this.now();
  }

  async now() {
    if (this.isBusy) return void (this.isAsked = true);
    this.isBusy = true;
    const asked = this.path;
    try {
      const answer = await get(asked);
      if (!this.isStopped && asked === this.path) {
        this.problem.hide();
        this.render(answer);
      }
    } catch (failure) {
      if (!this.isStopped && asked === this.path) this.problem.show(failure);
    }
    this.isBusy = false;
    if (this.isAsked && !this.isStopped) {
      this.isAsked = false;
      this.now();
    }
  }

  stop() {
    this.isStopped = true;
    clearInterval(this.timer);
  }
}
