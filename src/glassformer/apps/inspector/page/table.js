/**
 * Tables of numbers: the text alternative of each picture.
 *
 * @import { Table } from "./types.js"
 */

import { h } from "./dom.js";
import { compact } from "./text.js";

const MAX_ROWS = 400;
const MAX_COLUMNS = 60;

/**
 * Return the HTML table of a table of numbers; a large one is cut, with a note.
 * @param {Table} table
 * @returns {HTMLElement}
 */
export function tableElement({ header, rows }) {
  const columns = Math.min(header.length, MAX_COLUMNS);
  const head = h("thead", {}, h("tr", {}, ...header.slice(0, columns).map((name, i) =>
    h("th", { scope: "col", class: i > 0 && typeof rows[0]?.[i] === "number" ? "number" : "" }, name))));
  const body = h("tbody");
  for (const row of rows.slice(0, MAX_ROWS)) {
    body.append(h("tr", {}, ...row.slice(0, columns).map((value, i) => cell(value, i))));
  }
  const isCut = rows.length > MAX_ROWS || header.length > columns;
  const note = `Part of the table: ${Math.min(rows.length, MAX_ROWS)} of ${rows.length} rows, ${columns} of ${header.length} columns. ` +
    "Save CSV for all.";
  return h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Table" },
    h("table", {}, head, body), isCut ? h("p", { class: "about" }, note) : null);
}

/** @param {string | number | null} value @param {number} column */
function cell(value, column) {
  const text = typeof value === "number" ? compact(value) : value ?? "–";
  if (column === 0) return h("th", { scope: "row" }, text);
  return h("td", { class: typeof value === "number" ? "number" : "" }, text);
}
