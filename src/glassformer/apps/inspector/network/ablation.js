/**
 * Ablation: run a network without some of its parts, and measure the change. Same rules as `inspection/ablation.py` and
 * `inspection/measures.py`.
 *
 * @import { Model } from "../page/types.js"
 * @import { ComputedRun } from "./computed_run.js"
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { TransformerConfig } from "./transformer.js"
 *
 * @typedef {{name: "loss" | "kl" | "change", value: (outputs: Tensor) => number}} Measure
 */

import { hasOutNorms } from "./blocks.js";
import { logSoftmax, logitsAt } from "./heads.js";
import { besideOthers, meanOf } from "./spread.js";
import { range, widthOf } from "./tensors.js";
import { TextError } from "./tokenizer.js";

/** Return the name of the tensor that the feed-forward of a block adds to the residual stream. @param {string} block @param {TransformerConfig} config */
export const feedForwardName = (block, config) => `${block}.${hasOutNorms(config) ? "ff_out_norm" : "ff"}`;

/**
 * Return a tap that switches parts off by changing the tensors that it receives. The context of a head and the output
 * of a feed-forward become 0, or their mean over the positions of the unchanged run. A layer returns its input.
 * @param {string[]} parts
 * @param {TransformerConfig} config
 * @param {Map<string, Tensor> | null} means tensors of the unchanged run
 * @returns {NonNullable<Tap>}
 */
function ablating(parts, config, means) {
  /** Heads that are off, by tensor name; null for the whole tensor. @type {Map<string, number[] | null>} */
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
 * Set the values of some heads to 0, or to their mean over the positions of `mean`.
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

/** Return the measure that compares outputs with those of the unchanged run. @param {ComputedRun} run @returns {Measure} */
function measureOf(run) {
  const { facts: { measure }, input: { ids }, reading: { rules: { mask } } } = run;
  const unchanged = run.tensor("logits");
  const labels = run.labels();
  if (measure === "loss" && !labels.some((label) => label !== null)) throw new TextError("the text has one token, and the first token is not scored: give a longer text");
  if (measure === "loss") return { name: "loss", value: (changed) => lossOf(changed, labels) };
  if (measure === "change") return { name: "change", value: (changed) => meanOf(Array.from(changed.data, (x, i) => Math.abs(x - unchanged.data[i]))) };
  if (measure === "each label") return { name: "kl", value: (changed) => multiLabelDivergence(unchanged.data, changed.data) };
  const rows = range(0, unchanged.data.length / widthOf(unchanged));
  const masks = measure === "tokens" ? rows.filter((t) => ids[t] === mask?.id) : [];
  const scored = masks.length ? masks : rows;
  return { name: "kl", value: (changed) => meanOf(scored.map((t) => divergence(logitsAt(unchanged, t), logitsAt(changed, t)))) };
}

/**
 * Return the measure and the predictions before and after some parts are switched off.
 * @param {ComputedRun} run
 * @param {TransformerConfig} config
 * @param {{off: string, mean: boolean}} what `off` are names of parts, separated by commas
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
 * The measure of a text, and its change for each part that is switched off alone.
 */

/**
 * Return the change of the measure for each part alone. With `mean`, a part is replaced by its mean; otherwise by 0.
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

/** Return the parts of a model by kind and layer: heads, feed-forwards and layers. @param {Model["attention"]} attention @param {TransformerConfig} config */
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
 * Return the mean change over texts for each part. The baseline is the mean of the other parts of its type.
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

/** Run the same input without some parts. @param {ComputedRun} run @param {TransformerConfig} config @param {{off: string, mean: boolean}} what */
export async function without(run, config, { off, mean }) {
  const changed = run.copy();
  await changed.compute(ablating(off.split(","), config, mean ? run.tensors : null));
  return changed;
}

/** Return the mean of −log p(label) over the positions that have a label. @param {Tensor} logits @param {(number | null)[]} labels */
function lossOf(logits, labels) {
  const scored = range(0, labels.length).filter((t) => labels[t] !== null);
  return meanOf(scored.map((t) => -logSoftmax(logitsAt(logits, t))[/** @type {number} */ (labels[t])]));
}

/** Compute KL(softmax(before) ‖ softmax(after)) in nats. @param {Float32Array} before @param {Float32Array} after */
function divergence(before, after) {
  const [p, q] = [logSoftmax(before), logSoftmax(after)];
  return p.reduce((sum, x, i) => sum + (x === -Infinity ? 0 : Math.exp(x) * (x - q[i])), 0);
}

/** Compute the KL divergence of independent labels: the sum over the labels. @param {Float32Array} before @param {Float32Array} after */
function multiLabelDivergence(before, after) {
  return before.reduce((sum, x, i) => sum + divergence(Float32Array.of(x, 0), Float32Array.of(after[i], 0)), 0);
}
