/**
 * Attention as formulas: masks, and scores → weights → context.
 *
 * @import { Tap, Tensor } from "./tensors.js"
 */

import { dot, reshaped, tapped, zeros } from "./tensors.js";

/** @typedef {Uint8Array | null} Allowed (T, S): 1 where a query may attend to a key; null if every query may attend to every key. */

/**
 * Compute score(q, k) = q·k · scale, scale = 1/√K by default (Vaswani 2017, equation 1).
 *
 * With fewer key heads G than query heads H, each key head serves H / G adjacent query heads (Ainslie 2023).
 * @param {Tensor} query (H, T, K)
 * @param {Tensor} key (G, S, K)
 * @param {number} [scale]
 * @returns {Tensor} (H, T, S)
 */
export function scaledDotProductScores(query, key, scale = 1 / Math.sqrt(query.shape[2])) {
  const [nHeads, nQueries, width] = query.shape;
  const [nKeyHeads, nKeys] = key.shape;
  const scores = zeros(nHeads, nQueries, nKeys);
  let at = 0;
  for (let head = 0; head < nHeads; head++) {
    const keyHead = Math.floor((head * nKeyHeads) / nHeads);
    for (let t = 0; t < nQueries; t++) {
      for (let s = 0; s < nKeys; s++) {
        const product = dot(query.data, (head * nQueries + t) * width, key.data, (keyHead * nKeys + s) * width, width);
        scores.data[at++] = product * scale;
      }
    }
  }
  return scores;
}

/**
 * Apply softmax over the allowed keys; a query without an allowed key gets zeros.
 * @param {Tensor} scores (H, T, S)
 * @param {Allowed} allowed
 */
export function maskedSoftmax(scores, allowed) {
  const [nHeads, nQueries, nKeys] = scores.shape;
  const weights = zeros(...scores.shape);
  for (let row = 0; row < nHeads * nQueries; row++) {
    const begin = row * nKeys;
    const isAllowed = (/** @type {number} */ s) => allowed === null || allowed[(row % nQueries) * nKeys + s] === 1;
    let largest = -Infinity;
    for (let s = 0; s < nKeys; s++) if (isAllowed(s)) largest = Math.max(largest, scores.data[begin + s]);
    let sum = 0;
    for (let s = 0; s < nKeys; s++) {
      if (isAllowed(s)) sum += weights.data[begin + s] = Math.exp(scores.data[begin + s] - largest);
    }
    if (sum > 0) for (let s = 0; s < nKeys; s++) weights.data[begin + s] /= sum;
  }
  return weights;
}

/**
 * Compute weights · values.
 * @param {Tensor} weights (H, T, S)
 * @param {Tensor} value (G, S, W)
 * @returns {Tensor} (H, T, W)
 */
export function weightedValues(weights, value) {
  const [nHeads, nQueries, nKeys] = weights.shape;
  const [nValueHeads, , width] = value.shape;
  const context = zeros(nHeads, nQueries, width);
  for (let head = 0; head < nHeads; head++) {
    const valueHead = Math.floor((head * nValueHeads) / nHeads);
    for (let t = 0; t < nQueries; t++) {
      const row = (head * nQueries + t) * width;
      for (let s = 0; s < nKeys; s++) {
        const weight = weights.data[(head * nQueries + t) * nKeys + s];
        const begin = (valueHead * nKeys + s) * width;
        if (weight) for (let i = 0; i < width; i++) context.data[row + i] += weight * value.data[begin + i];
      }
    }
  }
  return context;
}

/**
 * Compute softmax(scale · q kᵀ + bias) v step by step.
 * @param {Tensor} query (H, T, K)
 * @param {Tensor} key (G, S, K)
 * @param {Tensor} value (G, S, W)
 * @param {{allowed: Allowed, bias: Tensor | null}} mask
 * @param {number} scale
 * @param {Tap} tap receives the scores before the mask, the weights and the context
 * @returns {Tensor} (H, T, W)
 */
export function attentionReference(query, key, value, { allowed, bias }, scale, tap) {
  const scores = scaledDotProductScores(query, key, scale);
  if (bias) for (let i = 0; i < scores.data.length; i++) scores.data[i] += bias.data[i];
  return contextOf(scores, allowed, value, tap);
}

/** Compute softmax(scores) v of the allowed keys. @param {Tensor} scores @param {Allowed} allowed @param {Tensor} value @param {Tap} tap */
export function contextOf(scores, allowed, value, tap) {
  tapped(tap, "scores", scores);
  const weights = tapped(tap, "weights", maskedSoftmax(scores, allowed));
  return tapped(tap, "context", weightedValues(weights, value));
}

/**
 * Compute score(q, k) = vᵀ tanh(q + k) of projected q and k (Bahdanau 2015, appendix A.1.2).
 * @param {Tensor} query (T, A)
 * @param {Tensor} key (S, A)
 * @param {Tensor} vector (A,)
 * @returns {Tensor} (T, S)
 */
export function additiveScores(query, key, vector) {
  const [[nQueries, width], [nKeys]] = [query.shape, key.shape];
  const scores = zeros(nQueries, nKeys);
  for (let t = 0; t < nQueries; t++) {
    for (let s = 0; s < nKeys; s++) {
      let sum = 0;
      for (let i = 0; i < width; i++) sum += vector.data[i] * Math.tanh(query.data[t * width + i] + key.data[s * width + i]);
      scores.data[t * nKeys + s] = sum;
    }
  }
  return scores;
}

/**
 * Compute score(q, k) = qᵀk: Luong (2015), equation 8 "dot"; "general" if `key` is already W·s.
 * @param {Tensor} query (T, A)
 * @param {Tensor} key (S, A)
 * @returns {Tensor} (T, S)
 */
export function multiplicativeScores(query, key) {
  const scores = scaledDotProductScores(reshaped(query, 1, ...query.shape), reshaped(key, 1, ...key.shape), 1);
  return reshaped(scores, query.shape[0], key.shape[0]);
}

/**
 * Return the mask as one matrix; null if every query may attend to every key.
 *
 * With `causal`, a query sees keys up to its own position. With a `window` above 0, it sees keys at a distance of less
 * than `window`, itself included.
 * @param {number[]} queries positions (T,)
 * @param {number[]} keys positions (S,)
 * @param {{causal: boolean, window: number}} rules
 */
export function allowedPairs(queries, keys, { causal, window }) {
  if (!causal && !window) return null;
  const allowed = new Uint8Array(queries.length * keys.length);
  let at = 0;
  for (const query of queries) {
    for (const key of keys) allowed[at++] = Number((!causal || key <= query) && (!window || Math.abs(query - key) < window));
  }
  return allowed;
}
