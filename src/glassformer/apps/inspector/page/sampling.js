/**
 * Sampling rules on the logits of one position: temperature, top-k, top-p, in this order.
 *
 * The rules equal `glassformer.inference.sampling.shape_logits`. A token with -Infinity is excluded.
 */

/** @typedef {{temperature: number, top_k: number, top_p: number}} Sampling */

/**
 * Return the probabilities of logits.
 * @param {Float32Array} logits
 */
export function softmax(logits) {
  const largest = logits.reduce((most, x) => Math.max(most, x), -Infinity);
  const values = new Float64Array(logits).map((x) => Math.exp(x - largest));
  const sum = values.reduce((total, x) => total + x, 0);
  return values.map((x) => x / sum);
}

/**
 * Keep the k largest logits and ties with the k-th.
 * @param {Float32Array} logits
 * @param {number} k
 */
export function keepTopK(logits, k) {
  const kth = /** @type {number} */ (Float32Array.from(logits).sort()[logits.length - Math.min(k, logits.length)]);
  return logits.map((x) => (x < kth ? -Infinity : x));
}

/**
 * Keep the fewest most probable tokens whose probabilities sum to p or more; at least one.
 * @param {Float32Array} logits
 * @param {number} p
 */
function keepTopP(logits, p) {
  const probabilities = softmax(logits);
  const kept = new Float32Array(logits.length).fill(-Infinity);
  let before = 0;
  for (const [rank, i] of descending(probabilities).entries()) {
    if (rank > 0 && before >= p) break;
    kept[i] = /** @type {number} */ (logits[i]);
    before += /** @type {number} */ (probabilities[i]);
  }
  return kept;
}

/**
 * Apply every rule. At temperature 0 the logits are not divided: the largest one is chosen.
 * @param {Float32Array} logits
 * @param {Sampling} sampling
 */
export function shapeLogits(logits, { temperature, top_k, top_p }) {
  if (temperature === 0) return logits;
  if (temperature < 1e-4) return keepTopK(logits, 1);
  /** @type {Float32Array} */
  let shaped = logits.map((x) => x / temperature);
  if (top_k) shaped = keepTopK(shaped, top_k);
  return top_p < 1 ? keepTopP(shaped, top_p) : shaped;
}

/**
 * Return the probabilities with which the next token is chosen.
 * @param {Float32Array} logits
 * @param {Sampling} sampling
 * @returns {Float64Array}
 */
export function probabilities(logits, sampling) {
  return softmax(sampling.temperature === 0 ? keepTopK(logits, 1) : shapeLogits(logits, sampling));
}

/**
 * Return the indices of numbers, largest first. Equal numbers keep their order.
 * @param {Float64Array | Float32Array} values
 */
export function descending(values) {
  const order = Array.from(values.keys());
  return order.sort((a, b) => /** @type {number} */ (values[b]) - /** @type {number} */ (values[a]) || a - b);
}

/**
 * Return the entropy of probabilities in nats.
 * @param {Float64Array} values
 */
export function entropy(values) {
  return values.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0);
}

/**
 * Return the index at which the cumulative distribution exceeds `uniform` (0 to 1).
 * @param {Float64Array} values
 * @param {number} uniform
 */
export function choose(values, uniform) {
  let cumulative = 0;
  let last = 0;
  for (const [i, p] of values.entries()) {
    if (p > 0) last = i;
    cumulative += p;
    if (uniform < cumulative) return i;
  }
  return last;
}
