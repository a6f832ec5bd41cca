/**
 * Layers that change each position alone: LayerNorm and RMSNorm over the last axis, and the feed-forward layer, plain or
 * gated, with its activations.
 *
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 */

import { linear, map, multiply, rowsOf, tapped, widthOf, zeros } from "./tensors.js";

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

/**
 * Compute the error function by formula 7.1.26 of Abramowitz and Stegun, whose error is below 1.5e-7.
 * @param {number} x
 */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}

/** @param {number} x */
export function sigmoid(x) {
  return 1 / (1 + Math.exp(-x));
}

/** @type {Record<string, (x: number) => number>} */
export const ACTIVATIONS = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)),
  gelu_tanh: (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x * sigmoid(x),
  relu2: (x) => Math.max(0, x) ** 2,
  tanh: Math.tanh,
};

/**
 * Feed-forward layer: down(act(up(x))) (Vaswani 2017, equation 2), or gated: down(act(gate(x)) · up(x)) (Shazeer 2020).
 * @param {Weights} weights
 * @param {string} path
 * @param {string} activation
 */
export function feedForward(weights, path, activation) {
  const gate = weights.hasLinear(`${path}.gate_proj`) ? weights.linear(`${path}.gate_proj`) : null;
  const [up, down] = [weights.linear(`${path}.up_proj`), weights.linear(`${path}.down_proj`)];
  const f = ACTIVATIONS[activation];
  return (/** @type {Tensor} */ x, /** @type {Tap} */ tap) => {
    const wide = linear(x, ...up);
    const hidden = gate ? multiply(map(linear(x, ...gate), f), wide) : map(wide, f);
    return linear(tapped(tap, "activations", hidden), ...down);
  };
}
