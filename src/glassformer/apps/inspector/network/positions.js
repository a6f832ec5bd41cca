/**
 * Position encodings: vectors that are added to the embeddings, angles of queries and keys, and biases of the scores.
 *
 * @import { Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 */

import { rowsAt, widthOf, zeros } from "./tensors.js";

const { fround } = Math; // positions are computed in fp32 in PyTorch

/**
 * Compute PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(same) (Vaswani 2017, section 3.5).
 *
 * The layout "halves" puts all sines before all cosines. With `endsAtBase`, the exponent is 2i/(D - 2) (Fan 2020).
 * @param {number[]} positions
 * @param {number} width
 * @param {string} layout
 * @param {boolean} endsAtBase
 * @returns {Tensor} (T, D)
 */
export function sinusoid(positions, width, layout, endsAtBase = false) {
  const divisor = endsAtBase ? width - 2 : width;
  const x = zeros(positions.length, width);
  positions.forEach((position, t) => {
    for (let i = 0; i < width / 2; i++) {
      const frequency = fround(Math.exp(fround(2 * i * fround(-Math.log(10000) / divisor))));
      const angle = fround(position * frequency);
      const [sine, cosine] = layout === "halves" ? [i, i + width / 2] : [2 * i, 2 * i + 1];
      x.data[t * width + sine] = Math.sin(angle);
      x.data[t * width + cosine] = Math.cos(angle);
    }
  });
  return x;
}

/**
 * Rotate pair (i, i + K'/2) of each head by its angle (Su 2021, half-split layout); the rest of the head is unchanged.
 * @param {Tensor} x (H, T, K)
 * @param {{cos: Tensor, sin: Tensor}} angles (T, K'/2) each
 * @returns {Tensor}
 */
export function applyRotary(x, { cos, sin }) {
  const [nHeads, nTokens, width] = x.shape;
  const half = widthOf(cos);
  const y = { shape: x.shape, data: x.data.slice() };
  for (let head = 0; head < nHeads; head++) {
    for (let t = 0; t < nTokens; t++) {
      const begin = (head * nTokens + t) * width;
      for (let i = 0; i < half; i++) {
        const [first, second, at] = [x.data[begin + i], x.data[begin + half + i], t * half + i];
        y.data[begin + i] = first * cos.data[at] - second * sin.data[at];
        y.data[begin + half + i] = second * cos.data[at] + first * sin.data[at];
      }
    }
  }
  return y;
}

/**
 * Return the function from positions (T,) to the cosines and sines of the angles that rotate queries and keys (Su 2021,
 * section 3.2.2).
 * @param {Weights} weights
 * @param {string} path
 */
export function rotaryAngles(weights, path) {
  const frequencies = weights.get(`${path}.inverse_frequencies`);
  const [factor] = weights.get(`${path}.attention_factor`).data;
  const half = widthOf(frequencies);
  return (/** @type {number[]} */ positions) => {
    const [cos, sin] = [zeros(positions.length, half), zeros(positions.length, half)];
    positions.forEach((position, t) => {
      for (let i = 0; i < half; i++) {
        const angle = fround(position * frequencies.data[i]);
        cos.data[t * half + i] = Math.cos(angle) * factor;
        sin.data[t * half + i] = Math.sin(angle) * factor;
      }
    });
    return { cos, sin };
  };
}

/** @typedef {(queries: number[], keys: number[]) => Tensor} ScoreBias from positions (T,) and (S,) to a bias of the scores (H, T, S) */

/** @param {number} nHeads @param {(head: number, distance: number) => number} of the bias of a key at a distance from the query @returns {ScoreBias} */
function byDistance(nHeads, of) {
  return (queries, keys) => {
    const bias = zeros(nHeads, queries.length, keys.length);
    let at = 0;
    for (let head = 0; head < nHeads; head++) {
      for (const query of queries) for (const key of keys) bias.data[at++] = of(head, key - query);
    }
    return bias;
  };
}

/** Score bias -slope · |distance|, with one untrained slope per head (Press 2022). @param {Weights} weights @param {string} path */
export function alibiBias(weights, path) {
  const slopes = weights.get(`${path}.slopes`).data;
  return byDistance(slopes.length, (head, distance) => -slopes[head] * Math.abs(distance));
}

/**
 * Return the bucket of key position - query position (Raffel 2020, section 2.1).
 * @param {number} distance
 * @param {number} nBuckets
 * @param {number} maxDistance
 * @param {boolean} bidirectional
 */
export function relativeBucket(distance, nBuckets, maxDistance, bidirectional) {
  const n = bidirectional ? Math.floor(nBuckets / 2) : nBuckets;
  const first = bidirectional && distance > 0 ? n : 0;
  const away = bidirectional ? Math.abs(distance) : Math.max(0, -distance);
  const nExact = Math.floor(n / 2);
  if (away < nExact) return first + away;
  const growth = fround(fround(Math.log(fround(away / nExact))) / fround(Math.log(maxDistance / nExact)));
  return first + Math.min(n - 1, nExact + Math.trunc(fround(growth * (n - nExact))));
}

/**
 * Learned score bias table[bucket(distance), head], with one table per stack.
 * @param {Weights} weights
 * @param {string} path
 * @param {number} maxDistance
 * @param {boolean} bidirectional
 */
export function relativeBias(weights, path, maxDistance, bidirectional) {
  const { shape: [nBuckets, nHeads], data } = weights.get(`${path}.table.weight`);
  return byDistance(nHeads, (head, distance) => data[relativeBucket(distance, nBuckets, maxDistance, bidirectional) * nHeads + head]);
}

/**
 * Return the function from positions (T,) to the vectors (T, D) that are added to the embeddings; null for other kinds
 * of positions.
 * @param {Weights} weights
 * @param {string} path
 * @param {{kind: string, layout?: string, offset?: number, ends_at_base?: boolean}} positions
 * @param {number} width
 * @returns {((positions: number[]) => Tensor) | null}
 */
export function addedPositions(weights, path, { kind, layout = "", offset = 0, ends_at_base = false }, width) {
  /** @param {number[]} positions */
  const numbered = (positions) => positions.map((position) => position + offset);
  if (kind === "sinusoidal") return (positions) => sinusoid(numbered(positions), width, layout, ends_at_base);
  if (kind !== "learned") return null;
  const table = weights.get(`${path}.table.weight`);
  return (positions) => rowsAt(table, numbered(positions));
}
