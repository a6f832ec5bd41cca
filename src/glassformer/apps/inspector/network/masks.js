/**
 * Attention masks: which query may attend to which key.
 *
 * @import { Allowed } from "./attention_functions.js"
 */

/**
 * Return the mask as one matrix; null if every query may attend to every key.
 *
 * With `causal`, a query sees keys up to its own position. With a `window` above 0, it sees keys at a distance of less
 * than `window`, itself included.
 * @param {number[]} queries positions (T,)
 * @param {number[]} keys positions (S,)
 * @param {{causal: boolean, window: number}} rules
 * @returns {Allowed}
 */
export function allowedPairs(queries, keys, { causal, window }) {
  if (!causal && !window) return null;
  const allowed = new Uint8Array(queries.length * keys.length);
  let at = 0;
  for (const query of queries) {
    for (const key of keys) {
      const isSeen = (!causal || key <= query) && (!window || Math.abs(query - key) < window);
      allowed[at++] = Number(isSeen);
    }
  }
  return allowed;
}
