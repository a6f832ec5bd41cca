/**
 * Table of all heads of a kind: their scores, and the effect of switching each of them off. And the heads found.
 *
 * @import { Run } from "../page/types.js"
 * @import { Effects } from "./ablation.js"
 * @import { RankedHead, Scores } from "./attention.js"
 *
 * @typedef {{layer: number, head: number, values: number[]}} Row
 */

import { colourOf, painted } from "../page/colours.js";
import { button, h } from "../page/dom.js";
import { fixed, signed } from "../page/text.js";

/** Largest number of heads that are listed. */
const MOST = 60;
/** Heads of a pattern that are listed if they are found, and otherwise. */
const [MOST_FOUND, MOST_OTHERS] = [8, 4];
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
 * Draw the table, in the order of one column. A click on a head opens it, a click on a heading sorts by it, another click turns the order.
 * @param {{kind: string, scores: Scores, effects: Effects | null, measure: string, order: string, is_up: boolean, dark: boolean, onorder: (name: string) => void, onopen: (layer: number, head: number) => void}} options
 */
export function headAtlas({ kind, scores, effects, measure, order, is_up: isUp, dark, onorder, onopen }) {
  const { names, rows } = headTable(kind, scores, effects);
  const by = Math.max(0, names.indexOf(order));
  const sign = isUp ? -1 : 1;
  const valueOf = (/** @type {Row} */ { values }) => (Number.isNaN(values[by] ?? NaN) ? -Infinity : sign * (values[by] ?? -Infinity)); // heads without a score come last
  const sorted = [...rows].sort((a, b) => valueOf(b) - valueOf(a));
  const largest = Math.max(1e-6, ...rows.map(({ values }) => Math.abs(values[names.indexOf("effect")] ?? 0)));
  const cell = (/** @type {number} */ value, /** @type {string} */ name) => {
    const isEffect = name === "effect";
    const colour = isEffect ? colourOf(value, "diverging", [-largest, largest], dark) : colourOf(Math.max(0, value), "sequential", [0, 1], dark);
    const style = painted(Number.isNaN(value) || SPREADS.includes(name) ? null : colour);
    return h("td", { class: "number", style }, isEffect ? signed(value, 3) : fixed(value, 2));
  };
  const heading = (/** @type {string} */ name, /** @type {number} */ i) => h("th", { scope: "col", "aria-sort": i !== by ? "none" : isUp ? "ascending" : "descending" },
    button(name === "effect" ? "switched off" : name, () => onorder(name), { class: "quiet", title: `${name === "effect" ? `change when the head alone is replaced by 0, of the ${measure}` : scores.names[name]}. Sort by this column, again to turn the order` }),
    h("div", { class: "about" }, name === "effect" && effects?.measure === "logit" ? measure : name !== "effect" && scores.kinds === scores.random ? "random tokens" : "this text"));
  return h("div", { class: "scroll-x" }, h("table", { class: "atlas" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "head"), ...names.map(heading))),
    h("tbody", {}, ...sorted.slice(0, MOST).map(({ layer, head, values }) => h("tr", {},
      h("th", { scope: "row" }, button(`${layer}.${head}`, () => onopen(layer, head), { class: "found-head", title: `Open head ${head} of layer ${layer}` })), ...values.map((value, i) => cell(value, names[i] ?? "")))))),
  rows.length > MOST ? h("p", { class: "about" }, `The first ${MOST} of ${rows.length} heads; save CSV for all.`) : null);
}

/**
 * Return the list of the heads that pass for a pattern on the text, on random tokens, or on both; without one, the nearest head.
 * @param {Scores} scores
 * @param {Run} run
 * @param {(head: RankedHead) => void} onopen
 */
export function foundHeads({ names, ranked, margin, n_random: nRandom }, run, onopen) {
  if (!ranked.length || !nRandom) return [h("p", { class: "about" }, "This attention has no pattern scores.")];
  const mark = (/** @type {number | null} */ score, /** @type {number | null} */ uniform) => (score !== null && uniform !== null && (score - uniform) / (1 - uniform) >= margin ? " ✓" : "");
  const marks = (/** @type {RankedHead} */ one) => [mark(one.score, one.uniform), mark(one.random, one.random_uniform)];
  const line = (/** @type {RankedHead} */ one) => h("tr", {}, h("th", { scope: "row" }, button(`${one.kind} ${one.layer}.${one.head}`, () => onopen(one), { class: "found-head", title: `Open head ${one.head} of layer ${one.layer}` })),
    ...[[one.score, one.uniform], [one.random, one.random_uniform]].map(([score, uniform], i) => h("td", {}, `${fixed(score, 2)} (${fixed(uniform, 2)})${marks(one)[i]}`)));
  /** Count the tokens of the text that have the earlier token that a pattern needs; for induction, not the one just before. @param {string} name @param {string} kind */
  const repeats = (name, kind) => (run[run.attention[kind]?.rows ?? "target"].filter(({ id }, i, all) => all.findIndex((one) => one.id === id) < i - Number(name === "induction")).length);
  const counts = (/** @type {string} */ name) => Object.keys(run.attention).filter((kind) => kind !== "cross").map((kind, _, { length }) => `${repeats(name, kind)}${length > 1 ? ` in the ${kind}` : ""}`).join(", ");
  return [...Object.entries(names).flatMap(([name, meaning]) => {
    const heads = ranked.filter((one) => one.name === name);
    const groups = [...new Set(heads.map((one) => marks(one).join()))].map((group) => heads.filter((one) => marks(one).join() === group));
    const listed = groups.flatMap((of) => of.slice(0, of[0]?.is_found ? MOST_FOUND : MOST_OTHERS));
    return heads.length ? [h("dl", {}, h("dt", {}, `${meaning}${["induction", "duplicate"].includes(name) ? ` (n = ${counts(name)})` : ""}`), h("dd", { class: "scroll-x" }, h("table", { class: "atlas" },
      h("thead", {}, h("tr", {}, ...["head", "this text", "random tokens"].map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, ...listed.map(line))),
    listed.length < heads.length ? `and ${heads.length - listed.length} more` : null))] : [];
  }), h("p", { class: "about" }, "Each head is its layer and number, with two scores; in parentheses is the score of uniform attention (equal weights on all keys). ✓: (score − uniform) / (1 − uniform) is at least " +
    `${fixed(margin, 2)}. If no head passes, the nearest one is listed. n: tokens of this text that repeat an earlier one. With few repeats, the score on this text says little. Random tokens: mean over ${nRandom[0]} sequences of ${nRandom[1]} tokens, each written twice, seeds 0 to ${nRandom[0] - 1}. A head of layer 0 cannot be an induction head.`)];
}
