/**
 * LayerNorm and RMSNorm over the last axis.
 *
 * @import { Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 */

import { map, multiply, rowsOf, widthOf, zeros } from "./tensors.js";

/**
 * Compute y = (x - mean) / √(variance + eps) · weight + bias (Ba 2016, equations 3 and 4).
 * @param {Tensor} x
 * @param {Tensor | null} weight
 * @param {Tensor | null} bias
 * @param {number} eps
 * @returns {Tensor}
 */
export function layerNorm(x, weight, bias, eps) {
  const [y, width] = [zeros(...x.shape), widthOf(x)];
  for (let row = 0; row < rowsOf(x); row++) {
    const numbers = x.data.subarray(row * width, (row + 1) * width);
    let mean = 0;
    for (let i = 0; i < width; i++) mean += numbers[i] / width;
    let variance = 0;
    for (let i = 0; i < width; i++) variance += (numbers[i] - mean) ** 2 / width;
    const scale = 1 / Math.sqrt(variance + eps);
    for (let i = 0; i < width; i++) {
      y.data[row * width + i] = (numbers[i] - mean) * scale * (weight?.data[i] ?? 1) + (bias?.data[i] ?? 0);
    }
  }
  return y;
}

/**
 * Compute y = x / √(mean(x²) + eps) · weight (Zhang 2019, equation 4).
 * @param {Tensor} x
 * @param {Tensor | null} weight
 * @param {number} eps
 * @returns {Tensor}
 */
export function rmsNorm(x, weight, eps) {
  const [y, width] = [zeros(...x.shape), widthOf(x)];
  for (let row = 0; row < rowsOf(x); row++) {
    const numbers = x.data.subarray(row * width, (row + 1) * width);
    let square = 0;
    for (let i = 0; i < width; i++) square += numbers[i] ** 2 / width;
    const scale = 1 / Math.sqrt(square + eps);
    for (let i = 0; i < width; i++) y.data[row * width + i] = numbers[i] * scale * (weight?.data[i] ?? 1);
  }
  return y;
}

/** @typedef {(x: Tensor) => Tensor} Layer */

/**
 * Return the norm at a path. The settings name its kind.
 * @param {Weights} weights
 * @param {string} path
 * @param {{norm: string, norm_eps: number}} config
 * @returns {Layer}
 */
export function normOf(weights, path, { norm, norm_eps }) {
  const [weight, bias] = [weights.find(`${path}.weight`), weights.find(`${path}.bias`)];
  return norm === "rmsnorm" ? (x) => rmsNorm(x, weight, norm_eps) : (x) => layerNorm(x, weight, bias, norm_eps);
}

/**
 * Return a norm as a linear map plus a shift, with its scale fixed to the value at `x` (1, D): norm(x) = map(x) +
 * shift.
 * @param {Weights} weights
 * @param {string} path
 * @param {{norm: string, norm_eps: number}} config
 * @param {Tensor} x
 */
export function frozenNorm(weights, path, { norm, norm_eps }, x) {
  const [weight, bias] = [weights.find(`${path}.weight`), weights.find(`${path}.bias`)];
  const centred = (/** @type {Tensor} */ v) => {
    const mean = norm === "rmsnorm" ? 0 : v.data.reduce((sum, value) => sum + value, 0) / widthOf(v);
    return map(v, (value) => value - mean);
  };
  const square = centred(x).data.reduce((sum, value) => sum + value ** 2, 0) / widthOf(x);
  const scale = 1 / Math.sqrt(square + norm_eps);
  const scaled = (/** @type {Tensor} */ v) => map(centred(v), (value) => value * scale);
  return {
    map: (/** @type {Tensor} */ v) => (weight ? multiply(scaled(v), weight) : scaled(v)),
    shift: bias ?? zeros(1, widthOf(x)),
  };
}
