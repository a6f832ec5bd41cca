/**
 * Predictions from logits: log-probabilities, the most probable tokens, entropy, and the rank of a token.
 *
 * @import { Candidate } from "../page/types.js"
 */

/**
 * Compute log softmax of logits.
 * @param {Float32Array} logits
 * @returns {Float64Array}
 */
export function logSoftmax(logits) {
  let largest = -Infinity;
  for (let i = 0; i < logits.length; i++) largest = Math.max(largest, logits[i]);
  let sum = 0;
  for (let i = 0; i < logits.length; i++) sum += Math.exp(logits[i] - largest);
  return Float64Array.from(logits, (x) => x - largest - Math.log(sum));
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
  let sum = 0;
  for (let i = 0; i < logProbs.length; i++) sum -= Math.exp(logProbs[i]) * Math.max(-1e4, logProbs[i]);
  return sum;
}

/**
 * Return the number of more probable tokens.
 * @param {Float32Array | Float64Array} values
 * @param {number} id
 */
export function nAbove(values, id) {
  let n = 0;
  for (let i = 0; i < values.length; i++) n += values[i] > values[id] ? 1 : 0;
  return n;
}
