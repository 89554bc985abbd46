// A table of any length: only the rows that can be seen are in the document.

import { h, replace, setAttribute } from "./dom.js";

const ROW_PX = 30;
const SPARE_ROWS = 8;

/**
 * `columns`: {title, width in rem, text(row) or cell(row) with an updater, sort(row), isNumber}. The first column is the
 * header of its row. `open(row)` makes the row a way to its details. `onEnd` is called near the end of the rows.
 */
export class Table {
  constructor({ label, columns, key, open = null, openLabel = null, onEnd = null, empty = "nothing yet" }) {
    Object.assign(this, { columns, key, open, openLabel, onEnd, label });
    this.rows = [];
    this.shown = new Map();
    this.sorting = null;
    this.current = null;
    this.above = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: columns.length }));
    this.below = h("tr", { class: "spacer", "aria-hidden": "true" }, h("td", { colspan: columns.length }));
    this.heads = columns.map((column, index) => this.#head(column, index));
    this.body = h("tbody", null, this.above, this.below);
    this.table = h("table", null, h("caption", { class: "hidden" }, label), this.#widths(), h("thead", null, h("tr", { "aria-rowindex": 1 }, this.heads)), this.body);
    this.nothing = h("p", { class: "quiet empty" }, empty);
    this.element = h("div", { class: "table", role: "region", "aria-label": label, tabindex: 0, scroll: () => this.#plan() }, this.table, this.nothing);
    new ResizeObserver(() => this.#plan()).observe(this.element);
  }

  setRows(rows) {
    this.rows = this.sorting ? sorted(rows, this.sorting) : rows;
    this.nothing.hidden = rows.length > 0;
    setAttribute(this.table, "aria-rowcount", rows.length + 1);
    this.#draw();
  }

  /** Marks the row whose details are open. */
  setCurrent(key) {
    this.current = key;
    for (const [shown, row] of this.shown) setAttribute(row.element, "aria-current", shown === key ? "true" : null);
  }

  #widths() {
    const total = this.columns.reduce((sum, column) => sum + column.width, 0);
    const columns = this.columns.map((column) => {
      const element = h("col", null);
      element.style.width = `${((column.width / total) * 100).toFixed(2)}%`;
      return element;
    });
    this.total = total;
    queueMicrotask(() => (this.table.style.minWidth = `${total}rem`));
    return h("colgroup", null, columns);
  }

  #head(column, index) {
    const kind = column.isNumber ? "number" : null;
    if (!column.sort) return h("th", { scope: "col", class: kind }, column.title);
    const sort = h("button", { type: "button", class: "sort", click: () => this.#sortBy(index) }, column.title);
    return h("th", { scope: "col", class: kind }, sort);
  }

  #sortBy(index) {
    const column = this.columns[index];
    const first = column.isNumber ? "descending" : "ascending";
    const second = column.isNumber ? "ascending" : "descending";
    const last = this.sorting?.column === column ? this.sorting.order : null;
    this.sorting = { column, order: last === first ? second : first };
    this.heads.forEach((head, at) => setAttribute(head, "aria-sort", at === index ? this.sorting.order : null));
    this.setRows(this.rows);
  }

  #plan() {
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => {
      this.planned = null;
      this.#draw();
    });
  }

  #draw() {
    const head = this.table.tHead.offsetHeight;
    const visible = Math.ceil(this.element.clientHeight / ROW_PX);
    const from = Math.max(0, Math.floor((this.element.scrollTop - head) / ROW_PX) - SPARE_ROWS);
    const to = Math.min(this.rows.length, from + visible + 2 * SPARE_ROWS);
    const wanted = this.rows.slice(from, to);
    const keys = new Set(wanted.map(this.key));
    for (const [key, row] of this.shown) if (!keys.has(key)) this.#remove(key, row);
    this.above.style.height = `${from * ROW_PX}px`;
    this.below.style.height = `${(this.rows.length - to) * ROW_PX}px`;
    let last = this.above;
    wanted.forEach((data, index) => (last = this.#place(data, from + index, last)));
    if (this.onEnd && this.rows.length && to > this.rows.length - SPARE_ROWS) this.onEnd();
  }

  #place(data, index, after) {
    const key = this.key(data);
    if (!this.shown.has(key)) this.shown.set(key, this.#row(key));
    const row = this.shown.get(key);
    row.data = data;
    row.updaters.forEach((update) => update(data));
    setAttribute(row.element, "aria-rowindex", index + 2);
    if (after.nextSibling !== row.element) after.after(row.element);
    return row.element;
  }

  #remove(key, row) {
    // Focus in a row that is scrolled away goes to the table, not to the top of the page.
    if (row.element.contains(document.activeElement)) this.element.focus({ preventScroll: true });
    row.element.remove();
    this.shown.delete(key);
  }

  #row(key) {
    const row = { updaters: [] };
    const cells = this.columns.map((column, index) => {
      const content = column.cell ? column.cell() : textCell(column);
      const cell = h(index ? "td" : "th", { scope: index ? null : "row", class: column.isNumber ? "number" : null });
      if (index === 0 && this.open) cell.append(this.#opener(row, content.element));
      else cell.append(content.element);
      row.updaters.push((data) => content.set(data));
      return cell;
    });
    const click = this.open ? (event) => event.target.closest("button, a") || this.open(row.data) : null;
    row.element = h("tr", { class: this.open ? "opens" : null, click, "aria-current": key === this.current ? "true" : null }, cells);
    return row;
  }

  #opener(row, content) {
    const button = h("button", { type: "button", class: "opener", click: () => this.open(row.data) }, content);
    if (this.openLabel) row.updaters.push((data) => setAttribute(button, "aria-label", this.openLabel(data)));
    return button;
  }
}

function textCell(column) {
  const element = h("span", { class: "cut" });
  return {
    element,
    set: (row) => {
      const text = column.text(row);
      if (element.textContent === text) return;
      element.textContent = text;
      if (text.length > 12) element.title = text;
    },
  };
}

function sorted(rows, { column, order }) {
  const sign = order === "ascending" ? 1 : -1;
  const value = (row) => column.sort(row);
  return [...rows].sort((left, right) => {
    const [a, b] = [value(left), value(right)];
    if (a === b) return 0;
    if (a === null || a === undefined) return 1; // Absent figures come last in both directions.
    if (b === null || b === undefined) return -1;
    return a < b ? -sign : sign;
  });
}

/** A short table of two columns: names and texts. */
export function pairs(label, entries) {
  const rows = entries.map(([name, value]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, value)));
  const element = h("table", { class: "pairs" }, h("caption", { class: "hidden" }, label), h("tbody", null, rows));
  return { element, set: (next) => replace(element.tBodies[0], next.map(([name, value]) => h("tr", null, h("th", { scope: "row" }, name), h("td", null, value)))) };
}
