/**
 * Frame of a picture: title, explanation, formula, and the buttons for its table of numbers and its files (SVG, PNG, CSV,
 * JSON).
 *
 * @import { Picture, Table } from "./types.js"
 */

import { button, fill, h } from "./dom.js";
import { paintScene, sceneElement } from "./scene.js";
import { compact } from "./text.js";

const MAX_ROWS = 400;
const MAX_COLUMNS = 60;

/**
 * Return the HTML table of a table of numbers; a large one is cut, with a note.
 * @param {Table} table
 */
export function tableElement({ header, rows }) {
  const columns = Math.min(header.length, MAX_COLUMNS);
  const head = h("thead", {}, h("tr", {}, ...header.slice(0, columns).map((name, i) =>
    h("th", { scope: "col", class: i > 0 && typeof rows[0]?.[i] === "number" ? "number" : "" }, name))));
  const body = h("tbody", {}, ...rows.slice(0, MAX_ROWS).map((row) => h("tr", {}, ...row.slice(0, columns).map(cell))));
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

/**
 * Return a table as CSV (RFC 4180): fields with a comma, a quote or a line end are quoted.
 * @param {Table} table
 */
export function toCsv({ header, rows }) {
  return [header, ...rows].map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n";
}

/** @param {string | number | null} value */
function csvField(value) {
  const text = value === null ? "" : String(value);
  return /[",\r\n]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
}

/**
 * Save a file in the browser's downloads.
 * @param {string} name
 * @param {Blob} blob
 */
export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * Save a picture in one format.
 * @param {Picture} picture
 * @param {string} format "svg", "png", "csv" or "json"
 */
async function savePicture(picture, format) {
  const save = (/** @type {BlobPart} */ content, /** @type {string} */ type) => download(`${picture.name}.${format}`, new Blob([content], { type }));
  if (format === "csv") save(toCsv(picture.table()), "text/csv");
  if (format === "json") save(JSON.stringify(picture.data(), null, 1), "application/json");
  const scene = format === "svg" || format === "png" ? picture.scene?.() : null;
  if (!scene) return;
  if (format === "svg") save(new XMLSerializer().serializeToString(sceneElement(scene)), "image/svg+xml");
  else save(await scenePng(scene), "image/png");
}

/** Return a scene as PNG, at twice its size unless it is very large. @param {import("./scene.js").Scene} scene */
function scenePng(scene) {
  const scale = Math.min(2, 8192 / Math.max(scene.width, scene.height));
  const canvas = new OffscreenCanvas(Math.ceil(scene.width * scale), Math.ceil(scene.height * scale));
  const context = /** @type {OffscreenCanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(scale, scale);
  paintScene(context, scene);
  return canvas.convertToBlob();
}

/**
 * Create a card with a title. Its buttons show `picture` as a table and save it; null leaves the buttons out.
 * @param {{title: string, explanation?: string, formula?: string, picture?: (() => Picture | null) | null}} options
 * @param {...(Node | null)} children
 */
export function frame({ title: name, explanation, formula, picture }, ...children) {
  const body = h("div", { class: "frame-body" }, ...children);
  const alternative = h("div", { class: "alternative", hidden: true });
  const tools = h("div", { class: "tools" });
  const title = h("h2", {}, name);
  const heading = h("div", { class: "frame-heading" }, title, tools);
  const about = explanation
    ? h("p", { class: "about" }, explanation, formula ? " " : null, formula ? h("span", { class: "formula" }, formula) : null)
    : null;
  const element = h("section", { class: "card frame", "aria-label": name }, heading, about, body, alternative);

  const toggle = button("table", () => {
    alternative.hidden = !alternative.hidden;
    body.hidden = !alternative.hidden;
    toggle.setAttribute("aria-pressed", String(!alternative.hidden));
    refresh();
  }, { class: "quiet tool", "aria-pressed": "false", title: "Show the numbers as a table" });

  /** Update the table if it is visible. */
  function refresh() {
    if (alternative.hidden) return;
    const shown = picture?.();
    fill(alternative, shown ? tableElement(shown.table()) : h("p", { class: "empty" }, "There is no data yet."));
  }

  if (picture) tools.append(toggle, saveMenu(picture));
  const explain = (/** @type {string} */ text) => about?.firstChild?.replaceWith(text);
  return { element, title, body, tools, refresh, explain };
}

/** @param {() => Picture | null} picture */
function saveMenu(picture) {
  const save = (/** @type {string} */ format) => {
    const shown = picture();
    if (shown) void savePicture(shown, format);
    menu.open = false;
  };
  const buttons = ["svg", "png", "csv", "json"].map((format) => button(format.toUpperCase(), () => save(format), { "data-format": format }));
  const menu = h("details", {
    class: "menu tool", ontoggle: () => buttons.slice(0, 2).forEach((one) => { one.hidden = !picture()?.scene; }), onfocusout: ({ relatedTarget }) => { if (!menu.contains(relatedTarget)) menu.open = false; },
    onkeydown: ({ key }) => { if (key === "Escape") menu.open = false; },
  }, h("summary", { class: "quiet", title: "Save what is shown" }, "save"), h("div", { class: "menu-items" }, ...buttons));
  return menu;
}
