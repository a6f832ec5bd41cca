/**
 * Layers that change each position alone: LayerNorm and RMSNorm over the last axis, and the feed-forward layer, plain or
 * gated, with its activations.
 *
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 */

import { meanOf } from "./spread.js";
import { linear, map, multiply, tapped, widthOf, zeros } from "./tensors.js";

/**
 * Compute y = (x - mean) / √(variance + eps) · weight + bias (Ba 2016, equations 3 and 4).
 * @param {Tensor} x
 * @param {Tensor | null} weight
 * @param {Tensor | null} bias
 * @param {number} eps
 * @returns {Tensor}
 */
export function layerNorm(x, weight, bias, eps) {
  return normalized(x, weight, bias, eps, (numbers) => numbers.reduce((sum, value) => sum + value / numbers.length, 0));
}

/**
 * Compute y = x / √(mean(x²) + eps) · weight (Zhang 2019, equation 4).
 * @param {Tensor} x
 * @param {Tensor | null} weight
 * @param {number} eps
 * @returns {Tensor}
 */
export function rmsNorm(x, weight, eps) {
  return normalized(x, weight, null, eps, () => 0);
}

/** @param {Tensor} x @param {Tensor | null} weight @param {Tensor | null} bias @param {number} eps @param {(row: Float32Array) => number} centreOf */
function normalized(x, weight, bias, eps, centreOf) {
  const [y, width] = [zeros(...x.shape), widthOf(x)];
  for (let begin = 0; begin < x.data.length; begin += width) {
    const numbers = x.data.subarray(begin, begin + width);
    const centre = centreOf(numbers);
    const square = numbers.reduce((sum, value) => sum + (value - centre) ** 2 / width, 0);
    const scale = 1 / Math.sqrt(square + eps);
    for (let i = 0; i < width; i++) y.data[begin + i] = (numbers[i] - centre) * scale * (weight?.data[i] ?? 1) + (bias?.data[i] ?? 0);
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
    const mean = norm === "rmsnorm" ? 0 : meanOf(v.data);
    return map(v, (value) => value - mean);
  };
  const scale = 1 / Math.sqrt(meanOf(centred(x).data.map((value) => value ** 2)) + norm_eps);
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
