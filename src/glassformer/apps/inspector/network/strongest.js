/**
 * Strongest texts: the texts of a set in which a head or a neuron is most active. Same rules as
 * `inspection/strongest.py`, but the baseline is over all texts.
 *
 * @import { ComputedRun } from "./computed_run.js"
 * @import { Transformer } from "./transformer.js"
 * @import { Candidate } from "../page/types.js"
 * @import { Strongest } from "../panels/unit.js"
 *
 * @typedef {{number: number, tokens: string[], units: Float32Array[]}} Active
 * A text of the set: its index, its tokens, and the activity of each unit at each token. The activity is NaN at a token
 * that is left out.
 */

import { ServerError } from "../page/source.js";
import { headOutput } from "./attribution.js";
import { meanOf, orNull, quantile } from "./spread.js";
import { range, rowsAt } from "./tensors.js";
import { TextError } from "./tokenizer.js";

const N_TEXTS = 10;
/** Number of tokens that a unit raises most, and number of those that it lowers most. */
const N_MOVED = 8;

/**
 * Return the activity of all heads of an attention, or of all neurons of a feed-forward, in a run; null for a text of a
 * decoder with one token.
 * @param {ComputedRun} run
 * @param {number} number index of the text in its set
 * @param {string} units such as `decoder.0.head`
 * @returns {Active | null}
 */
export function activeUnits(run, number, units) {
  const network = /** @type {Transformer} */ (run.network);
  const [kind, layer, what] = units.split(".");
  const stack = kind === "encoder" ? "encoder" : "decoder";
  const block = network[stack]?.blocks[Number(layer)];
  const attention = kind === "cross" ? block?.crossAttn : block?.selfAttn;
  if (!block || !attention || (what === "neuron" && !block.ff)) throw new ServerError(`this model has no ${units}: choose another part`, 400);
  const path = `${stack}.blocks.${layer}`;
  const x = run.tensor(what === "neuron" ? `${path}.ff.activations` : `${path}.${kind === "cross" ? "cross_attn" : "self_attn"}.context`);
  const [nTokens, width] = x.shape.slice(-2);
  const valueBias = attention.valueBias();
  const lengthAt = (/** @type {number} */ head, /** @type {number} */ t) =>
    Math.hypot(...headOutput(attention, rowsAt(x, [head * nTokens + t]), valueBias, head).data);
  const activityAt = what === "neuron" ? (/** @type {number} */ neuron, /** @type {number} */ t) => x.data[t * width + neuron] : lengthAt;
  const first = kind === "decoder" ? 1 : 0; // the first token can attend only to itself
  if (nTokens <= first) return null;
  const all = range(0, what === "neuron" ? width : x.shape[1]).map((unit) =>
    Float32Array.from({ length: nTokens }, (_, t) => (t < first ? NaN : activityAt(unit, t))));
  return { number, tokens: kind === "cross" ? run.writtenNames() : run.namesOf(stack), units: all };
}

/**
 * Return the strongest texts of a unit, and the median and the 95 % quantile over the texts of the set.
 * @param {Active[]} texts
 * @param {string} units
 * @param {number} unit
 * @returns {Omit<Strongest, "model" | "raised" | "lowered" | "reason">}
 */
export function strongestTexts(texts, units, unit) {
  if (!texts.length) throw new TextError("there is no text of two tokens or more: give at least one");
  const nUnits = texts[0].units.length;
  if (!(unit < nUnits)) throw new TextError(`there is no ${units.split(".")[2]} ${unit}: the model has ${nUnits}, counted from 0`);
  const found = texts.map(({ number, tokens, units: all }) => {
    const activity = Array.from(all[unit], orNull);
    return { number, tokens, activity, strength: Math.max(...activity.map((x) => x ?? -Infinity)) };
  });
  const strengths = found.map(({ strength }) => strength);
  return {
    units, unit, n_units: nUnits, n_texts: texts.length, median: quantile(strengths, 0.5), high: quantile(strengths, 0.95), strengths,
    texts: found.sort((a, b) => b.strength - a.strength).slice(0, N_TEXTS),
  };
}

/**
 * Return the tokens that a unit raises and lowers most, by the mean of its effects in some texts, minus the mean of all tokens.
 * @param {Float32Array[]} effects on all logits, of each text
 * @param {string[]} vocabulary
 * @param {number[]} never ids that no text has, which are left out
 */
export function movedTokens(effects, vocabulary, never) {
  const means = vocabulary.map((_, id) => meanOf(effects.map((one) => one[id])));
  const mean = meanOf(means);
  const ids = range(0, means.length).filter((id) => !never.includes(id)).sort((a, b) => means[b] - means[a]);
  const named = (/** @type {number[]} */ some) => some.map((id) => /** @type {Candidate} */ ([id, vocabulary[id], means[id] - mean]));
  return { raised: named(ids.slice(0, N_MOVED)), lowered: named(ids.reverse().slice(0, N_MOVED)), reason: "" };
}
