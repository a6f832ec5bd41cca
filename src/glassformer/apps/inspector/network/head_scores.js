/**
 * Scores of attention heads, and small pictures of their weights (`inspection/head_scores.py`).
 *
 * @import { Tensor } from "./tensors.js"
 *
 * @typedef {Record<string, number | null>} Scores of a head, by name; null if no position defines the score
 * @typedef {{rows: number, columns: number, at: (t: number, s: number) => number}} Matrix
 */

import { meanOf } from "./spread.js";
import { range } from "./tensors.js";

/** @typedef {{heads: Scores[][], uniform: Scores[]}} LayerScores of the heads of each layer, and of uniform attention */

/** Patterns for which heads are looked up. */
const PATTERNS = ["previous", "induction", "duplicate", "first"];
/** Largest height and width of a thumbnail. */
const THUMBNAIL = 48;

/** Return one head of the weights (1, H, T, S). @param {Tensor} weights @param {number} head @returns {Matrix} */
export function headOf({ shape: [, , rows, columns], data }, head) {
  return { rows, columns, at: (t, s) => data[(head * rows + t) * columns + s] };
}

/** Return the mean; null for an empty list. @param {number[]} values */
const mean = (values) => (values.length ? meanOf(values) : null);

/**
 * Return the scores of one head: mean weight on the previous token, on the token after an earlier equal token, on
 * earlier equal tokens and on the first token; mean entropy; mean of the largest weight.
 * @param {Matrix} weights
 * @param {number[] | null} ids of rows and columns; null for cross-attention, which has entropy and sharpness only
 * @returns {Scores}
 */
export function headScores({ rows, columns, at }, ids) {
  const tokens = range(0, rows);
  const filled = tokens.map((t) => range(0, columns).map((s) => at(t, s))).filter((row) => row.some((w) => w > 0));
  const shape = {
    entropy: mean(filled.map((row) => row.reduce((sum, w) => (w > 0 ? sum - w * Math.log(w) : sum), 0))) ?? 0,
    sharpness: mean(filled.map((row) => Math.max(...row))) ?? 0,
  };
  if (ids === null) return shape;
  const earlier = tokens.map((t) => tokens.slice(0, t).filter((s) => ids[s] === ids[t]));
  const induced = tokens.map((t) => ({ t, after: (earlier[t].findLast((s) => s + 1 < t) ?? -1) + 1 })).filter(({ after }) => after > 0);
  return {
    previous: mean(tokens.slice(1).map((t) => at(t, t - 1))),
    induction: mean(induced.map(({ t, after }) => at(t, after))),
    duplicate: mean(tokens.filter((t) => earlier[t].length).map((t) => earlier[t].reduce((sum, s) => sum + at(t, s), 0))),
    first: mean(tokens.slice(1).map((t) => at(t, 0))),
    ...shape,
  };
}

/**
 * Return equal weights on the keys that a query may see.
 * @param {number} rows
 * @param {number} columns
 * @param {(t: number, s: number) => boolean} isAllowed
 * @returns {Matrix}
 */
export function uniformAttention(rows, columns, isAllowed) {
  const counts = range(0, rows).map((t) => range(0, columns).filter((s) => isAllowed(t, s)).length);
  return { rows, columns, at: (t, s) => (isAllowed(t, s) ? 1 / counts[t] : 0) };
}

/**
 * Return small pictures of the heads (1, H, T, S): maxima of weights · 255 in at most 48 × 48 windows.
 * @param {Tensor} weights
 * @returns {{shape: number[], data: Uint8Array<ArrayBuffer>}} (H, h, w)
 */
export function thumbnails({ shape: [, nHeads, rows, columns], data }) {
  const [height, width] = [Math.min(rows, THUMBNAIL), Math.min(columns, THUMBNAIL)];
  const picture = new Uint8Array(nHeads * height * width);
  const windows = (/** @type {number} */ size, /** @type {number} */ n) =>
    range(0, n).map((i) => [Math.floor((i * size) / n), Math.ceil(((i + 1) * size) / n)]);
  let at = 0;
  for (let head = 0; head < nHeads; head++) {
    for (const [top, bottom] of windows(rows, height)) {
      for (const [left, right] of windows(columns, width)) {
        let largest = 0;
        for (let t = top; t < bottom; t++) for (let s = left; s < right; s++) largest = Math.max(largest, data[(head * rows + t) * columns + s]);
        picture[at++] = Math.round(largest * 255);
      }
    }
  }
  return { shape: [nHeads, height, width], data: picture };
}

/**
 * Return (score − uniform) / (1 − uniform): 0 for uniform attention, 1 for a perfect head; null without a score.
 * @param {number | null | undefined} score
 * @param {number | null | undefined} uniform
 */
function excess(score, uniform) {
  return typeof score === "number" && typeof uniform === "number" && uniform < 1 ? (score - uniform) / (1 - uniform) : null;
}

/**
 * Return the heads found for each pattern, the clearest first; for a pattern without one, its clearest head. The excess
 * of a head is the smaller one of its excesses on the text and on repeated random tokens.
 * @param {Record<string, LayerScores>} text scores by kind of attention
 * @param {Record<string, LayerScores>} random the scores on random tokens
 * @param {number} margin smallest excess of a head that is found
 */
export function rankedHeads(text, random, margin) {
  /** @type {Record<string, {value: number, best: number, kind: string, layer: number, head: number}[]>} */
  const ranked = Object.fromEntries(PATTERNS.map((name) => [name, []]));
  for (const [kind, { heads, uniform }] of Object.entries(text)) {
    heads.forEach((ofLayer, layer) => ofLayer.forEach((own, head) => {
      for (const name of PATTERNS.filter((one) => one in own && (one !== "induction" || layer > 0))) {
        const other = random[kind];
        const both = [excess(own[name], uniform[layer][name]), excess(other.heads[layer][head][name], other.uniform[layer][name])].filter((x) => x !== null);
        ranked[name].push({ value: both.length ? Math.min(...both) : -Infinity, best: Math.max(-Infinity, ...both), kind, layer, head });
      }
    }));
  }
  return PATTERNS.flatMap((name) => {
    const heads = ranked[name].sort((a, b) => b.value - a.value);
    const found = heads.filter(({ best }) => best >= margin);
    return (found.length ? found : heads.slice(0, 1)).map(({ value, kind, layer, head }) => ({
      name, kind, layer, head, score: text[kind].heads[layer][head][name], uniform: text[kind].uniform[layer][name],
      random: random[kind].heads[layer][head][name], random_uniform: random[kind].uniform[layer][name], is_found: value >= margin,
    }));
  });
}
