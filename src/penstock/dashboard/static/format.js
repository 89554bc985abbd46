// Figures as text. An absent figure is a dash everywhere, and never a zero.

export const NONE = "–";

const absent = (value) => value === null || value === undefined || Number.isNaN(value);

// Formatters are made once: making one for each figure is most of the cost of ten thousand of them.
const DIGITS = [0, 1, 2].map((digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits }));

function significant(value) {
  const size = Math.abs(value);
  return DIGITS[size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2].format(value);
}

function scaled(value, units, step) {
  let [index, rest] = [0, value];
  while (Math.abs(rest) >= step && index < units.length - 1) [index, rest] = [index + 1, rest / step];
  return `${significant(rest)}${units[index]}`;
}

export const whole = (value) => (absent(value) ? NONE : DIGITS[0].format(Math.round(value)));
export const count = (value) =>
  absent(value) ? NONE : Math.abs(value) < 10_000 ? whole(value) : scaled(value, ["", " k", " M", " G", " T"], 1000);
export const rate = (value) => (absent(value) ? NONE : `${value > 0 && value < 10 ? significant(value) : count(value)}/s`);
export const bytes = (value) => (absent(value) ? NONE : scaled(Math.round(value), [" B", " KiB", " MiB", " GiB", " TiB"], 1024));
export const percent = (share) => (absent(share) ? NONE : `${Math.round(share * 100)} %`);
export const ratio = (value) => (absent(value) ? NONE : `${significant(value)}×`);

/** A duration in milliseconds with at most two units. */
export function duration(ms) {
  if (absent(ms)) return NONE;
  const sign = ms < 0 ? "−" : "";
  const size = Math.abs(ms);
  if (size < 1000) return `${sign}${significant(size >= 10 ? Math.round(size) : size)} ms`;
  const seconds = size / 1000;
  if (seconds < 60) return `${sign}${significant(seconds)} s`;
  const pairs = [["d", 86_400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];
  const [large, largeSeconds, small, smallSeconds] = pairs.find((pair) => seconds >= pair[1]);
  const rest = Math.floor((seconds % largeSeconds) / smallSeconds);
  return `${sign}${whole(Math.floor(seconds / largeSeconds))} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

/** An age in whole seconds, so that it does not flicker. */
export const age = (ms) => (absent(ms) ? NONE : ms < 1000 ? "now" : `${duration(Math.floor(ms / 1000) * 1000)} ago`);

const two = (number) => String(number).padStart(2, "0");

/** A time of day of this browser's time zone, with the date if that is not today. */
export function clock(ms) {
  if (absent(ms)) return NONE;
  const moment = new Date(ms);
  if (Number.isNaN(moment.getTime())) return NONE;
  const date = isoDate(moment);
  return date === isoDate(new Date()) ? isoTime(moment) : `${date} ${isoTime(moment)}`;
}

export function isoDate(moment) {
  return `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
}

export function isoTime(moment) {
  return `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}`;
}

/** A text of the server as a sentence, so that another one can follow it. */
export const sentence = (text) => (/[.!?…:]$/.test(text.trim()) ? text.trim() : `${text.trim()}.`);

export function plural(number, one, many = `${one}s`) {
  return `${whole(number)} ${number === 1 ? one : many}`;
}
