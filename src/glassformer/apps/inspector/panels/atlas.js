/**
 * Table of all heads of a kind: their scores, and the effect of switching each of them off.
 *
 * @import { Effects } from "./ablation.js"
 * @import { Scores } from "./attention.js"
 *
 * @typedef {{layer: number, head: number, values: number[]}} Row
 */

import { colourOf, painted } from "../page/colours.js";
import { button, h } from "../page/dom.js";
import { fixed, signed } from "../page/text.js";

/** Largest number of heads that are listed. */
const MOST = 60;
/** Scores that are not a share of the weights on one kind of token. */
const SPREADS = ["entropy", "sharpness"];

/**
 * Return the columns and the rows. A pattern has the excess of its score over uniform attention: 0 for uniform attention, 1 for the score 1.
 * @param {string} kind
 * @param {Scores} scores
 * @param {Effects | null} effects
 */
export function headTable(kind, scores, effects) {
  const { heads: layers = [], uniform = [] } = scores.kinds[kind] ?? {};
  const names = Object.keys(scores.names).filter((name) => layers.some((heads) => heads.some((one) => typeof one[name] === "number")));
  const rows = layers.flatMap((heads, layer) => heads.map((one, head) => {
    const excess = (/** @type {string} */ name) => ((one[name] ?? NaN) - (uniform[layer]?.[name] ?? NaN)) / (1 - (uniform[layer]?.[name] ?? NaN));
    const values = names.map((name) => (SPREADS.includes(name) ? one[name] ?? NaN : excess(name)));
    return /** @type {Row} */ ({ layer, head, values: [...values, ...(effects ? [/** @type {number[][]} */ (effects[kind])[layer]?.[head] ?? NaN] : [])] });
  }));
  return { names: [...names, ...(effects ? ["effect"] : [])], rows };
}

/**
 * Draw the table, in the order of one column. A click on a head opens it, a click on a heading sorts by it.
 * @param {{kind: string, scores: Scores, effects: Effects | null, order: string, dark: boolean, onorder: (name: string) => void, onopen: (layer: number, head: number) => void}} options
 */
export function headAtlas({ kind, scores, effects, order, dark, onorder, onopen }) {
  const { names, rows } = headTable(kind, scores, effects);
  const by = Math.max(0, names.indexOf(order));
  const valueOf = (/** @type {Row} */ { values }) => (Number.isNaN(values[by] ?? NaN) ? -Infinity : values[by] ?? -Infinity);
  const sorted = [...rows].sort((a, b) => valueOf(b) - valueOf(a));
  const largest = Math.max(1e-6, ...rows.map(({ values }) => Math.abs(values[names.indexOf("effect")] ?? 0)));
  const cell = (/** @type {number} */ value, /** @type {string} */ name) => {
    const isEffect = name === "effect";
    const colour = isEffect ? colourOf(value, "diverging", [-largest, largest], dark) : colourOf(Math.max(0, value), "sequential", [0, 1], dark);
    const style = painted(Number.isNaN(value) || SPREADS.includes(name) ? null : colour);
    return h("td", { class: "number", style }, isEffect ? signed(value, 3) : fixed(value, 2));
  };
  const heading = (/** @type {string} */ name, /** @type {number} */ i) => h("th", { scope: "col", "aria-sort": i === by ? "descending" : "none" },
    button(name === "effect" ? "switched off" : name, () => onorder(name), { class: "quiet", title: `${name === "effect" ? "change of the loss of this text when the head alone is replaced by 0" : scores.names[name]}. Sort by this column` }));
  return h("div", { class: "scroll-x" }, h("table", { class: "atlas" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "head"), ...names.map(heading))),
    h("tbody", {}, ...sorted.slice(0, MOST).map(({ layer, head, values }) => h("tr", {},
      h("th", { scope: "row" }, button(`${layer}.${head}`, () => onopen(layer, head), { class: "found-head", title: `Open head ${head} of layer ${layer}` })), ...values.map((value, i) => cell(value, names[i] ?? "")))))),
  rows.length > MOST ? h("p", { class: "about" }, `The first ${MOST} of ${rows.length} heads; save CSV for all.`) : null);
}
