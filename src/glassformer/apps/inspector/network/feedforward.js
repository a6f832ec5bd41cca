/**
 * Position-wise feed-forward layer, plain or gated, and its activations.
 *
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 */

import { linear, map, multiply, tapped } from "./tensors.js";

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

/** Feed-forward layer: down(act(up(x))) (Vaswani 2017, equation 2), or gated: down(act(gate(x)) · up(x)) (Shazeer 2020). */
export class FeedForward {
  /** @param {Weights} weights @param {string} path @param {string} activation */
  constructor(weights, path, activation) {
    this.gate = weights.hasLinear(`${path}.gate_proj`) ? weights.linear(`${path}.gate_proj`) : null;
    this.up = weights.linear(`${path}.up_proj`);
    this.down = weights.linear(`${path}.down_proj`);
    this.activation = ACTIVATIONS[activation];
  }

  /**
   * @param {Tensor} x (T, D)
   * @param {Tap} tap
   */
  forward(x, tap) {
    const up = linear(x, ...this.up);
    const hidden = this.gate ? multiply(map(linear(x, ...this.gate), this.activation), up) : map(up, this.activation);
    return linear(tapped(tap, "activations", hidden), ...this.down);
  }
}
