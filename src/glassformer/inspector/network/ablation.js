/**
 * Ablation: a run without some parts of the network, and the change of its measure. The rules are those of
 * `inspection/ablation.py` and `inspection/measures.py`.
 *
 * @import { Model } from "../page/types.js"
 * @import { ComputedRun } from "./computed_run.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { TransformerConfig } from "./transformer.js"
 *
 * @typedef {{name: "loss" | "kl" | "change", value: (outputs: Tensor) => number}} Measure
 */

import { hasOutNorms } from "./blocks.js";
import { logitsAt } from "./heads.js";
import { logSoftmax } from "./predictions.js";
import { besideOthers, meanOf } from "./spread.js";
import { range } from "./stacks.js";
import { widthOf } from "./tensors.js";
import { TextError } from "./tokenizer.js";

/** The tensor that the feed-forward of a block adds to the residual stream. @param {string} block @param {TransformerConfig} config */
export function feedForwardName(block, config) {
  return `${block}.${hasOutNorms(config) ? "ff_out_norm" : "ff"}`;
}

/**
 * Return a tap that switches parts off: it changes the tensors that it receives. A head's context and the output of a
 * feed-forward become zero, or their mean over the positions of an unchanged run; a layer returns its input.
 * @param {string[]} parts
 * @param {TransformerConfig} config
 * @param {Map<string, Tensor> | null} means tensors of the unchanged run
 * @returns {NonNullable<Tap>}
 */
export function ablating(parts, config, means) {
  /** By the name of a tensor, the heads that are off; null for the whole tensor. @type {Map<string, number[] | null>} */
  const replaced = new Map();
  const skipped = new Set();
  for (const part of parts) {
    const [kind = "", layer = "", what, head] = part.split(".");
    const block = `${kind === "cross" ? "decoder" : kind}.blocks.${layer}`;
    if (what === "head") {
      const name = `${block}.${kind === "cross" ? "cross_attn" : "self_attn"}.context`;
      replaced.set(name, [...(replaced.get(name) ?? []), Number(head)]);
    } else if (what === "feed_forward") replaced.set(feedForwardName(block, config), null);
    else skipped.add(`${block}.residual`);
  }
  /** Input of the block that is computed. @type {Tensor | null} */
  let input = null;
  return (name, x) => {
    const heads = replaced.get(name);
    if (heads !== undefined) replace(x, heads ?? [0], heads ? x.shape[1] : 1, means?.get(name) ?? null);
    if (skipped.has(name)) x.data.set(/** @type {Tensor} */ (input).data);
    if (/^(encoder|decoder)\.(embeddings|blocks\.\d+\.residual)$/.test(name)) input = x;
  };
}

/**
 * Replace the numbers of some heads by zero, or by the mean of their positions in `mean`.
 * @param {Tensor} x (1, H, T, W), or (1, T, D) with one part
 * @param {number[]} heads
 * @param {number} nHeads
 * @param {Tensor | null} mean
 */
function replace(x, heads, nHeads, mean) {
  const width = widthOf(x);
  const nTokens = x.data.length / (nHeads * width);
  for (const head of heads) {
    const begin = head * nTokens * width;
    for (let i = 0; i < width; i++) {
      let sum = 0;
      if (mean) for (let t = 0; t < nTokens; t++) sum += mean.data[begin + t * width + i];
      for (let t = 0; t < nTokens; t++) x.data[begin + t * width + i] = sum / nTokens;
    }
  }
}

/**
 * Return the measure of outputs beside those of the unchanged run.
 * @param {ComputedRun} run
 * @returns {Measure}
 */
function measureOf(run) {
  const { facts: { measure }, input: { ids }, reading: { rules: { mask } } } = run;
  const unchanged = run.tensor("logits");
  const labels = run.labels();
  if (measure === "loss" && !labels.some((label) => label !== null)) throw new TextError("the text has one token, and the first token is not scored: give a longer text");
  if (measure === "loss") return { name: "loss", value: (changed) => lossOf(changed, labels) };
  if (measure === "change") return { name: "change", value: (changed) => meanOf(Array.from(changed.data, (x, i) => Math.abs(x - unchanged.data[i]))) };
  if (measure === "each label") return { name: "kl", value: (changed) => ofEachLabel(unchanged.data, changed.data) };
  if (measure === "span") return { name: "kl", value: (changed) => divergence(column(unchanged, 0), column(changed, 0)) + divergence(column(unchanged, 1), column(changed, 1)) };
  const rows = range(0, unchanged.data.length / widthOf(unchanged));
  const masks = measure === "tokens" ? rows.filter((t) => ids[t] === mask?.id) : [];
  const scored = masks.length ? masks : rows;
  return { name: "kl", value: (changed) => meanOf(scored.map((t) => divergence(logitsAt(unchanged, t), logitsAt(changed, t)))) };
}

/**
 * Answer the measure and the predictions before and after parts are switched off.
 * @param {ComputedRun} run
 * @param {TransformerConfig} config
 * @param {{off: string, mean: boolean}} what names with commas
 */
export async function ablate(run, config, { off, mean }) {
  const measure = measureOf(run);
  const [before, after] = [run, await without(run, config, { off, mean })].map((one) => {
    const { source, target, written, labels, number } = one.answer("", 0);
    const read = target.length ? target : source;
    const tokens = written.length ? written : read;
    const positions = tokens.map(({ log_prob }, i) => ({ log_prob, top: read[i].top.slice(0, 5) }));
    return { loss: measure.value(one.tensor("logits")), positions, labels, number };
  });
  return { ...run.names, measure: measure.name, before, after };
}

/**
 * @typedef {{measure: Measure["name"], loss: number, changes: Map<string, number>}} Measured
 * The measure of a text, and its change without each part alone.
 */

/**
 * Return the change of the measure for each part, one at a time; `mean` replaces it by its mean in place of zero.
 * @param {ComputedRun} run
 * @param {TransformerConfig} config
 * @param {boolean} mean
 * @returns {Promise<Measured>}
 */
export async function measured(run, config, mean) {
  const measure = measureOf(run);
  const loss = measure.value(run.tensor("logits"));
  const changes = new Map();
  const { heads, ...others } = partsOf(run.facts.model.attention, config);
  for (const part of [heads, ...Object.values(others)].flatMap((kinds) => Object.values(kinds).flat(2))) {
    changes.set(part, measure.value((await without(run, config, { off: part, mean })).tensor("logits")) - loss);
  }
  return { measure: measure.name, loss, changes };
}

/**
 * The parts of a model by kind and layer: heads, feed-forwards and layers.
 * @param {Model["attention"]} attention
 * @param {TransformerConfig} config
 */
function partsOf(attention, config) {
  const kinds = Object.entries(attention);
  const stacks = kinds.filter(([kind]) => kind !== "cross");
  const hasFeedForward = (/** @type {string} */ kind) => Boolean(config[/** @type {"encoder" | "decoder"} */ (kind)]?.d_ff);
  return {
    heads: Object.fromEntries(kinds.map(([kind, { layers, heads }]) => [kind, range(0, layers).map((layer) => range(0, heads).map((head) => `${kind}.${layer}.head.${head}`))])),
    feed_forward: Object.fromEntries(stacks.map(([kind, { layers }]) => [kind, range(0, hasFeedForward(kind) ? layers : 0).map((layer) => `${kind}.${layer}.feed_forward`)])),
    layers: Object.fromEntries(stacks.map(([kind, { layers }]) => [kind, range(0, layers).map((layer) => `${kind}.${layer}`)])),
  };
}

/**
 * Answer the means of the changes over texts, each beside the mean of the other parts of its type.
 * @param {Measured[]} texts
 * @param {Model["attention"]} attention
 * @param {TransformerConfig} config
 */
export function effects(texts, attention, config) {
  const { heads, feed_forward: feedForward, layers } = partsOf(attention, config);
  const ofType = (/** @type {Record<string, string[] | string[][]>} */ kinds) =>
    besideOthers(Object.fromEntries(Object.values(kinds).flat(2).map((part) => [part, texts.map(({ changes }) => changes.get(part) ?? NaN)])));
  const beside = { ...ofType(heads), ...ofType(feedForward), ...ofType(layers) };
  const means = (/** @type {string[]} */ parts) => parts.map((part) => beside[part].mean);
  const byKind = (/** @type {Record<string, string[]>} */ kinds) => Object.fromEntries(Object.entries(kinds).map(([kind, parts]) => [kind, means(parts)]));
  return {
    measure: texts[0].measure, loss: meanOf(texts.map(({ loss }) => loss)), n_texts: texts.length,
    ...Object.fromEntries(Object.entries(heads).map(([kind, ofLayers]) => [kind, ofLayers.map(means)])), feed_forward: byKind(feedForward), layers: byKind(layers), beside,
  };
}

/**
 * Run the same input without some parts.
 * @param {ComputedRun} run
 * @param {TransformerConfig} config
 * @param {{off: string, mean: boolean}} what
 */
export async function without(run, config, { off, mean }) {
  const changed = run.again();
  await changed.compute(ablating(off.split(","), config, mean ? run.tensors : null));
  return changed;
}

/**
 * Return the mean of −log p(label) over the positions that have a label.
 * @param {Tensor} logits
 * @param {(number | null)[]} labels
 */
function lossOf(logits, labels) {
  const scored = range(0, labels.length).filter((t) => labels[t] !== null);
  return meanOf(scored.map((t) => -logSoftmax(logitsAt(logits, t))[/** @type {number} */ (labels[t])]));
}

/**
 * Compute KL(softmax(before) ‖ softmax(after)) in nats.
 * @param {Float32Array} before
 * @param {Float32Array} after
 */
export function divergence(before, after) {
  const [p, q] = [logSoftmax(before), logSoftmax(after)];
  return p.reduce((sum, x, i) => sum + (x === -Infinity ? 0 : Math.exp(x) * (x - q[i])), 0);
}

/** KL divergence of labels that are each present or absent. @param {Float32Array} before @param {Float32Array} after */
function ofEachLabel(before, after) {
  return before.reduce((sum, x, i) => sum + divergence(Float32Array.of(x, 0), Float32Array.of(after[i], 0)), 0);
}

/** @param {Tensor} x @param {number} i */
function column(x, i) {
  return x.data.filter((_, at) => at % widthOf(x) === i);
}
