/**
 * Single-head attention of a decoder state over encoder states, with the score function as a setting.
 *
 * @import { Tap, Tensor } from "./tensors.js"
 * @import { Weights } from "./weights.js"
 */

import { additiveScores, maskedSoftmax, multiplicativeScores, weightedValues } from "./attention_functions.js";
import { linear, map, reshaped, tapped } from "./tensors.js";

/**
 * Attention context = Σⱼ softmaxⱼ(score(h, sⱼ)) vⱼ of a state h and memory sⱼ.
 *
 * "additive": vᵀ tanh(W₁h + W₂s) (Bahdanau 2015); "dot": hᵀs, "general": hᵀW s (Luong 2015, equation 8); "scaled_dot":
 * (W₁h)ᵀ(W₂s) / √A over the values W₃s (Vaswani 2017, equation 1, with one head).
 */
export class SingleHeadAttention {
  /** @param {Weights} weights @param {string} path @param {string} score */
  constructor(weights, path, score) {
    const projection = (/** @type {string} */ name) => {
      const weight = weights.find(`${path}.${name}.weight`);
      return weight ? (/** @type {Tensor} */ x) => linear(x, weight) : (/** @type {Tensor} */ x) => x;
    };
    this.q = projection("q_proj");
    this.k = projection("k_proj");
    this.v = projection("v_proj");
    this.vector = weights.find(`${path}.vector`);
    this.isScaled = score === "scaled_dot";
  }

  /** @param {Tensor} memory (S, C) @returns {{key: Tensor, value: Tensor}} (S, A) and (S, W) */
  projectMemory(memory) {
    return { key: this.k(memory), value: this.v(memory) };
  }

  /** @param {Tensor} query (T, A) @param {Tensor} key (S, A) @returns {Tensor} (T, S) */
  scores(query, key) {
    if (this.vector) return additiveScores(query, key, this.vector);
    const scores = multiplicativeScores(query, key);
    return this.isScaled ? map(scores, (x) => x / Math.sqrt(query.shape[1])) : scores;
  }

  /**
   * Return the context (T, W) of `state` (T, D).
   * @param {Tensor} state
   * @param {{key: Tensor, value: Tensor}} memory
   * @param {Tap} tap receives scores, weights and context with one head
   */
  forward(state, { key, value }, tap) {
    const [nQueries, nKeys] = [state.shape[0], key.shape[0]];
    const scores = tapped(tap, "scores", reshaped(this.scores(this.q(state), key), 1, nQueries, nKeys));
    const weights = tapped(tap, "weights", maskedSoftmax(scores, null));
    const context = tapped(tap, "context", weightedValues(weights, reshaped(value, 1, ...value.shape)));
    return reshaped(context, nQueries, value.shape[1]);
  }
}
