/**
 * Attribution: the logit of a token at the selected position as a sum of terms. The baseline is the same term of a
 * random token.
 *
 * @import { App, Panel, Tab } from "../page/app.js"
 * @import { Model, Picture, State, Table } from "../page/types.js"
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
const OF_ONE = "Each part adds a vector to the residual stream, and thereby a term to the logit of a token. The terms sum to the logit. A random token is the baseline: the mean of the same term over the vocabulary. Only the difference from the baseline changes a probability.";
const OF_TWO = "Each part adds a vector to the residual stream, and thereby a term to the difference of the two logits. The terms sum to this difference. Blue: the part raises the first logit above the second.";
const SIGNS = "h0: head 0, ff: feed-forward. A term is the direct effect of a part, without its effect on later parts.";
const LARGEST = "Terms that differ most from those of a random token. Beyond: the difference is more than 2 standard deviations over the vocabulary.";

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
 * Return the terms as a table, those that differ most from their mean first. The mean of a difference of two logits is 0.
 * @param {Record<string, Term>} terms
 * @param {boolean} isOfTwo
 * @returns {Table}
 */
function termTable(terms, isOfTwo) {
  const difference = (/** @type {Term} */ { value, mean }) => Math.abs(value - mean);
  const sorted = Object.entries(terms).sort(([, a], [, b]) => difference(b) - difference(a));
  return {
    header: ["part", "term", ...(isOfTwo ? [] : ["random token: mean"]), "deviation", "beyond"],
    rows: sorted.map(([name, { value, mean, deviation, is_beyond }]) => [name, value, ...(isOfTwo ? [] : [mean]), deviation, is_beyond ? "yes" : ""]),
  };
}

/** Return true if a model has logits of tokens or of labels. @param {Model} model */
export const hasLogits = (model) => model.has_head_over_tokens || model.labels.length > 0;

/** Create the fields of the token or label of a logit, and of the one that is subtracted; `write` shows those of the state. @param {App} app */
export function answerFields({ store }) {
  const isOfLabels = (store.state.model?.labels.length ?? 0) > 0;
  const fields = /** @type {const} */ ([["answer", isOfLabels ? "label" : "token, with its leading space", "by default: the prediction"], ["wrong", "minus the logit of", "optional"]]).map(([key, label, placeholder]) => {
    const input = h("input", { type: "text", placeholder, spellcheck: "false", onchange: () => store.set({ [key]: input.value }) });
    return { key, input, element: h("label", { class: "field wide" }, h("span", {}, label), input) };
  });
  return { elements: fields.map(({ element }) => element), write: () => fields.forEach(({ key, input }) => writeField(input, store.state[key])) };
}

/** Return the query for a logit: its token or label, the one that is subtracted, and the position, unless the output is of the whole text. @param {State} state */
export const logitQuery = (state) => ({ position: state.model?.pooling ? undefined : selectedPosition(state), token: state.answer || undefined, against: state.wrong || undefined });

/** Describe a logit, or a difference of two logits, and its position. @param {State} state @param {{token?: string | undefined, against?: string | null | undefined}} of */
export const logitText = (state, { token, against }) => `logit of ${visible(token ?? "")}${against ? ` − logit of ${visible(against)}` : ""}${state.model?.pooling ? "" : `, ${positionText(state, selectedPosition(state))}`}`;

/** @param {App} app @returns {Panel} */
function createAttribution(app) {
  const { store } = app;
  const fields = answerFields(app);
  let isRelative = true;
  const modes = choice("Number", [["1", "term − random token"], ["0", "term"]], (value) => {
    isRelative = value === "1";
    draw();
  });
  const facts = h("p", { class: "detail", "aria-live": "polite" });
  const heat = new Heatmap({ label: "Terms of the logit" });
  const largest = h("div");
  /** @returns {Picture | null} */
  const picture = () => found && { name: "attribution", scene: () => heat.scene("Attribution"), table: () => termTable(found?.terms ?? {}, isOfTwo()), data: () => found };
  const card = frame({
    title: "Attribution", picture,
    explanation: `${OF_ONE} ${SIGNS}`,
    formula: "logit = Σ terms, term = head(norm(part)), with the scale of the norm fixed",
  }, h("div", { class: "row" }, ...fields.elements, modes.element), facts, heat.element);
  const table = frame({ title: "Largest terms", explanation: LARGEST, picture }, largest);
  const latest = new Latest(app, card.body);
  /** @type {Attribution | null} */
  let found = null;
  /** Return true if the shown numbers are of the difference of two logits. */
  const isOfTwo = () => typeof found?.against === "string";

  /** Return the number of a cell; NaN without a part. @param {string | null | undefined} name */
  function shownValue(name) {
    const { value = NaN, mean = NaN } = found?.terms[name ?? ""] ?? {};
    return isRelative ? value - mean : value;
  }

  /** @param {string | null | undefined} name */
  function describe(name) {
    const term = found?.terms[name ?? ""];
    return term ? `${name}: ${signed(term.value)}${isOfTwo() ? "; deviation" : `; random token ${signed(term.mean)}`} ± ${fixed(term.deviation)}${term.is_beyond ? "; beyond" : ""}` : "";
  }

  function draw() {
    modes.write(isRelative ? "1" : "0");
    if (!found) return;
    const { logit, cells, rows, columns, terms } = found;
    modes.element.hidden = isOfTwo(); // the mean of a difference is 0
    const parts = sumsOf(terms, isRelative);
    const total = parts.reduce((sum, [, one]) => sum + one, 0);
    const sums = parts.map(([kind, sum], i) => `${i && sum >= 0 ? "+ " : ""}${fixed(sum, 2)} ${kind}`);
    facts.textContent = `${logitText(store.state, found)}: ${isRelative && !isOfTwo() ? `${fixed(logit, 2)}, of which ${fixed(total, 2)} more than a random token` : fixed(logit, 2)} = ${sums.join(" ")}`;
    const values = cells.flatMap((row) => row.map(shownValue));
    const limit = Math.max(1e-6, ...values.filter((x) => !Number.isNaN(x)).map(Math.abs));
    heat.update({
      rows: rows.length, columns: columns.length, values, row_labels: rows, column_labels: columns.map((name) => name.replace("feed-forward", "ff").replace("head ", "h")), row_axis: "layer", column_axis: "part", plain_rows: true, plain_columns: true,
      scale: "diverging", range: [-limit, limit], dark: store.state.dark, unit: "logit", cell: [58, 26],
      cell_text: (row, column) => { const x = shownValue(cells[row]?.[column]); return Number.isNaN(x) ? "" : signed(x, 2); },
      describe: (row, column) => describe(cells[row]?.[column]),
    });
    card.explain(`${isOfTwo() ? OF_TWO : OF_ONE} ${SIGNS}`);
    table.explain(isOfTwo() ? "Terms that differ most from 0. Beyond: more than 2 standard deviations of this term between two tokens of the vocabulary." : LARGEST);
    const { header, rows: all } = termTable(terms, isOfTwo());
    fill(largest, tableElement({ header, rows: all.slice(0, N_LARGEST) }));
    card.refresh();
    table.refresh();
  }

  function load() {
    const { run } = store.state;
    if (run) void latest.use(app.data.json(run, "attribution", logitQuery(store.state)), (value) => {
      found = value;
      draw();
    });
  }

  return {
    element: h("div", { class: "panel" }, card.element, table.element),
    render(changed) {
      const { state } = store;
      fields.write();
      if (["run", "pos", "answer", "wrong"].some((key) => changed.has(key)) && state.run) load();
      else if (changed.has("dark")) draw();
      if (["panel", "size"].some((key) => changed.has(key))) heat.resize();
    },
  };
}
