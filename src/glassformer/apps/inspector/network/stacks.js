/**
 * Encoder and decoder stacks: embeddings, blocks, final norm. Inputs shared by the blocks are computed here once.
 *
 * @import { KeysAndValues } from "./attention.js"
 * @import { Tap } from "./tensors.js"
 * @import { StackConfig, TransformerConfig } from "./transformer.js"
 * @import { Weights } from "./weights.js"
 *
 * @typedef {{layers: KeysAndValues[], memory: KeysAndValues[] | null, length: number}} TransformerState
 * Keys and values of the tokens that a decoder has read, and of the source. A step returns a new state. The old state
 * stays valid.
 */

import { Block } from "./blocks.js";
import { Embeddings } from "./embeddings.js";
import { allowedPairs } from "./masks.js";
import { normOf } from "./norms.js";
import { AlibiBias, RelativeBias, Rotary } from "./positions.js";
import { scoped, tapped } from "./tensors.js";

/**
 * Return the integers from `begin` to before `end`.
 * @param {number} begin
 * @param {number} end
 */
export function range(begin, end) {
  return Array.from({ length: end - begin }, (_, i) => begin + i);
}

/** Encoder stack (each token attends to all tokens) or decoder stack (each token attends to itself and earlier tokens). */
export class Stack {
  /**
   * @param {Weights} weights
   * @param {"encoder" | "decoder"} name
   * @param {TransformerConfig} config
   * @param {() => Promise<void>} pauseBetween pauses between two blocks, so that the page stays responsive
   */
  constructor(weights, name, config, pauseBetween) {
    const stack = /** @type {StackConfig} */ (config[name]);
    this.name = name;
    this.causal = name === "decoder";
    this.pauseBetween = pauseBetween;
    this.embeddings = new Embeddings(weights, `${name}.embeddings`, config);
    const hasMemory = this.causal && config.encoder !== null;
    this.blocks = range(0, stack.n_layers).map((i) => new Block(weights, `${name}.blocks.${i}`, config, stack, hasMemory));
    const pattern = stack.window_pattern.length ? stack.window_pattern : [0];
    this.windows = this.blocks.map((_, i) => pattern[i % pattern.length]);
    this.finalNorm = config.final_norm ? normOf(weights, `${name}.final_norm`, config) : null;
    const { kind, max_distance } = config.positions;
    this.rotary = kind === "rotary" ? new Rotary(weights, `${name}.rotaries.0`) : null;
    this.scoreBias = null;
    if (kind === "alibi") this.scoreBias = new AlibiBias(weights, `${name}.score_bias`);
    if (kind === "relative") this.scoreBias = new RelativeBias(weights, `${name}.score_bias`, max_distance ?? 0, !this.causal);
  }

  /** Return the names of the embeddings and of each block, with the names of the tensors of the residual stream after them. @returns {[string, string][]} */
  residuals() {
    return [["embeddings", `${this.name}.embeddings`], ...this.blocks.map((_, i) => /** @type {[string, string]} */ ([`block ${i}`, `${this.name}.blocks.${i}.residual`]))];
  }

  /** Return the names of the blocks, with the names of the tensors of the contexts of their heads. @returns {[string, string][]} */
  contexts() {
    return this.blocks.map((_, i) => [`block ${i}`, `${this.name}.blocks.${i}.self_attn.context`]);
  }

  /**
   * Add ids (T,) to the tokens of a state; return the states (T, D) of the new tokens, and the new state.
   * @param {number[]} ids
   * @param {TransformerState} state
   * @param {Tap} [tap]
   */
  async step(ids, state, tap = null) {
    const [queries, keys] = [range(state.length, state.length + ids.length), range(0, state.length + ids.length)];
    const rotary = this.rotary?.forward(queries) ?? null;
    const bias = this.scoreBias?.forward(queries, keys) ?? null;
    let x = tapped(tap, "embeddings", this.embeddings.forward(ids, queries, scoped(tap, "embeddings")));
    const layers = [];
    for (const [i, block] of this.blocks.entries()) {
      await this.pauseBetween();
      const mask = { allowed: allowedPairs(queries, keys, { causal: this.causal, window: this.windows[i] }), bias };
      const inputs = { mask, rotary, memory: state.memory?.[i] ?? null, cache: state.layers[i] ?? null, tap: scoped(tap, `blocks.${i}`) };
      const after = block.forward(x, inputs);
      x = after.x;
      layers.push(after.cache);
    }
    if (this.finalNorm) x = tapped(tap, "final_norm", this.finalNorm(tapped(tap, "final_norm.input", x)));
    return { x: tapped(tap, "final", x), state: { ...state, layers, length: keys.length } };
  }
}

/** @type {TransformerState} */
export const EMPTY = { layers: [], memory: null, length: 0 };
