/**
 * Attribution: the logit of a token at the selected position as a sum of terms. The baseline is the same term of a
 * random token.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Picture, Table } from "../page/types.js"
 *
 * @typedef {{value: number, mean: number, deviation: number, is_beyond: boolean}} Term
 * @typedef {{
 *   model: string, run: string, token: string, against: string | null, position: number, logit: number, terms: Record<string, Term>, cells: (string | null)[][],
 *   rows: string[], columns: string[],
 * }} Attribution
 */

import { Latest } from "../page/app.js";
import { choice, fill, h, writeField } from "../page/dom.js";
import { frame, tableElement } from "../page/frame.js";
import { Heatmap } from "../page/heatmap.js";
import { positionText, selectedPosition } from "../page/state.js";
import { fixed, signed, visible } from "../page/text.js";

/** @type {Tab} */
export const attributionTab = { id: "attribution", title: "Attribution", create: createAttribution, exists: (model) => model.is_additive, route: "/attribution" };

const N_LARGEST = 12;

/**
 * Return the sums of the terms of each kind of part, in the order of the computation.
 * @param {Record<string, Term>} terms
 * @param {boolean} isRelative without the terms of a random token
 * @returns {[string, number][]}
 */
function sumsOf(terms, isRelative) {
  const kinds = /** @type {[string, (name: string) => boolean][]} */ ([
    ["embedding", (name) => name === "embedding"], ["heads", (name) => name.includes(".head.")], ["biases of attention", (name) => name.endsWith(".attention_bias")],
    ["feed-forwards", (name) => name.endsWith(".feed_forward")], ["output bias", (name) => name === "output_bias"],
  ]);
  return kinds.map(([kind, belongs]) => [kind, Object.entries(terms).filter(([name]) => belongs(name)).reduce((sum, [, { value, mean }]) => sum + value - (isRelative ? mean : 0), 0)]);
}

/**
 * Return the terms as a table, those that differ most from their mean first.
 * @param {Record<string, Term>} terms
 * @returns {Table}
 */
function termTable(terms) {
  const difference = (/** @type {Term} */ { value, mean }) => Math.abs(value - mean);
  const sorted = Object.entries(terms).sort(([, a], [, b]) => difference(b) - difference(a));
  return {
    header: ["part", "term", "random token: mean", "deviation", "beyond"],
    rows: sorted.map(([name, { value, mean, deviation, is_beyond }]) => [name, value, mean, deviation, is_beyond ? "yes" : ""]),
  };
}

/** @param {App} app @returns {Panel} */
function createAttribution(app) {
  const { store } = app;
  /** @param {"answer" | "wrong"} key @param {string} label @param {string} placeholder */
  const field = (key, label, placeholder) => {
    const input = h("input", { type: "text", placeholder, spellcheck: "false", onchange: () => store.set({ [key]: input.value }) });
    return { key, input, element: h("label", { class: "field wide" }, h("span", {}, label), input) };
  };
  const fields = [field("answer", "token, with its leading space", "by default: the prediction"), field("wrong", "minus the logit of", "optional")];
  let isRelative = true;
  const modes = choice("Number", [["1", "term − random token"], ["0", "term"]], (value) => {
    isRelative = value === "1";
    draw();
  });
  const facts = h("p", { class: "detail", "aria-live": "polite" });
  const heat = new Heatmap({ label: "Terms of the logit" });
  const largest = h("div");
  /** @returns {Picture | null} */
  const picture = () => found && { name: "attribution", scene: () => heat.scene("Attribution"), table: () => termTable(found?.terms ?? {}), data: () => found };
  const card = frame({
    title: "Attribution", picture,
    explanation: "Each part adds a vector to the residual stream, and thereby a term to the logit of a token. The terms sum to the logit. A random token is the baseline: the mean of the same term over the vocabulary. Only the difference from the baseline changes a probability. h0: head 0, ff: feed-forward. A term is the direct effect of a part, without its effect on later parts.",
    formula: "logit = Σ terms, term = head(norm(part)), with the scale of the norm fixed",
  }, h("div", { class: "row" }, ...fields.map(({ element }) => element), modes.element), facts, heat.element);
  const table = frame({ title: "Largest terms", explanation: "Terms that differ most from those of a random token. Beyond: the difference is more than 2 standard deviations over the vocabulary.", picture }, largest);
  const latest = new Latest(app, card.body);
  /** @type {Attribution | null} */
  let found = null;

  /** Return the number of a cell; NaN without a part. @param {string | null | undefined} name */
  function shownValue(name) {
    const { value = NaN, mean = NaN } = found?.terms[name ?? ""] ?? {};
    return isRelative ? value - mean : value;
  }

  /** @param {string | null | undefined} name */
  function describe(name) {
    const term = found?.terms[name ?? ""];
    return term ? `${name}: ${signed(term.value)}; random token ${signed(term.mean)} ± ${fixed(term.deviation)}${term.is_beyond ? "; beyond" : ""}` : "";
  }

  function draw() {
    modes.write(isRelative ? "1" : "0");
    if (!found) return;
    const { token, against, position, logit, cells, rows, columns, terms } = found;
    modes.element.hidden = against !== null; // the mean of a difference is 0
    const parts = sumsOf(terms, isRelative);
    const total = parts.reduce((sum, [, one]) => sum + one, 0);
    const sums = parts.map(([kind, sum], i) => `${i && sum >= 0 ? "+ " : ""}${fixed(sum, 2)} ${kind}`);
    facts.textContent = `${against === null ? `logit of ${visible(token)}` : `logit of ${visible(token)} − logit of ${visible(against)}`}, ` +
      `${positionText(store.state, position)}: ${isRelative && against === null ? `${fixed(logit, 2)}, of which ${fixed(total, 2)} more than a random token` : fixed(logit, 2)} = ${sums.join(" ")}`;
    const values = cells.flatMap((row) => row.map(shownValue));
    const limit = Math.max(1e-6, ...values.filter((x) => !Number.isNaN(x)).map(Math.abs));
    heat.update({
      rows: rows.length, columns: columns.length, values, row_labels: rows, column_labels: columns.map((name) => name.replace("feed-forward", "ff").replace("head ", "h")), row_axis: "layer", column_axis: "part", plain_rows: true, plain_columns: true,
      scale: "diverging", range: [-limit, limit], dark: store.state.dark, unit: "logit", cell: [58, 26],
      cell_text: (row, column) => { const x = shownValue(cells[row]?.[column]); return Number.isNaN(x) ? "" : signed(x, 2); },
      describe: (row, column) => describe(cells[row]?.[column]),
    });
    const { header, rows: all } = termTable(terms);
    fill(largest, tableElement({ header, rows: all.slice(0, N_LARGEST) }));
    card.refresh();
    table.refresh();
  }

  function load() {
    const { run, answer, wrong } = store.state;
    if (!run) return;
    const query = { position: selectedPosition(store.state), token: answer || undefined, against: wrong || undefined };
    void latest.use(app.data.json(run, "attribution", query), (value) => {
      found = value;
      draw();
    });
  }

  return {
    element: h("div", { class: "panel" }, card.element, table.element),
    render(changed) {
      const { state } = store;
      for (const { key, input } of fields) writeField(input, state[key]);
      if (["run", "pos", "answer", "wrong"].some((key) => changed.has(key)) && state.run) load();
      else if (changed.has("dark")) draw();
      if (["panel", "size"].some((key) => changed.has(key))) heat.resize();
    },
  };
}
