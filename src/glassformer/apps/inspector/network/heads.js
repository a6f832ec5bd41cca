/**
 * Output heads: logits over tokens or labels, per position or per text, or a vector per text. And predictions from logits:
 * log-probabilities, the most probable tokens, entropy, and the rank of a token.
 *
 * @import { Candidate } from "../page/types.js"
 * @import { Layer } from "./layers.js"
 * @import { Tensor } from "./tensors.js"
 * @import { TransformerConfig } from "./transformer.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {(hidden: Tensor) => Tensor} Head
 */

import { ACTIVATIONS, normOf } from "./layers.js";
import { meanOf } from "./spread.js";
import { linear, map, range, reshaped, rowsAt, widthOf } from "./tensors.js";

/**
 * Return the layers before the output projection: a dense layer, an activation and a norm. Without them, return the
 * identity.
 * @param {Weights} weights
 * @param {{activation?: string, norm?: string, norm_eps?: number}} config
 * @returns {Layer}
 */
function transformOf(weights, { activation = "", norm = "", norm_eps = 0 }) {
  if (!weights.hasLinear("output.transform.dense")) return (x) => x;
  const dense = weights.linear("output.transform.dense");
  const after = normOf(weights, "output.transform.norm", { norm, norm_eps });
  return (x) => after(map(linear(x, ...dense), ACTIVATIONS[activation]));
}

/**
 * Return the function from states (T, D) to logits over the vocabulary (T, V).
 *
 * If the projection is narrower than the model, `narrow` or the transform reduces the width first.
 * @param {Weights} weights
 * @param {{d_model?: number, logit_scale?: number, activation?: string, norm?: string, norm_eps?: number}} config
 * @returns {Head}
 */
export function tokenLogits(weights, { d_model = 1, logit_scale = 1, ...others }) {
  const projection = weights.get("output.proj.weight");
  const bias = weights.find("output.bias");
  const narrow = weights.find("output.narrow.weight");
  const transform = transformOf(weights, others);
  const scale = logit_scale || d_model ** -0.5;
  return (hidden) => {
    hidden = transform(hidden);
    if (narrow) hidden = linear(hidden, narrow);
    if (scale !== 1) hidden = map(hidden, (x) => x * scale);
    return linear(hidden, projection, bias);
  };
}

/**
 * Pool states (T, D) to (1, D): the first, the last, their mean or their maximum.
 * @param {Tensor} hidden
 * @param {string} how
 * @returns {Tensor}
 */
export function pool(hidden, how) {
  const [nTokens, width] = hidden.shape;
  if (how === "first") return rowsAt(hidden, [0]);
  if (how === "last") return rowsAt(hidden, [nTokens - 1]);
  const numbers = (/** @type {number} */ i) => range(0, nTokens).map((t) => hidden.data[t * width + i]);
  return { shape: [1, width], data: Float32Array.from({ length: width }, (_, i) => (how === "max" ? Math.max(...numbers(i)) : meanOf(numbers(i)))) };
}

/**
 * Return the function from states (T, D) to a vector of the text (1, D): pooling, then a dense layer with an activation.
 * @param {Weights} weights
 * @param {{pooling?: string, pooler?: string}} head
 * @returns {Head}
 */
function sequenceVector(weights, { pooling = "", pooler = "none" }) {
  if (!(pooler in ACTIVATIONS)) return (hidden) => pool(hidden, pooling); // "none", or "unused" (stored, but not applied)
  const dense = weights.linear("output.pooler");
  return (hidden) => map(linear(pool(hidden, pooling), ...dense), ACTIVATIONS[pooler]);
}

/** Divide a vector by its L2 norm. @param {Tensor} x */
function normalized(x) {
  const norm = Math.max(Math.hypot(...x.data), 1e-12);
  return map(x, (value) => value / norm);
}

/**
 * Return the head of a Transformer.
 * @param {Weights} weights
 * @param {TransformerConfig} config
 * @returns {Head}
 */
export function headOf(weights, config) {
  const { head } = config;
  if (head.kind === "tokens") return tokenLogits(weights, config);
  if (head.kind === "positions") {
    const [transform, proj] = [transformOf(weights, config), weights.linear("output.proj")];
    return (hidden) => linear(transform(hidden), ...proj);
  }
  const vector = sequenceVector(weights, head);
  const alone = (/** @type {Tensor} */ x) => reshaped(x, widthOf(x)); // one output per text, so no axis of positions
  if (head.kind === "vectors") return (hidden) => alone(head.normalize ? normalized(vector(hidden)) : vector(hidden));
  const proj = weights.linear("output.proj");
  const [mean, std] = [head.mean ?? 0, head.std || 1];
  return (hidden) => alone(map(linear(vector(hidden), ...proj), (x) => mean + std * x));
}

/**
 * Return the output row of a position. A head for the whole text has one row.
 * @param {Tensor} logits
 * @param {number} position
 */
export function logitsAt(logits, position) {
  const width = widthOf(logits);
  return logits.data.slice(position * width, (position + 1) * width);
}

/**
 * Compute log softmax of logits.
 * @param {Float32Array} logits
 * @returns {Float64Array}
 */
export function logSoftmax(logits) {
  const largest = logits.reduce((most, x) => Math.max(most, x), -Infinity);
  const logSum = Math.log(logits.reduce((sum, x) => sum + Math.exp(x - largest), 0));
  return new Float64Array(logits).map((x) => x - largest - logSum);
}

/**
 * Return the indices of the n largest numbers, largest first. Equal numbers keep their order.
 * @param {Float32Array | Float64Array} values
 * @param {number} n
 */
export function largest(values, n) {
  /** @type {number[]} */
  const best = [];
  for (let i = 0; i < values.length; i++) {
    if (best.length === n && values[i] <= values[best[n - 1]]) continue;
    let at = best.length;
    while (at > 0 && values[best[at - 1]] < values[i]) at--;
    best.splice(at, 0, i);
    if (best.length > n) best.pop();
  }
  return best;
}

/**
 * Return the most probable [id, name, probability].
 * @param {Float64Array} logProbs
 * @param {string[]} names
 * @param {number} n
 * @returns {Candidate[]}
 */
export function topOf(logProbs, names, n) {
  return largest(logProbs, n).map((id) => [id, names[id], Math.exp(logProbs[id])]);
}

/**
 * Return the entropy in nats.
 * @param {Float64Array} logProbs
 */
export function entropyOf(logProbs) {
  return -logProbs.reduce((sum, x) => sum + Math.exp(x) * Math.max(-1e4, x), 0);
}

/**
 * Return the number of more probable tokens.
 * @param {Float64Array} values
 * @param {number} id
 */
export function nAbove(values, id) {
  return values.reduce((n, x) => n + Number(x > values[id]), 0);
}
